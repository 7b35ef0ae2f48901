"""Workers and builds that are believed dead and are not: they change nothing of what their successors have made."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.builds import TESTS, parts_of, records_of, write_images
from support.command import environment
from support.listeners import Listener, StopError, stop_when
from support.packed import check_whole, fingerprints
from support.processes import wait_for

import packer
from packer.assembly.plan import ShardPlan
from packer.builds.planning.plan import TASK_ITEMS
from packer.workspace import Workspace, append_line
from packer.workspace.durable import publish, publish_folder

NAMES = [f"{'ab'[n % 2]}/{n:02d}.png" for n in range(TASK_ITEMS + 8)]
HOW: dict[str, Any] = {"shard_size": 20_000, "label_from": "folder", "engine": "inline"}


def at(stage: str, done: int) -> Listener:
    """Ends a build once a stage has done so much."""
    return stop_when(lambda progress: progress.stage == stage and progress.done >= done and not progress.ended)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("fences") / "source", NAMES)


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """What undisturbed builds of two sizes give."""
    found = {}
    for size in (16, 24):
        out = tmp_path_factory.mktemp("whole") / "out"
        packer.build(source, out, size=size, progress=False, **HOW)
        found[size] = fingerprints(out)
    return found


@contextmanager
def zombie(out: Path, do: str, number: int) -> Iterator["subprocess.Popen[str]"]:
    """A worker that is stopped just before it publishes the result of a unit."""
    command = [sys.executable, "-m", "support.zombie", str(out), do, str(number)]
    env = environment(python_path=TESTS)
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            wait_for("the worker's stop", lambda: state_of(process.pid) == "T" or process.poll() is not None)
            assert process.poll() is None
            yield process
        finally:
            process.kill()


def state_of(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def wake(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Let the worker go on to its end; what it says of its unit."""
    os.kill(process.pid, signal.SIGCONT)
    said: dict[str, Any] = json.loads(process.communicate(timeout=120)[0])
    assert said["stopped"]
    return said


def last_unit(out: Path, do: str) -> int:
    """The number of the last task or shard."""
    space = Workspace(out / ".build")
    return len(ShardPlan.load(space).sizes) - 1 if do == "shard" else 1


@pytest.mark.parametrize(("do", "stage"), [("task", "packing"), ("shard", "writing")])
def test_a_worker_that_wakes_up_after_the_commit_changes_nothing(
    source: Path, tmp_path: Path, whole: dict[int, Any], do: str, stage: str
) -> None:
    out = tmp_path / "out"
    with pytest.raises(StopError):
        packer.build(source, out, size=16, progress=at(stage, 1), **HOW)
    with zombie(out, do, last_unit(out, do)) as process:
        packer.build(source, out, size=16, progress=False, **HOW)
        assert not (out / ".build").exists()
        assert "No such file" in wake(process)["error"]
    assert not (out / ".build").exists()
    check_whole(out)
    assert fingerprints(out) == whole[16]


@pytest.mark.parametrize(("do", "stage"), [("task", "packing"), ("shard", "writing")])
def test_a_worker_of_an_older_plan_puts_nothing_into_a_newer_one(
    source: Path, tmp_path: Path, whole: dict[int, Any], do: str, stage: str
) -> None:
    out = tmp_path / "out"
    with pytest.raises(StopError):
        packer.build(source, out, size=24, progress=at(stage, 1), **HOW)
    with zombie(out, do, last_unit(out, do)) as process:
        with pytest.raises(StopError):  # just before the new plan would do what the old worker has in hand
            packer.build(source, out, size=16, overwrite=True, progress=at(stage, 1), **HOW)
        before = [path.name for path in (*parts_of(out), *records_of(out))]
        assert "No such file" in wake(process)["error"]
        assert [path.name for path in (*parts_of(out), *records_of(out))] == before
    packer.build(source, out, size=16, overwrite=True, progress=False, **HOW)
    check_whole(out)
    assert fingerprints(out) == whole[16]


@pytest.mark.parametrize(("do", "stage"), [("task", "packing"), ("shard", "writing")])
def test_the_first_of_two_attempts_counts(
    source: Path, tmp_path: Path, whole: dict[int, Any], do: str, stage: str
) -> None:
    out = tmp_path / "out"
    with pytest.raises(StopError):
        packer.build(source, out, size=16, progress=at(stage, 1), **HOW)
    number = last_unit(out, do)
    with zombie(out, do, number) as first, zombie(out, do, number) as second:
        a, b = wake(second), wake(first)
        assert a["result"] == b["result"]
    left = [path.name for path in (out / ".build").rglob("*.partial")]
    assert not left, "an attempt that was too late is removed by its maker"
    packer.build(source, out, size=16, progress=False, **HOW)
    assert fingerprints(out) == whole[16]


def test_what_is_half_written_is_swept_and_nothing_else(tmp_path: Path) -> None:
    space = Workspace(tmp_path / ".build").of_plan("a" * 64)
    space.create()
    space.create_results(1)
    staging = space.staging / "key"
    staging.mkdir()
    gone = [
        space.attempt(space.part(0)),
        space.of_owner("n2-7").attempt(space.part(0)),
        space.of_owner("n2-7").attempt(staging / "shard-00000"),
        space.root / "plan.json.0.partial",
    ]
    for path in gone:
        if path.name.startswith("shard"):
            path.mkdir()
            path = path / "shard-00000.lmdb.partial"
        path.write_bytes(b"half")
    space.part(0).write_bytes(b"whole")
    space.sweep()
    assert [path.exists() for path in gone] == [False] * 4
    assert not list(space.root.glob("*.gone"))
    assert space.part(0).exists()


def test_each_owner_has_a_journal_of_its_own_that_ends_with_its_plan(tmp_path: Path) -> None:
    space = Workspace(tmp_path / ".build").of_plan("a" * 64)
    space.create()
    space.create_results(1)
    append_line(space.journal, {"by": "coordinator"})
    for owner in ("n2", "n1"):
        append_line(space.of_owner(owner).journal, {"by": owner})
        append_line(space.of_owner(owner).verdicts, {"item": owner})
    with (space.of_owner("n1").journal).open("ab") as file:
        file.write(b'{"by": "cut sho')  # killed while it wrote
    assert [line["by"] for line in space.of_owner("n9").read_journal()] == ["coordinator", "n1", "n2"]
    assert [line["item"] for line in space.read_verdicts()] == ["n1", "n2"]
    assert not list(space.of_plan("b" * 64).read_verdicts())
    space.take_away(space.parts)
    with pytest.raises(FileNotFoundError):
        append_line(space.of_owner("n1").verdicts, {"item": 1})
    for owner in ("", "../x", "a.b", "x" * 65, "é"):
        if owner:
            with pytest.raises(ValueError, match="owner"):
                Workspace(tmp_path, owner=owner)


def test_what_is_published_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(name: str) -> Path:
        path = tmp_path / name
        path.write_text(name)
        return path

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    assert publish(write("a"), tmp_path / "part")
    assert not publish(write("b"), tmp_path / "part")
    monkeypatch.setattr(os, "link", refuse)  # as on a file system without hard links
    assert not publish(write("c"), tmp_path / "part")
    assert publish(write("d"), tmp_path / "other")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"part": "a", "other": "d"}
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_text(name)
    assert publish_folder(tmp_path / "x", tmp_path / "shard")
    assert not publish_folder(tmp_path / "y", tmp_path / "shard")
    assert (tmp_path / "shard" / "record.json").read_text() == "x"
