"""Shards that are written while tasks still run: the same bytes, whatever happens to them."""

import errno
import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fuzz import examples
from support.media import write_picture
from support.packed import check_whole, fingerprints

import packer
from packer.assembly import plan as assembly
from packer.assembly.plan import (
    FIRST_SHARD_BYTES,
    SHARD_BYTES,
    Piece,
    ShardPlan,
    cut_rows,
    plan_assembly,
)
from packer.builds.assembly import ShardCutter
from packer.builds.parts.part import Part
from packer.builds.parts.rows import PartRows, describe_rows
from packer.builds.parts.schema import SchemaSettler
from packer.builds.parts.summary import PartsSummary
from packer.builds.parts.writer import PartWriter
from packer.builds.planning.plan import TASK_ITEMS
from packer.builds.reports import ReportWriter
from packer.jobs.plan import Task
from packer.jobs.stages import early as module
from packer.recipe import Recipe
from packer.steps.encode import ColumnSpec, EncodedValue, image_codec
from packer.steps.report import ItemReport
from packer.workspace import Workspace
from shardspec.errors import BuildError
from shardspec.schema import Schema

ITEMS = 3 * TASK_ITEMS + 4
HOW: dict[str, Any] = {"shard_size": 4_000, "encode": "raw", "engine": "inline"}
"""Of pictures of 8 x 8 pixels, a task fills one shard and a half."""


class Watch:
    """Counts the shards that are there as soon as so many items have ended."""

    def __init__(self, out: Path, items: int) -> None:
        self._staging, self._items = out / ".build" / "staging", items
        self.shards = self.folders = -1

    def on_message(self, line: str) -> None:
        """Nothing."""

    def on_progress(self, progress: packer.Progress) -> None:
        """Count, once."""
        if progress.stage == "packing" and progress.done >= self._items and self.shards < 0:
            self.shards = len(list(self._staging.glob("*/*/record.json")))
            self.folders = len(list(self._staging.iterdir()))


def pictures(folder: Path, larger: int | None = None) -> Path:
    folder.mkdir()
    for number in range(ITEMS):
        side = 9 if number == larger else 8
        write_picture(folder / f"{number:03d}.png", np.full((side, side, 3), number, np.uint8))
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pictures(tmp_path_factory.mktemp("early") / "source")


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Path], dict[str, str]]:
    """Builds without early shards: what must come out."""

    def build(source: Path, out: Path, **how: Any) -> dict[str, str]:
        with monkeypatch.context() as patch:
            patch.setattr(module.EarlyShards, "offer", lambda self, plans: list(plans))
            packer.build(source, out, progress=False, **{**HOW, **how})
        return fingerprints(out)

    return build


def test_shards_are_written_while_tasks_run(
    source: Path, tmp_path: Path, without: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(tmp_path / "out", ITEMS - 1)
    result = packer.build(source, tmp_path / "out", progress=watch, **HOW)
    assert watch.shards == 5
    assert len(result.manifest.shards) == result.manifest.wall_clock["shards_written"] == 7
    check_whole(tmp_path / "out")
    assert fingerprints(tmp_path / "out") == without(source, tmp_path / "whole")
    monkeypatch.setattr("packer.workspace.fresh.is_far", lambda folder: True)  # threads then ask, and remove
    packer.build(source, tmp_path / "two", progress=False, **{**HOW, "engine": "processes"}, workers=2)
    assert fingerprints(tmp_path / "two") == fingerprints(tmp_path / "out")
    assert not (tmp_path / "two" / ".build").exists()


@pytest.mark.parametrize("larger", [0, TASK_ITEMS + 8, 2 * TASK_ITEMS + 8, ITEMS - 1])
def test_a_picture_of_another_size_makes_the_shards_before_it_void(tmp_path: Path, without: Any, larger: int) -> None:
    source, watch = pictures(tmp_path / "source", larger), Watch(tmp_path / "out", ITEMS - 1)
    result = packer.build(source, tmp_path / "out", progress=watch, **HOW)
    assert watch.shards >= 4
    assert watch.folders == 1, "what is void is removed at once"
    assert result.manifest.wall_clock["shards_written"] == len(result.manifest.shards)
    assert fingerprints(tmp_path / "out") == without(source, tmp_path / "whole")


def test_columns_that_do_not_count_in_the_end_make_no_shard(source: Path, tmp_path: Path, without: Any) -> None:
    def add_odd(samples: Iterable[Any]) -> Iterator[Any]:
        for sample in samples:
            first = sample["image"][0, 0, 0] <= TASK_ITEMS + 8
            yield {**sample, "odd": np.float32(0)} if first else sample

    how: dict[str, Any] = {"steps": ["decode", add_odd], "max_rejects": 0.5}
    watch = Watch(tmp_path / "out", ITEMS - 1)
    result = packer.build(source, tmp_path / "out", progress=watch, **HOW, **how)
    assert watch.shards > 0
    assert "odd" not in result.manifest.schema
    assert fingerprints(tmp_path / "out") == without(source, tmp_path / "whole", **how)


def test_without_room_for_two_copies_no_shard_is_early(
    source: Path, tmp_path: Path, without: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    room = ITEMS * 8 * 8 * 3
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage._replace(free=room))
    watch = Watch(tmp_path / "out", ITEMS - 1)
    packer.build(source, tmp_path / "out", progress=watch, **HOW)
    assert watch.shards == 0
    assert fingerprints(tmp_path / "out") == without(source, tmp_path / "whole")


def test_a_shard_that_cannot_be_written_early_is_written_in_the_end(
    source: Path, tmp_path: Path, without: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, write, calls = without(source, tmp_path / "whole"), assembly.write_shard, []

    def refuse(published: Path, *rest: Any) -> Any:
        early = not (tmp_path / "out" / ".build" / "assembly.json").exists()
        calls.append(early)
        if early and len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(published, *rest)

    monkeypatch.setattr(assembly, "write_shard", refuse)
    watch = Watch(tmp_path / "out", ITEMS - 1)
    packer.build(source, tmp_path / "out", progress=watch, **HOW)
    assert calls == [True] * 2 + [False] * 7
    assert watch.shards == 0, "their room was needed"
    assert fingerprints(tmp_path / "out") == whole


def test_a_build_that_cannot_give_a_shard_out_goes_on_without_early_shards(
    source: Path, tmp_path: Path, without: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, early_plan, asked = without(source, tmp_path / "whole"), Workspace.early_plan, set()

    def place(space: Workspace, number: int) -> Path:
        asked.add(number)
        return early_plan(space, number) if number == 0 else tmp_path / "full" / "plan"

    monkeypatch.setattr(Workspace, "early_plan", place)
    packer.build(source, tmp_path / "out", progress=False, **HOW)
    assert asked == {0, 1}
    assert fingerprints(tmp_path / "out") == whole


def test_a_build_that_finds_no_room_goes_on_without_early_shards(
    source: Path, tmp_path: Path, without: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quota shows only when it is met, by a part, say."""
    whole, finish = without(source, tmp_path / "whole"), PartWriter.finish
    staging = tmp_path / "out" / ".build" / "staging"

    def refuse(part: PartWriter) -> None:
        if list(staging.glob("*/*/record.json")):
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        finish(part)

    monkeypatch.setattr(PartWriter, "finish", refuse)
    with pytest.raises(BuildError, match="Disk quota exceeded"):
        packer.build(source, tmp_path / "out", progress=False, **HOW)
    assert not list(staging.iterdir())
    watch = Watch(tmp_path / "out", ITEMS - 1)
    packer.build(source, tmp_path / "out", progress=watch, **HOW)
    assert watch.shards == 0
    assert fingerprints(tmp_path / "out") == whole


def test_shards_that_there_was_no_room_for_are_written_once_there_is(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage, room = shutil.disk_usage(tmp_path), iter([0, 0])
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage._replace(free=next(room, usage.free)))
    watch = Watch(tmp_path / "out", ITEMS - 1)
    packer.build(source, tmp_path / "out", progress=watch, **HOW)
    assert watch.shards == 5


class Row(NamedTuple):
    """The bytes of one sample: a picture of some height, as PNG says it, and a varying text."""

    height: int
    text: int


PARTS = st.lists(
    st.lists(st.builds(Row, st.sampled_from([3, 3, 3, 3, 4]), st.integers(0, 40)), max_size=6), max_size=12
)


def test_shards_grow_with_what_lies_before_them() -> None:
    row = 4 * 10**6
    cuts = cut_rows(np.full(600, row), None)
    sizes = [row * (stop - start) for start, stop in pairwise(cuts)]
    assert sizes[:5] == [FIRST_SHARD_BYTES] * 5
    assert SHARD_BYTES in sizes
    for number, size in enumerate(sizes[:-1]):
        most = min(max(sum(sizes[:number]) / 4, FIRST_SHARD_BYTES), SHARD_BYTES)
        assert most - row < size <= most
    assert sum(sizes) == 600 * row
    assert sizes[-1] <= sum(sizes) / 5


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a shard holds if nobody chose: 30 to 100 bytes."""
    monkeypatch.setattr(assembly, "FIRST_SHARD_BYTES", 30)
    monkeypatch.setattr(assembly, "SHARD_BYTES", 100)


@pytest.mark.usefixtures("small_shards")
@given(parts=PARTS, shard_bytes=st.none() | st.integers(20, 400), window=st.sampled_from([1, 3, 1 << 18]))
@examples(60)
def test_what_is_cut_early_is_what_is_cut_in_the_end(
    tmp_path: Path, parts: list[list[Row]], shard_bytes: int | None, window: int
) -> None:
    shutil.rmtree(tmp_path / ".build", ignore_errors=True)
    space = Workspace(tmp_path / ".build")
    space.create()
    space.create_results(len(parts))
    for task, rows in enumerate(parts):
        with PartWriter(space.part(task)) as part:
            part.begin()
            for number, row in enumerate(rows):
                pixels, text = bytes([task]) * (row.height * 4), bytes([number]) * row.text
                image = EncodedValue(pixels, (row.height, 4), ColumnSpec("array", "|u1", 2))
                part.append({"image": image, "text": EncodedValue(text, (len(text),), ColumnSpec("text", "|u1", 1))})
            part.end(ItemReport(str(task), samples=len(rows), frames=1))
            part.finish()
    settler = SchemaSettler(image_codec(Recipe(encode="raw")), {}, {})
    summary = PartsSummary(settler, ReportWriter(tmp_path / "rejects", tmp_path / "items"), lambda _: repeat(None))
    cut, found = ShardCutter(space, "npy", shard_bytes), list[ShardPlan]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packer.builds.assembly._ROWS", window)
        for task in range(len(parts)):
            summary.add(Part(space.part(task)), Task(task, task + 1, 0))
            found += cut.find(summary)
    summary.reports.finish()
    if not any(parts):
        assert not found
        return
    schema = settler.settle()
    assert isinstance(schema, Schema)
    config = describe_rows(summary.columns, summary.rows, schema)
    source = PartRows(config, space, summary.table)
    whole = plan_assembly(space, config, source, "npy", [Piece(len(source), shard_bytes)])
    ours = [plan for plan in found if plan.form == whole.form]
    assert [plan.first for plan in ours] == list(range(len(ours)))
    if len({row.height for rows in parts for row in rows}) == 1:
        assert len(ours) >= len(whole.sizes) - 1 - sum(not rows for rows in parts[-1:]), "all but the last are known"
    for plan, (start, stop), size in zip(ours, pairwise(whole.cuts), whole.sizes, strict=False):
        assert plan.sizes == (size,)
        for name in schema.names:
            early = plan.source.read(plan.shard_rows(0), [name])[name]
            late = PartRows(config, space).read(np.arange(start, stop), [name])[name]
            assert list(map(bytes, early)) == list(map(bytes, late))
