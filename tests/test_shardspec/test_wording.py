"""Values in messages are short, and say what was left out."""

import json
from typing import Any

import numpy as np
import pytest

from shardspec.wording import counted, cut, did_you_mean, first_words, found_instead, list_some, shorten


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("short", "'short'"),
        (b"\x00", "b'\\x00'"),
        (3, "3"),
        (None, "None"),
        ([1, 2], "[1, 2]"),
        ("x" * 81, f"'{'x' * 80}'… (81 characters)"),
        (b"y" * 100_000, f"b'{'y' * 80}'… (100000 bytes)"),
    ],
)
def test_values(value: Any, expected: str) -> None:
    assert shorten(value) == expected


def test_counts() -> None:
    assert [counted(n, "item") for n in (0, 1, 2)] == ["0 items", "1 item", "2 items"]
    assert [counted(2, noun) for noun in ("class", "batch", "damaged row")] == [
        "2 classes",
        "2 batches",
        "2 damaged rows",
    ]


@pytest.mark.parametrize(
    "value",
    [
        {"bytes": b"\xff" * 400_000, "path": "a" * 400_000},
        ["x" * 1000] * 1000,
        np.zeros((500, 500)),
        list(range(10**5)),
        {str(number): number for number in range(10**5)},
        [[[[[["deep"] * 100] * 100] * 100]]],
        10**400,
    ],
)
def test_long_values(value: Any) -> None:
    assert len(shorten(value)) < 120
    assert "\n" not in shorten(value)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"a" 1}', "found a syntax error: Expecting ':' delimiter (line 1 column 6)"),
        (b'{"a": "\xff"}', "found the byte 0xff, which is not UTF-8"),
        (b"[" * 10**5, "found too many levels"),
    ],
)
def test_invalid_json(data: bytes, expected: str) -> None:
    with pytest.raises((ValueError, RecursionError)) as error:
        json.loads(data)
    assert found_instead(error.value) == expected


def test_texts_and_lists() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("abcd", 3) == "abc… (4 characters)"
    assert first_words("a line of words", 15) == "a line of words"
    assert [first_words("a line of words", length) for length in (14, 10, 9)] == ["a line of …", "a line …", "a line …"]
    assert first_words("in column …, found none", 14) == "in column …"
    assert first_words("x" * 20, 10) == "xxxxxxxxx…"
    assert list_some(["a", "b"]) == "a, b"
    assert list_some(["a\nb", "\x1b[31mé", "\udcff"]) == "a b, \\x1b[31mé, \\udcff"  # a class, named by anybody
    assert list_some([]) == ""
    assert list_some([str(number) for number in range(11)]) == "0, 1, 2, 3, 4, 5, 6, 7 and 3 more"
    assert len(list_some(["x" * 1000] * 1000)) < 1000


def test_letter_case_does_not_hide_what_was_meant() -> None:
    assert did_you_mean("SPLIT", ["key", "split"]) == "; did you mean 'split'?"
    assert did_you_mean("Deepfake", ["DeepFakes", "real"]) == "; did you mean 'DeepFakes'?"
    assert did_you_mean("x", ["key", "split"]) == ""
