"""The parts as the cut takes them in: each opened once, in order, while others are still being made."""

import json
from contextlib import closing
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.packed import fingerprints

import packer
from packer.builds.parts.part import Part, PartWriter, RowGroup
from packer.builds.parts.rows import PartRows, RowTable, describe_rows
from packer.builds.parts.summary import PartsReader, SchemaSettler
from packer.builds.reports import ReportWriter
from packer.jobs.plan import Tasks
from packer.recipe import Recipe
from packer.steps.encode import ColumnSpec, EncodedBatch, EncodedValue, image_codec
from packer.steps.report import ItemReport
from packer.workspace import Workspace, shared_files
from shardspec.columns import Buffer
from shardspec.schema import Field, Schema

TASKS = 80


def encoded(data: Buffer, kind: str, dtype: str, shape: tuple[int, ...]) -> EncodedValue:
    return EncodedValue(data, shape, ColumnSpec(kind, dtype, len(shape)))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Parts of no to three rows, some of which have a second group."""
    space = Workspace(tmp_path_factory.mktemp("parts") / ".build")
    space.create()
    space.create_results(TASKS)
    for task in range(TASKS):
        with PartWriter(space.part(task)) as part:
            for item in range(task % 4):
                part.begin()
                name = b"cat" if item else b"a longer name"
                row = {
                    "image": encoded(bytes([task]) * (task + 1), "image", "|u1", (task + 1, 1, 1)),
                    "label": encoded(name, "class", "|u1", (len(name),)),
                    "time": encoded(np.float64(task).tobytes(), "array", "<f8", ()),
                }
                if item == 2:
                    row["odd"] = encoded(bytes([item]), "array", "|b1", ())
                part.append(row)
                part.end(ItemReport(f"{task}-{item}", samples=1, frames=1, faces=1))
            part.finish()
    return space


def open_parts(space: Workspace, folder: Path) -> PartsReader:
    tasks = Tasks((n, n + 1, 0) for n in range(TASKS))
    return PartsReader(
        space,
        tasks,
        lambda: SchemaSettler(image_codec(Recipe(encode="raw")), {}, {}),
        lambda: ReportWriter(folder / "rejects", folder / "items"),
        lambda _: repeat(None),
    )


@given(
    made=st.permutations(range(TASKS)),
    looks=st.sets(st.integers(0, TASKS)),
    ahead=st.booleans(),
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_was_taken_in_is_what_the_parts_say(
    space: Workspace, tmp_path: Path, made: list[int], looks: set[int], ahead: bool
) -> None:
    """Whenever which part was made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_files, "is_on_network", lambda _: ahead)
        reader = open_parts(space, tmp_path)
        for count, task in enumerate(made):
            reader.read([task] if count in looks else ())
        with closing(reader):
            reader.finish()
    schema = reader.settler.settle()
    config = describe_rows(reader.columns, reader.rows, schema)
    taken, read = reader.table, PartRows(config, space)
    taken.schema = schema
    assert len(taken) == len(read) == sum(min(2, task % 4) for task in range(TASKS))
    assert schema["label"].classes == ("a longer name", "cat")
    assert {name: sizes.tolist() for name, sizes in taken.sizes().items()} == {
        name: sizes.tolist() for name, sizes in read.sizes().items()
    }
    index = [field.name for field in schema if field.is_scalar]
    assert index == ["label", "time"]
    some = np.random.default_rng(0).permutation(len(read))
    for rows in (np.arange(len(read)), np.arange(5, 20), some, some[:9], some[:0]):
        for name, values in taken.read(rows, index).items():
            expected = read.read(rows, [name])[name]
            assert values.tolist() == expected.tolist()
            assert values.dtype == expected.dtype
    items = (tmp_path / "items").read_text().splitlines()
    states = [(line["item"], line["state"]) for line in map(json.loads, items)]
    assert states == [
        (f"{task}-{item}", "packed" if item < 2 else "rejected") for task in range(TASKS) for item in range(task % 4)
    ]


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
            taken.add(RowGroup(memoryview(b""), columns, array[:, 0], array, np.zeros((len(array), 2), np.int32)))
        taken.schema = Schema(tuple(Field(name, "bytes", "|u1", (None, None, 3), codec) for name in columns))
        sizes = taken.sizes()
        assert sizes["alike"].tolist() == [3] * 4
        assert sizes["other"].tolist() == [7, 7, 7, last]
        assert sizes["other"].dtype == (np.int64 if last == huge else np.uint32)


def test_a_build_on_a_network_file_system_gives_the_same_bytes(
    mixed: Path, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are listed and parts opened in several threads."""
    for place in ("sources.base", "sources.folders.finding", "workspace.shared_files"):
        monkeypatch.setattr(f"packer.{place}.is_on_network", lambda _: True)
    options: dict[str, Any] = {"size": 32, "every": 6, "label_from": "folder", "shard_size": "30kB"}
    packer.build(mixed, tmp_path / "out", engine="inline", **options)
    assert fingerprints(tmp_path / "out") == fingerprints(reference)
    assert not (tmp_path / "out" / ".build").exists()
