"""Rows of a packed dataset, read some at a time, as items."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.packed_files import write_faces

from packer.assembly.samples import PackedSamples
from packer.recipe import Recipe
from packer.sources.packed import describe_row
from packer.steps.chain import PACKED_KEY, PackedItems
from packer.steps.encode import KEPT
from shardspec.errors import ShardCorruptError
from shardspec.formats import FORMATS

ROWS = 12


def load(items: PackedItems, root: Path, row: int) -> dict[str, Any]:
    sample = items.load(describe_row(row, str(row), root, "", 0, 0, {}))
    return {name: value for name, value in sample.items() if name not in (KEPT, PACKED_KEY)}


def counting(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The rows of each read."""
    read, reads = PackedSamples.read_encoded, []

    def count(self: PackedSamples, rows: Any) -> Any:
        reads.append(list(rows))
        return read(self, rows)

    monkeypatch.setattr(PackedSamples, "read_encoded", count)
    return reads


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_rows_do_not_depend_on_the_order_of_reading(
    tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_faces(tmp_path, format=format, codec="png")
    expected = PackedSamples(tmp_path).read(range(ROWS))
    reads, items = counting(monkeypatch), PackedItems(Recipe())
    for row in [*range(ROWS), 3, 4, 5, 11, 10, 0, 0, 1, 11]:
        found = load(items, tmp_path, row)
        assert found.keys() == expected[row].keys()
        for name, value in found.items():
            assert np.array_equal(value, expected[row][name])
    items.close()
    # The first alone: of a worker that died, it may be tried by itself. Then single ones, until rows follow one another.
    assert reads[:2] == [[0], [*range(1, ROWS)]]
    assert all(first + 1 == second for rows in reads for first, second in pairwise(rows))


def test_changes_of_a_row_by_a_step_are_gone_when_it_is_read_again(tmp_path: Path) -> None:
    write_faces(tmp_path, codec=None)
    items = PackedItems(Recipe())
    for row in (0, 1, 2):
        once = load(items, tmp_path, row)
        kept = {name: np.copy(once[name]) for name in ("image", "landmarks")}
        once["image"][:], once["landmarks"][:] = 0, -1
        again = load(items, tmp_path, row)
        assert all(np.array_equal(again[name], value) for name, value in kept.items())
    items.close()


def test_a_row_that_cannot_be_read_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_faces(tmp_path)
    read = PackedSamples.read_encoded

    def refuse(self: PackedSamples, rows: Any) -> Any:
        if 7 in rows:
            raise ShardCorruptError("row 7")
        return read(self, rows)

    monkeypatch.setattr(PackedSamples, "read_encoded", refuse)
    items, failed = PackedItems(Recipe()), []
    for row in range(ROWS):
        try:
            load(items, tmp_path, row)
        except ShardCorruptError:
            failed.append(row)
    items.close()
    assert failed == [7]


def test_large_rows_are_read_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_faces(tmp_path)
    reads, items = counting(monkeypatch), PackedItems(Recipe())
    monkeypatch.setattr(PackedSamples, "row_bytes", 1 << 20)
    for row in range(3):
        load(items, tmp_path, row)
    items.close()
    assert reads == [[0], [1], [2]]
