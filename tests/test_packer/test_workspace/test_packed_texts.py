"""Texts in little room, and the arrays of numbers that columns of a table become."""

from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from support.fuzz import examples

from packer.workspace.disk_list import PackedTexts
from shardspec.typing.cells import CellTyper

NUMBERS = st.one_of(
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "007", "-0", " ", " 5", "\t-0.5 "]),
)


def test_they_are_those_of_a_list() -> None:
    expected = [f"key {number}\udcff ä" * (number % 3) for number in range(3000)]
    texts = PackedTexts()
    for first in range(0, 3000, 1100):
        texts.extend(expected[first : first + 1100])
    assert len(texts) == 3000
    assert list(texts) == expected
    assert [texts[at] for at in (0, 1023, 1024, 1099, 1100, 2999, -1, 5)] == [
        expected[at] for at in (0, 1023, 1024, 1099, 1100, 2999, -1, 5)
    ]
    assert list(texts[1000:1200]) == expected[1000:1200]
    assert list(PackedTexts()) == []


@examples(200)
@given(st.lists(NUMBERS, max_size=6))
@example([2**63, 0.0])
@example([2**63, 0])
def test_numbers_are_those_of_a_list(values: list[Any]) -> None:
    cells = [str(value) for value in values]
    typer = CellTyper()
    typer.scan(cells)
    found, expected = typer.to_arrays(cells), typer.parse(cells)
    kinds = {type(value) for value in expected if value is not None}
    assert kinds <= {typer.kind}
    if found is None:
        assert typer.kind is str or not all(-(2**63) <= value < 2**63 for value in expected if value is not None)
    else:
        numbers, valid = found
        assert numbers.dtype == (np.dtype("<i8") if typer.kind is int else np.dtype("<f8"))
        assert [number if ok else None for number, ok in zip(numbers.tolist(), valid, strict=True)] == expected
