"""Parts, and what the cut into shards needs of them."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google_crc32c import value as crc32c
from support.packed import fingerprints

import packer
from packer.assembly.plan import write_index
from packer.builds.parts.part import Part, PartWriter, RowGroup
from packer.builds.parts.rows import RowTable
from packer.recipe import Recipe
from packer.steps.encode import ColumnSpec, EncodedBatch, EncodedValue, image_codec
from packer.steps.report import ItemReport
from shardspec.columns import Buffer
from shardspec.schema import Field, Schema


def encoded(data: Buffer, kind: str, dtype: str, shape: tuple[int, ...]) -> EncodedValue:
    return EncodedValue(data, shape, ColumnSpec(kind, dtype, len(shape)))  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [1, 3])
def test_items_added_together_make_the_part_of_items_added_one_by_one(tmp_path: Path, rows: int) -> None:
    values = {
        "image": [encoded(bytes(n + 1), "image", "|u1", (n + 1, 1, 1)) for n in range(rows)],
        "time": [encoded(np.float64(n).tobytes(), "array", "<f8", ()) for n in range(rows)],
    }
    named = ({"samples": 1, "frames": 1}, {"samples": 1, "frames": 1, "progressive": 1})
    found = [(f"{n}", named[n == 1]) for n in range(rows)]
    with PartWriter(tmp_path / "alone") as alone:
        for n, (name, report) in enumerate(found):
            alone.begin()
            alone.append({field: column[n] for field, column in values.items()})
            alone.end(ItemReport(name, **report))
        alone.finish()
    with PartWriter(tmp_path / "together") as together:
        columns = {
            field: EncodedBatch([one.data for one in column], [one.shape for one in column], column[0].spec)
            for field, column in values.items()
        }
        together.add(columns, *zip(*found, strict=True))
        together.finish()
    assert (tmp_path / "together").read_bytes() == (tmp_path / "alone").read_bytes()
    assert Part(tmp_path / "together").reports() == [ItemReport(name, **report) for name, report in found]


def test_lengths_of_more_than_32_bits_are_not_cut_off() -> None:
    columns, codec = {name: ColumnSpec("image", "|u1", 1) for name in ("alike", "other")}, image_codec(Recipe())
    huge = 5 * 2**30
    for last in (7, 8, huge):
        taken = RowTable(columns)
        for lengths in ([3, 7], [3, 7]), ([3, 7],), ([3, last],):
            array = np.array(lengths, np.int64)
            sums, shapes = array.astype(np.uint32), np.zeros((len(array), 2), np.int32)
            taken.add(RowGroup(Path(), memoryview(b""), columns, array[:, 0], array, sums, shapes))
        taken.schema = Schema(tuple(Field(name, "bytes", "|u1", (None, None, 3), codec) for name in columns))
        sizes = taken.sizes()
        assert sizes["alike"].tolist() == [3] * 4
        assert sizes["other"].tolist() == [7, 7, 7, last]
        assert sizes["other"].dtype == (np.int64 if last == huge else np.uint32)


def test_the_index_is_written_without_a_copy_of_the_table(tmp_path: Path) -> None:
    columns = {f"field_{number}": ColumnSpec("array", "<i8", 0) for number in range(4)}
    rows, table = 1000, RowTable(columns)
    lengths, shapes = np.full((rows, len(columns)), 8), np.empty((rows, 0), np.int32)
    numbers = np.arange(100 * rows * len(columns)).reshape(100, rows, len(columns))
    for part in numbers:
        view = memoryview(part.tobytes())
        sums = np.array([crc32c(number.tobytes()) for number in part.reshape(-1)], np.uint32).reshape(part.shape)
        starts = np.arange(rows) * 8 * len(columns)
        table.add(RowGroup(Path(), view, columns, starts, lengths, sums, shapes))
    table.schema = Schema(tuple(Field(name, "fixed", "<i8", ()) for name in columns))
    tracemalloc.start()
    write_index(table, None, tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    for number, name in enumerate(columns):
        assert np.array_equal(np.load(tmp_path / f"{name}.npy"), numbers[:, :, number].reshape(-1))
    assert peak < len(table) * 8  # less than one field


def test_a_build_on_a_network_file_system_gives_the_same_bytes(
    mixed: Path, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are listed and parts opened in several threads."""
    for place in ("sources.base", "sources.folders.walk", "workspace.shared_files"):
        monkeypatch.setattr(f"packer.{place}.is_on_network", lambda _: True)
    options: dict[str, Any] = {"size": 32, "every": 6, "label_from": "folder", "shard_size": "30kB"}
    packer.build(mixed, tmp_path / "out", engine="inline", **options)
    assert fingerprints(tmp_path / "out") == fingerprints(reference)
    assert not (tmp_path / "out" / ".build").exists()
