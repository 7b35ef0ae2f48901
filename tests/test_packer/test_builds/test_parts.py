"""Pieces, and what the cut into shards needs of them."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google_crc32c import value as crc32c
from support.packed import fingerprints

import packer
from packer.assembly.inputs import describe_pieces
from packer.assembly.packed_rows import PackedRows
from packer.assembly.piece import ColumnSpec, RowGroup
from packer.assembly.plan import write_index
from packer.assembly.schemas import FieldRules
from packer.assembly.table import RowTable
from packer.recipe import Recipe
from packer.steps.encode import image_codec
from packer.workspace import Workspace
from shardspec.schema import Field, Schema


def test_lengths_of_more_than_32_bits_are_not_cut_off() -> None:
    columns, codec = {name: ColumnSpec("image", "|u1", 1) for name in ("alike", "other")}, image_codec(Recipe())
    huge = 5 * 2**30
    for last in (7, 8, huge):
        taken = RowTable(columns, FieldRules(codec))
        for lengths in ([3, 7], [3, 7]), ([3, 7],), ([3, last],):
            array = np.array(lengths, np.int64)
            sums, shapes = array.astype(np.uint32), np.zeros((len(array), 2), np.int32)
            taken.add_rows(RowGroup(Path(), memoryview(b""), columns, array[:, 0], array, sums, shapes))
        taken.schema = Schema(tuple(Field(name, "bytes", "|u1", (None, None, 3), codec) for name in columns))
        sizes = taken.sizes()
        assert sizes["alike"].tolist() == [3] * 4
        assert sizes["other"].tolist() == [7, 7, 7, last]
        assert sizes["other"].dtype == (np.int64 if last == huge else np.uint8)


@pytest.mark.parametrize("last", [-1, 255, 256, -(2**31), 2**40])
def test_numbers_are_kept_in_the_smallest_type(last: int) -> None:
    columns = {"number": ColumnSpec("array", "<i8", 0)}
    table = RowTable(columns, FieldRules(image_codec(Recipe())))
    for number in (3, last, 5):
        data = np.array(number, np.int64).tobytes()
        one, no_shape = np.zeros((1, 1), np.int64), np.zeros((1, 0), np.int32)
        sums = np.array([[crc32c(data)]], np.uint32)
        table.add_rows(RowGroup(Path(), memoryview(data), columns, one[0], one + 8, sums, no_shape))
    table.schema = Schema((Field("number", "fixed", "<i8", ()),))
    out = {"number": np.zeros(3, np.int64)}
    table.read(np.arange(3), ["number"], out, np.arange(3))
    assert out["number"].tolist() == [3, last, 5]


def test_the_index_is_written_without_a_copy_of_the_table(tmp_path: Path) -> None:
    columns = {f"field_{number}": ColumnSpec("array", "<i8", 0) for number in range(4)}
    rows, table = 1000, RowTable(columns, FieldRules(image_codec(Recipe())))
    lengths, shapes = np.full((rows, len(columns)), 8), np.empty((rows, 0), np.int32)
    numbers = np.arange(400 * rows * len(columns)).reshape(400, rows, len(columns))
    for part in numbers:
        view = memoryview(part.tobytes())
        sums = np.array([crc32c(number.tobytes()) for number in part.reshape(-1)], np.uint32).reshape(part.shape)
        starts = np.arange(rows) * 8 * len(columns)
        table.add_rows(RowGroup(Path(), view, columns, starts, lengths, sums, shapes))
    table.schema = Schema(tuple(Field(name, "fixed", "<i8", ()) for name in columns))
    source = PackedRows({"inputs": [describe_pieces(table, [])]}, Workspace(tmp_path), table=table)
    tracemalloc.start()
    write_index(source, None, tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    for number, name in enumerate(columns):
        assert np.array_equal(np.load(tmp_path / f"{name}.npy"), numbers[:, :, number].reshape(-1))
    assert peak < len(table) * 8  # less than one field


def test_a_build_on_a_network_file_system_gives_the_same_bytes(
    mixed: Path, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are listed and parts opened in several threads."""
    for place in ("sources.files", "workspace.shared_files"):
        monkeypatch.setattr(f"packer.{place}.is_on_network", lambda _: True)
    options: dict[str, Any] = {"size": 32, "every": 6, "label_from": "folder", "shard_size": "30kB"}
    packer.build(mixed, tmp_path / "out", engine="inline", **options)
    assert fingerprints(tmp_path / "out") == fingerprints(reference)
    assert not (tmp_path / "out" / ".build").exists()
