"""Rows of packed datasets: which shards stay open, and what grouping takes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support.packed_files import read_all, write_faces

from packer.assembly import packed_rows as rows_module
from packer.assembly import plan as plan_module
from packer.assembly.groups import read_groups
from packer.assembly.packed_rows import PackedRows
from packer.assembly.plan import write_index
from shardspec.columns import Columns, IntArray
from shardspec.formats import FORMATS

ROWS, SHARD_ROWS = 30, 5
SHARDS = ROWS // SHARD_ROWS


@pytest.mark.parametrize("format", list(FORMATS))
def test_shards_that_were_passed_are_closed_and_values_stay_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    write_faces(tmp_path / "data", ROWS, format, shard_rows=SHARD_ROWS)
    expected = read_all(tmp_path / "data")
    monkeypatch.setattr(rows_module, "_PASSED_BYTES", 0)
    monkeypatch.setattr(rows_module, "_IDLE", 1)
    source = PackedRows.of(tmp_path / "data")
    names = source.schema.names
    found = [source.read(np.arange(first, first + SHARD_ROWS), names) for first in range(0, ROWS, SHARD_ROWS)]
    assert 1 <= len(source._open) <= 2
    order = np.random.default_rng(0).permutation(ROWS)
    mixed = source.read(order, names)
    for name in names:
        values = [bytes(memoryview(value)) for batch in found for value in batch[name]]
        assert values == [bytes(memoryview(value)) for value in expected[name]]
        assert [bytes(memoryview(value)) for value in mixed[name]] == [values[row] for row in order.tolist()]
    source.close()


def test_shards_that_are_read_in_turn_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_faces(tmp_path / "data", ROWS, shard_rows=SHARD_ROWS)
    monkeypatch.setattr(rows_module, "_PASSED_BYTES", 0)
    monkeypatch.setattr(rows_module, "_IDLE", SHARDS)
    source = PackedRows.of(tmp_path / "data")
    order = np.random.default_rng(0).permutation(ROWS)
    source.read(order, ["key"])
    opened = dict(source._open)
    source.read(order[::-1].copy(), ["key"])
    assert len(opened) == SHARDS
    assert all(source._open[number] is reader for number, reader in opened.items())
    source.close()


@pytest.mark.parametrize("chosen", [ROWS, 17])
def test_the_index_of_a_shuffled_dataset_is_read_in_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: int
) -> None:
    """Rows all over the source would be read from all of its shards, again for every few rows of the index."""
    write_faces(tmp_path / "data", ROWS, shard_rows=SHARD_ROWS)
    expected = read_all(tmp_path / "data")
    monkeypatch.setattr(plan_module, "_INDEX_ROWS", 7)
    order = np.random.default_rng(0).permutation(ROWS)[:chosen]
    source = PackedRows.of(tmp_path / "data")
    read, inner = [], source.read

    def note(rows: IntArray, fields: Sequence[str]) -> Columns:
        read.extend(rows.tolist())
        return inner(rows, fields)

    monkeypatch.setattr(source, "read", note)
    write_index(source, order, tmp_path / "index")
    assert read == sorted(order.tolist())
    scalars = [field for field in source.schema if field.is_scalar]
    assert {path.stem for path in (tmp_path / "index").iterdir()} == {field.name for field in scalars}
    for field in scalars:
        found = np.load(tmp_path / "index" / f"{field.name}.npy", allow_pickle=False)
        assert found.dtype == field.numpy_dtype
        assert found.tobytes() == expected[field.name][order].tobytes()
    source.close()


def test_groups_of_numbers_are_named_as_in_python(tmp_path: Path) -> None:
    write_faces(tmp_path / "data", ROWS)
    expected = read_all(tmp_path / "data")["score"]
    groups = read_groups(tmp_path / "data", "score")
    assert [groups.names[number] for number in groups.of_row.tolist()] == [str(value) for value in expected.tolist()]
