"""What a listener hears of a job, and what becomes of a job whose listener raises."""

import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.builds import write_images
from support.listeners import Listener, StopError, stop_when
from support.packed import fingerprints
from support.packed_files import write_faces

import packer
from packer.builds.planning.plan import TASK_ITEMS
from shardspec.errors import UsageError
from shardspec.layout import BUILD_FOLDER


def check_stage(heard: list[packer.Progress], total: int, *, one_by_one: bool = True) -> None:
    """A stage begins at 0 and ends at its total, with a last word; done never falls, and the time left is known in between.

    Worker processes report items that end at about the same time together.
    """
    first, *between, last = heard
    assert (first.done, first.resumed, first.seconds_left, first.ended) == (0, 0, None, False)
    assert (last.done, last.seconds_left, last.ended, last.failed) == (total, 0, True, False)
    assert {progress.total for progress in heard} == {total}
    for progress, following in pairwise(heard):
        assert progress.done <= following.done
        assert not one_by_one or following.done <= progress.done + 1
        assert progress.seconds <= following.seconds
        assert progress.samples <= following.samples
        assert not progress.ended
    assert all((progress.seconds_left is None) == (progress.done == 0) for progress in between)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """More images than a task has items, one of them damaged."""
    root = write_images(tmp_path / "source", [f"{number:03d}.png" for number in range(TASK_ITEMS + 5)])
    (root / "003.png").write_bytes(b"no image")
    return root


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_a_build_is_heard_while_it_runs(source: Path, tmp_path: Path, engine: str) -> None:
    ear = Listener()
    options: dict[str, Any] = {"engine": engine, "shard_size": "20kB", "encode": "raw"}
    result = packer.build(source, tmp_path / "out", progress=ear, **options)
    assert ear.stages() == [("packing", "items"), ("writing", "shards")]
    check_stage(ear.of("packing"), TASK_ITEMS + 5, one_by_one=False)
    check_stage(ear.of("writing"), len(result.manifest.shards))
    last = ear.of("packing")[-1]
    assert (last.samples, last.rejects) == (TASK_ITEMS + 4, 1)
    assert ear.threads == {threading.get_ident()}
    assert any(line.startswith(f"packing: {TASK_ITEMS + 5} items into lmdb shards") for line in ear.messages)
    again = Listener()
    assert packer.build(source, tmp_path / "out", progress=again, **options).found_finished
    assert again.heard == []


def calls(root: Path) -> dict[str, tuple[list[tuple[str, str]], Callable[[Any], Any]]]:
    """The other functions over datasets ``a`` and ``b``, and the stages of each."""
    inline: dict[str, Any] = {"engine": "inline", "shard_size": 8000}
    repack, a, b = [("checking", "shards"), ("writing", "shards")], root / "a", root / "b"
    return {
        "bench": (
            [("measuring", "passes")],
            lambda ear: packer.bench(
                root / "source", root / "built", workers=1, batch_size=1, runs=1, seconds=0.01, progress=ear
            ),
        ),
        "convert": (repack, lambda ear: packer.convert(a, root / "out", format="npy", progress=ear, **inline)),
        "dry_run": ([("trying", "items")], lambda ear: packer.dry_run(root / "source", root / "out", progress=ear)),
        "export": ([("exporting", "samples")], lambda ear: packer.export(a, root / "out", progress=ear)),
        "find_leaks": ([("comparing", "datasets")], lambda ear: packer.find_leaks([a, b], by="source", progress=ear)),
        "merge": (repack, lambda ear: packer.merge([a, b], root / "out", progress=ear, **inline)),
        "preview": ([("drawing", "samples")], lambda ear: packer.preview(a, root / "out.png", progress=ear)),
        "split": (repack, lambda ear: packer.split(a, root / "out", into="label", progress=ear, **inline)),
        "verify": (
            [("hashing", "files"), ("decoding", "samples")],
            lambda ear: packer.verify(a, deep=True, progress=ear),
        ),
    }


def prepare(root: Path) -> None:
    """What the calls need."""
    write_images(root / "source", ["a.jpg", "b.jpg"])
    packer.build(root / "source", root / "built", engine="inline", progress=False)
    for dataset in "ab":
        write_faces(root / dataset, 12)


@pytest.mark.parametrize("name", calls(Path()))
def test_every_function_that_takes_time_is_heard(tmp_path: Path, name: str) -> None:
    prepare(tmp_path)
    stages, call = calls(tmp_path)[name]
    ear = Listener()
    call(ear)
    assert ear.stages() == stages
    assert ear.threads == {threading.get_ident()}
    for stage, _ in stages:
        heard = ear.of(stage)
        assert heard[0].done == 0
        assert (heard[-1].done, heard[-1].ended, heard[-1].failed) == (heard[-1].total, True, False)
        assert heard[-1].total > 0
    for progress in ("yes", None, object()):
        with pytest.raises(UsageError, match="progress: expected True, False, or an object with on_progress"):
            call(progress)


@pytest.mark.parametrize("engine", ["inline", "processes"])
@pytest.mark.parametrize(("stage", "done"), [("packing", TASK_ITEMS + 1), ("packing", 0), ("writing", 2)])
def test_a_listener_ends_a_build_which_the_same_call_resumes(
    source: Path, tmp_path: Path, engine: str, stage: str, done: int
) -> None:
    options: dict[str, Any] = {"engine": engine, "workers": 1, "shard_size": "20kB", "encode": "raw"}
    ear = stop_when(lambda progress: progress.stage == stage and progress.done >= done)
    with pytest.raises(StopError):
        packer.build(source, tmp_path / "out", progress=ear, **options)
    assert (tmp_path / "out" / BUILD_FOLDER).is_dir()
    assert not (tmp_path / "out" / "manifest.json").exists()
    last, begun = ear.heard[-1], done > 0
    assert (last.stage, last.ended, last.failed) == (stage, begun, begun)
    assert last.done >= done
    again = Listener()
    result = packer.build(source, tmp_path / "out", progress=again, **options)
    assert result.resumed
    first = again.of(stage)[0]
    assert first.done == first.resumed >= min(done, TASK_ITEMS)
    assert bool(again.of("packing")) == (stage == "packing")


@pytest.mark.parametrize("stage", ["checking", "writing"])
def test_a_listener_ends_a_split_which_the_same_call_resumes(tmp_path: Path, stage: str) -> None:
    for root in ("whole", "cut"):
        for dataset in "ab":
            write_faces(tmp_path / root / dataset, 12)
    calls(tmp_path / "whole")["split"][1](False)
    call = calls(tmp_path / "cut")["split"][1]
    with pytest.raises(StopError):
        call(stop_when(lambda progress: (progress.stage, progress.done) == (stage, 1)))
    call(False)
    whole, cut = (sorted((tmp_path / root / "out").rglob("manifest.json")) for root in ("whole", "cut"))
    assert len(whole) == len(cut) > 0
    for one, other in zip(whole, cut, strict=True):
        assert fingerprints(one.parent) == fingerprints(other.parent)


@pytest.mark.parametrize("stage", ["hashing", "decoding"])
def test_a_listener_ends_verify(tmp_path: Path, stage: str) -> None:
    write_faces(tmp_path / "a", 12)
    ear = stop_when(lambda progress: progress.stage == stage and progress.done > 0)
    with pytest.raises(StopError):
        packer.verify(tmp_path / "a", deep=True, progress=ear)
    assert (ear.heard[-1].stage, ear.heard[-1].failed) == (stage, True)
    assert packer.verify(tmp_path / "a", deep=True, progress=False).ok


def test_a_listener_ends_an_export_of_which_nothing_is_left(tmp_path: Path) -> None:
    write_faces(tmp_path / "a", 12)
    with pytest.raises(StopError):
        packer.export(tmp_path / "a", tmp_path / "out", progress=stop_when(lambda progress: progress.done > 0))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert not packer.export(tmp_path / "a", tmp_path / "out", progress=False).found_finished


def test_a_message_can_end_a_build_too(source: Path, tmp_path: Path) -> None:
    class Deaf(Listener):
        def on_message(self, line: str) -> None:
            raise StopError

    with pytest.raises(StopError):
        packer.build(source, tmp_path / "out", engine="inline", progress=Deaf())
    assert packer.build(source, tmp_path / "out", engine="inline", progress=False).resumed
