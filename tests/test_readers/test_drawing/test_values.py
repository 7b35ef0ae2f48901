"""Values as text, the same on pages, under images and in notebooks."""

from typing import Any

import numpy as np
import pytest

from packer.page.rendering import static
from readers.drawing.geometry import COLOURS
from readers.drawing.values import describe_value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("x" * 70, "x" * 60 + "… (70 characters)"),
        ("\udcff", "?"),
        (b"abc", "3 bytes"),
        (np.float32(0.1), "0.1"),
        (np.int64(-1), "-1"),
        (np.int64(1), "fake"),
        (2, "2"),
        (True, "True"),
        (np.bool_(False), "False"),
        (float("nan"), "nan"),
        (np.arange(3), "0, 1, 2 (3)"),
        (np.arange(20).reshape(4, 5), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, … (4 × 5)"),
        (np.zeros((40, 30, 3), np.uint8), "uint8 40 × 30 × 3"),
        (np.array(["a"]), "<U1 1"),
        ({"a": 1}, "{'a': 1}"),
    ],
)
def test_any_value_becomes_a_short_text(value: Any, shown: str) -> None:
    assert describe_value(value, ("real", "fake"), longest=60) == shown


def test_pages_draw_in_the_colours_of_sheets() -> None:
    style = static("page.css").decode()
    for kind in ("right", "left", "middle", "hull", "mouth"):
        assert f"--{kind}: #{bytes(COLOURS[kind]).hex()};" in style
