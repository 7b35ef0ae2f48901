"""Builds that are packed in shares, by processes that know nothing of each other, and merged into the dataset of one build."""

import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import frozen
from support.builds import IMAGES, OPTIONS, QUIET, TESTS, parts_of, write_source
from support.command import environment, file_of, read_jsonl, run_packer, start_packer
from support.face_source import views, write_frames
from support.frozen import DATASETS, describe
from support.listeners import StopError, stop_when
from support.media import cut_file, scene, write_image
from support.packed import fingerprints
from support.processes import wait_for
from support.steps import LOG, read_log

import packer
from packer.builds.pieces.share import Share
from packer.builds.planning import plan
from packer.builds.planning.listing import list_items
from packer.workspace import Workspace
from packer.workspace.folder import locked
from shardspec.errors import BuildError, NotADatasetError, ResumeMismatchError, TooManyRejectsError, UsageError
from shardspec.layout import BUILD_FOLDER, Layout

STEPS = ("--steps", "decode,resize,support.steps:log_items")


def facts(out: Path) -> tuple[Any, ...]:
    """Data, items and rejects of a dataset, and what its manifest says of them."""
    layout = Layout(out)
    manifest = layout.load()
    reports = [
        path.read_bytes() for path in (file_of(layout.root, "items.jsonl"), file_of(layout.root, "rejects.jsonl"))
    ]
    return manifest.digest, reports, manifest.generations, manifest.about, fingerprints(out)


def pack_in_shares(
    source: Any, out: Path, shares: int, *, folders: bool, seed: int = 0, **how: Any
) -> packer.BuildResult:
    """Pack all shares in any order, into one folder or separate ones, and merge them in another order.

    The options hold for the first share; the others are packed in this process.
    """
    order = random.Random(seed).sample(range(1, shares + 1), shares)
    pieces = [out.with_name(f"{out.name}.pieces{number if folders else ''}") for number in order]
    for number, path in zip(order, pieces, strict=True):
        packer.build(source, path, share=f"{number}/{shares}", **how)
        how |= {"engine": "inline", "workers": 1}
    merged = packer.merge(sorted({*pieces}), out, **QUIET)
    assert isinstance(merged, packer.BuildResult)
    return merged


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of three images. The bytes of a dataset do not depend on its tasks."""
    monkeypatch.setattr(plan, "TASK_ITEMS", 3)


BY_WORKERS = {"archive", "boxes", "frames", "items", "packed", "sounds"}
"""Datasets whose first share is packed by worker processes; one of each medium and kind of source."""


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize(("number", "name"), [*enumerate(sorted(DATASETS.keys() - {"written", "called"}))])
def test_shares_of_each_kind_of_source_make_the_frozen_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, name: str
) -> None:
    whole = frozen.build

    def build(source: Path, out: Path, **how: Any) -> Path:
        if "update" in how or "retry_rejects" in how:
            return whole(source, out, **how)
        chosen = {"shard_size": 20_000, "max_rejects": 1.0, "label_from": "folder", **QUIET, **how}
        if name in BY_WORKERS:
            chosen |= {"engine": "processes", "workers": 2}
        pack_in_shares(source, out, 1 + number % 3, folders=number % 2 == 0, seed=number, **chosen)
        return out

    monkeypatch.setattr(frozen, "build", build)
    assert describe(DATASETS[name](tmp_path)) == json.loads(frozen.FROZEN.read_text())[name]


def test_faces_of_videos_with_tracks(tmp_path: Path) -> None:
    for number in range(3):
        write_frames(tmp_path / "source" / f"{number}.mp4", views(4, faceless=[number]))
    how: dict[str, Any] = {"preset": "faces", "choose": "track", "smooth": 3, "size": 48, "max_rejects": 1.0, **QUIET}
    packer.build(tmp_path / "source", tmp_path / "whole", **how)
    pack_in_shares(tmp_path / "source", tmp_path / "merged", 2, folders=True, **how)
    assert facts(tmp_path / "merged") == facts(tmp_path / "whole")


@pytest.mark.usefixtures("small_tasks")
def test_rows_with_arrays_and_a_step_that_is_a_function(tmp_path: Path) -> None:
    rows = [
        {"path": str(write_image(tmp_path / f"{n}.png", scene(n, (20, 16)))), "points": np.full((2, 2), n, np.float32)}
        for n in range(8)
    ]

    def mirror(samples: Any) -> Any:
        for sample in samples:
            yield {**sample, "image": sample["image"][:, ::-1]}

    how: dict[str, Any] = {"root": tmp_path, "steps": ["decode", mirror], "title": "Squares", "progress": False}
    packer.build(rows, tmp_path / "whole", **how)
    out = tmp_path / "merged"
    pack_in_shares(rows, out, 3, folders=False, **how)
    assert facts(out) == facts(tmp_path / "whole")
    assert Layout(out).load().about.title == "Squares"


def test_detect_and_more_shares_than_tasks(tmp_path: Path) -> None:
    write_frames(tmp_path / "source" / "clip.mp4", views(3))
    packer.detect(tmp_path / "source", tmp_path / "whole", **QUIET)
    shares = [
        packer.detect(tmp_path / "source", tmp_path / "pieces", share=f"{number}/3", **QUIET) for number in (3, 1, 2)
    ]
    assert [share.tasks for share in shares] == [0, 1, 0]
    packer.merge([tmp_path / "pieces"], tmp_path / "merged", **QUIET)
    assert facts(tmp_path / "merged") == facts(tmp_path / "whole")


def kill_after_part(pieces: Path, running: "subprocess.Popen[str]") -> None:
    """Kill a share after its first part."""
    before = len(parts_of(pieces))
    wait_for("a part", lambda: len(parts_of(pieces)) > before or running.poll() is not None)
    with suppress(ProcessLookupError):  # it was faster
        os.killpg(running.pid, signal.SIGKILL)
    running.communicate()


def test_shares_that_are_killed_go_on_and_do_nothing_twice(tmp_path: Path) -> None:
    source, log = write_source(tmp_path / "source"), tmp_path / "log"
    env = environment(python_path=TESTS, **{LOG: str(log)})
    run_packer("build", source, tmp_path / "whole", *OPTIONS, *STEPS, env=env)
    log.unlink()
    pieces = tmp_path / "pieces"
    for number in (1, 2):
        words = ("build", source, pieces, "--share", f"{number}/2", *OPTIONS, *STEPS, "--workers", "2")
        kill_after_part(pieces, start_packer(*words, env=env))
        kept = {path: path.stat().st_ino for path in parts_of(pieces)}
        run_packer(*words, env=env)
        assert {path: path.stat().st_ino for path in kept} == kept
    begun = read_log(log)
    assert len({*begun}) == IMAGES + 3
    assert "all shares are packed" in run_packer("status", pieces).stdout
    run_packer("build", source, pieces, "--share", "1/2", *OPTIONS, *STEPS, env=env)
    assert read_log(log) == begun  # nothing was left to do
    merging = start_packer("merge", pieces, tmp_path / "merged", env=env)
    wait_for("a shard", lambda: list((tmp_path / "merged").glob("shard-*")) or merging.poll() is not None)
    with suppress(ProcessLookupError):
        os.killpg(merging.pid, signal.SIGKILL)
    merging.communicate()
    pieces.rename(tmp_path / "moved")  # pieces may lie anywhere, at any time
    run_packer("merge", tmp_path / "moved", tmp_path / "merged", env=env)
    assert facts(tmp_path / "merged") == facts(tmp_path / "whole")
    again = run_packer("merge", tmp_path / "moved", tmp_path / "merged", "--quiet")
    assert "finished already" in again.stdout


def test_a_share_counts_what_killed_calls_have_packed(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source")
    how: dict[str, Any] = {"share": "1/2", "max_rejects": 1.0, "label_from": "folder", **QUIET}
    first = packer.build(source, tmp_path / "pieces", **how)
    assert first.samples
    for journal in (tmp_path / "pieces").rglob("journal.*"):  # it is written after the piece
        journal.unlink()
    assert packer.build(source, tmp_path / "pieces", **how).to_json() == first.to_json()


def test_processes_that_start_together_in_one_folder(tmp_path: Path) -> None:
    source, pieces = write_source(tmp_path / "source"), tmp_path / "pieces"
    pieces.mkdir()
    words = ("build", source, pieces, *(word for word in OPTIONS if word != "--quiet"), "--engine", "inline")
    running: list[subprocess.Popen[str]] = []
    with locked(Workspace(pieces / BUILD_FOLDER)):  # as a process that is listing the source
        for share in ("1/3", "2/3", "3/3", "3/3"):  # one element of an array runs twice
            running.append(start_packer(*words, "--share", share))
        for process in running:
            assert process.stderr is not None
            assert "waiting for its plan" in process.stderr.readline()
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    sessions = [line for line in Workspace(pieces / BUILD_FOLDER).read_journal() if line["did"] == "session"]
    assert len(sessions) == 1  # one process has made the plan
    run_packer("merge", pieces, tmp_path / "merged", "--quiet")
    run_packer("build", source, tmp_path / "whole", *OPTIONS)
    assert facts(tmp_path / "merged") == facts(tmp_path / "whole")


def test_the_source_is_listed_once_for_shares_that_start_together(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces, listed = tmp_path / "pieces", []

    def count(*arguments: Any) -> Any:
        listed.append(arguments)
        return list_items(*arguments)

    monkeypatch.setattr("packer.builds.build.list_items", count)
    pieces.mkdir()
    with ThreadPoolExecutor(3) as threads:
        heard = [Messages() for _ in range(3)]
        with locked(Workspace(pieces / BUILD_FOLDER)):
            packed = [
                threads.submit(
                    packer.build,
                    source,
                    pieces,
                    share=f"{number}/3",
                    max_rejects=1.0,
                    engine="inline",
                    progress=listener,
                )
                for number, listener in enumerate(heard, 1)
            ]
            wait_for("all shares", lambda: all(listener.lines for listener in heard))
        assert [one.result().tasks for one in packed] == [2, 1, 1]
    assert len(listed) == 1
    share(source, pieces, "1/3")  # a later call compares the source
    assert len(listed) == 2


class Messages:
    """A progress listener that keeps the messages."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_progress(self, progress: packer.Progress) -> None:
        """Ignore reports."""

    def on_message(self, line: str) -> None:
        """Keep a message."""
        self.lines.append(line)


@pytest.mark.usefixtures("small_tasks")
def test_folders_of_pieces_that_are_copied_together(tmp_path: Path) -> None:
    source = frozen.write_folder(tmp_path / "source")
    for number in (1, 2):
        packer.build(source, tmp_path / f"p{number}", share=f"{number}/2", max_rejects=1.0, **QUIET)
    shutil.copytree(tmp_path / "p1", tmp_path / "together")
    shutil.copytree(tmp_path / "p2", tmp_path / "together", dirs_exist_ok=True)
    packer.merge([tmp_path / "together"], tmp_path / "merged", **QUIET)
    packer.build(source, tmp_path / "whole", max_rejects=1.0, **QUIET)
    assert facts(tmp_path / "merged") == facts(tmp_path / "whole")


@pytest.mark.usefixtures("small_tasks")
def test_a_merge_has_the_rules_for_rejects_of_its_build(tmp_path: Path) -> None:
    source = frozen.write_folder(tmp_path / "source")
    packer.build(source, tmp_path / "pieces", share="1/1", **QUIET)  # a share does not know how many others reject
    with pytest.raises(TooManyRejectsError, match="1 of 11 items"):
        packer.merge([tmp_path / "pieces"], tmp_path / "merged", **QUIET)
    done = run_packer("merge", tmp_path / "pieces", tmp_path / "again", expect=3)
    assert "10 samples" in done.stdout  # the dataset is there, as after a build
    with pytest.raises(BuildError, match="on-error is fail"):
        packer.build(source, tmp_path / "strict", share="1/1", on_error="fail", **QUIET)


@pytest.mark.parametrize(
    "text", ["0/2", "3/2", "1", "1/0", "a/b", "1/2/3", "-1/2", "1.5/2", "", 1, (1, 2), "1/99999999999", "1/100001"]
)
def test_shares_are_counted_from_one(tmp_path: Path, text: Any) -> None:
    with pytest.raises(UsageError, match="K/N"):
        Share.parse(text)
    with pytest.raises(UsageError, match="share"):
        packer.build(tmp_path, tmp_path / "out", share=text, **QUIET)


@pytest.fixture
def source(tmp_path: Path, small_tasks: None) -> Path:
    return frozen.write_folder(tmp_path / "source")


def share(source: Path, out: Path, text: str, **how: Any) -> Path:
    """Pack a share in this process."""
    packer.build(source, out, share=text, max_rejects=1.0, **QUIET, **how)
    return out


def test_missing_shares_are_named(source: Path, tmp_path: Path) -> None:
    pieces = [share(source, tmp_path / f"p{number}", f"{number}/4") for number in (1, 3)]
    with pytest.raises(BuildError, match="missing from shares 2/4, 4/4"):
        packer.merge(pieces, tmp_path / "out", **QUIET)
    assert not (tmp_path / "out").exists()
    with pytest.raises(NotADatasetError, match="pieces of a build"):
        packer.inspect(pieces[0])
    for path in parts_of(pieces[0])[:1]:
        path.unlink()
    share(source, tmp_path / "p2", "2/4")
    share(source, tmp_path / "p4", "4/4")
    every = [tmp_path / f"p{number}" for number in (1, 2, 3, 4)]
    with pytest.raises(BuildError, match="missing from share 1/4"):
        packer.merge(every, tmp_path / "out", **QUIET)
    share(source, pieces[0], "1/4")
    packer.merge(every, tmp_path / "out", **QUIET)


def test_a_build_goes_on_with_a_killed_merge_whose_pieces_are_gone(source: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"shard_size": 20_000, "max_rejects": 1.0, **QUIET}
    packer.build(source, tmp_path / "pieces", share="1/1", **how)
    assert packer.status(tmp_path / "pieces").rate is None  # no process is at work
    out = tmp_path / "out"
    with pytest.raises(StopError):
        packer.merge([tmp_path / "pieces"], out, progress=stop_when(lambda one: one.unit == "shards"))
    seen = packer.status(out)
    shutil.rmtree(tmp_path / "pieces")
    packer.build(source, out, **how)
    counts = packer.build(source, tmp_path / "whole", **how).manifest.newest.counts
    assert (seen.stage, seen.samples, seen.rejected) == ("writing shards", counts.samples, counts.rejected_items)
    assert facts(out) == facts(tmp_path / "whole")


def test_a_merge_packs_nothing_itself(source: Path, tmp_path: Path) -> None:
    first, second = (share(source, tmp_path / f"p{number}", f"{number}/2") for number in (1, 2))
    shutil.copytree(second / BUILD_FOLDER / "parts", tmp_path / "out" / BUILD_FOLDER / "parts")  # of a discarded build
    shutil.rmtree(source)
    with pytest.raises(BuildError, match="missing from share 2/2"):
        packer.merge([first], tmp_path / "out", **QUIET)
    for out in (tmp_path / "out", tmp_path / "other"):
        packer.merge([first, second], out, **QUIET)
    assert facts(tmp_path / "out") == facts(tmp_path / "other")


def test_pieces_of_another_plan_are_refused_with_the_difference(source: Path, tmp_path: Path) -> None:
    first, second = share(source, tmp_path / "p1", "1/2"), share(source, tmp_path / "p2", "2/2", size=16)
    with pytest.raises(UsageError, match="option size: was None, now 16"):
        packer.merge([first, second], tmp_path / "out", **QUIET)
    with pytest.raises(ResumeMismatchError, match="option size: was None, now 16"):
        share(source, first, "2/2", size=16)


def test_shares_agree_about_what_the_merge_takes_from_them(source: Path, tmp_path: Path) -> None:
    first = share(source, tmp_path / "p1", "1/2", title="Faces", license=["CC0-1.0"])
    second = share(source, tmp_path / "p2", "2/2", title="Photos", license=["CC0-1.0"])
    with pytest.raises(ResumeMismatchError, match="option title: was 'Faces', now 'Photos'"):
        share(source, first, "2/2", title="Photos", license=["CC0-1.0"])
    for folders in ([first, second], [second, first]):
        with pytest.raises(UsageError, match="option title: was"):
            packer.merge(folders, tmp_path / "out", **QUIET)
    share(source, first, "2/2", title="Faces", license=["CC0-1.0"])
    packer.merge([first], tmp_path / "out", **QUIET)
    assert Layout(tmp_path / "out").load().about.title == "Faces"


def test_a_source_that_changes_between_shares_is_noticed(source: Path, tmp_path: Path) -> None:
    first = share(source, tmp_path / "p1", "1/2")
    write_image(source / "real" / "late.png", scene(5, (20, 20)))
    with pytest.raises(ResumeMismatchError, match=r"late\.png' new"):
        share(source, first, "2/2")
    second = share(source, tmp_path / "p2", "2/2")
    with pytest.raises(UsageError, match=r"late\.png' new"):
        packer.merge([first, second], tmp_path / "out", **QUIET)


def test_pieces_of_other_libraries_or_machines_are_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = [share(source, tmp_path / f"p{number}", f"{number}/2") for number in (1, 2)]
    (machine,) = (pieces[1] / BUILD_FOLDER / "parts").glob("*/machine.json")
    kept = machine.read_bytes()
    monkeypatch.setattr("packer.workspace.machines.machine_kind", lambda: {"processor": "other"})
    machine.unlink()
    with pytest.raises(BuildError, match="another kind"):
        packer.merge(pieces, tmp_path / "out", **QUIET)
    monkeypatch.undo()
    machine.write_bytes(kept)
    monkeypatch.setattr("packer.builds.pieces.merge.library_versions", lambda _: {"lmdb": "0.1"})
    with pytest.raises(BuildError, match=r"lmdb: was .*, now '0\.1'"):
        packer.merge(pieces, tmp_path / "out", **QUIET)


def write_one(out: Path) -> None:
    with packer.Writer(out, overwrite=True, progress=False) as writer:
        writer.write(label=0)


def test_folders_that_hold_something_else_are_refused(source: Path, tmp_path: Path) -> None:
    whole, out, pieces = tmp_path / "whole", tmp_path / "out", share(source, tmp_path / "pieces", "1/1")
    packer.build(source, whole, max_rejects=1.0, **QUIET)
    refused: list[tuple[str, Callable[[], Any]]] = [
        ("a packed dataset", lambda: share(source, whole, "1/2")),
        ("which no build made", lambda: share(tmp_path / "whole", source, "1/2")),
        ("pieces of a build", lambda: packer.build(source, pieces, max_rejects=1.0, **QUIET)),
        ("delete the folder", lambda: packer.build(source, pieces, overwrite=True, max_rejects=1.0, **QUIET)),
        ("delete the folder", lambda: packer.convert(whole, pieces, format="npy", overwrite=True, **QUIET)),
        ("delete the folder", lambda: write_one(pieces)),
        ("packed datasets or folders of pieces", lambda: packer.merge([pieces, whole], out, **QUIET)),
        ("one that overlaps it", lambda: packer.merge([pieces], pieces, **QUIET)),
        ("one that overlaps it", lambda: packer.merge([pieces], pieces / "in", **QUIET)),
        ("every folder of pieces once", lambda: packer.merge([pieces, pieces], out, **QUIET)),
        ("leave the option out", lambda: packer.merge([pieces], out, format="npy", **QUIET)),
        ("share", lambda: share(source, pieces, "1/1", overwrite=True)),
        ("share", lambda: share(source, pieces, "1/1", update=True)),
        ("local folder", lambda: packer.build(source, "s3://bucket/pieces", share="1/1", **QUIET)),
    ]
    for text, call in refused:
        with pytest.raises(UsageError, match=text):
            call()
    assert packer.merge([pieces], whole, **QUIET).found_finished  # it is the dataset of these pieces


def test_a_build_that_is_not_packed_in_shares_is_left_alone(source: Path, tmp_path: Path) -> None:
    def fail(samples: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        packer.build(source, tmp_path / "out", steps=["decode", fail], max_rejects=1.0, **QUIET)
    with pytest.raises(UsageError, match="not packed in shares"):
        share(source, tmp_path / "out", "1/2")


def test_a_damaged_piece_is_named_and_packed_again(source: Path, tmp_path: Path) -> None:
    pieces = share(source, tmp_path / "pieces", "1/1")
    path = parts_of(pieces)[1]
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    with pytest.raises(BuildError, match=f"delete {path}"):
        packer.merge([pieces], tmp_path / "out", **QUIET)
    path.unlink()
    share(source, pieces, "1/1")
    packer.merge([pieces], tmp_path / "out", **QUIET)
    packer.build(source, tmp_path / "whole", max_rejects=1.0, **QUIET)
    assert facts(tmp_path / "out") == facts(tmp_path / "whole")


def test_pieces_without_any_sample(tmp_path: Path) -> None:
    for number in range(3):
        cut_file(write_image(tmp_path / "source" / f"{number}.png", scene(number, (20, 20))), 0.5)
    pieces = share(tmp_path / "source", tmp_path / "pieces", "1/1")
    with pytest.raises(TooManyRejectsError, match="nothing was packed"):
        packer.merge([pieces], tmp_path / "out", **QUIET)
    assert len(read_jsonl(tmp_path / "out" / BUILD_FOLDER / "rejects.jsonl")) == 3
