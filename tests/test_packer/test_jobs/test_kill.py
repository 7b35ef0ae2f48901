"""Builds that are killed with SIGKILL at any moment, and go on when the same command is given again."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.builds import IMAGES, OPTIONS, TESTS, parts_of, records_of, write_images
from support.command import environment, file_of, read_jsonl, run_packer, start_packer
from support.crash_points import NEW_SIZE, OLD_SIZE
from support.fuzz import SEED
from support.hooks import before_each
from support.packed import check_whole, fingerprints, read_samples
from support.processes import kill, wait_for, workers_in, workers_of
from support.steps import LOG, read_log

import packer
from packer.assembly.piece import Piece
from packer.builds.planning.plan import TASK_ITEMS, BuildPlan
from packer.workspace.durable import read_record
from shardspec.errors import NotADatasetError
from shardspec.layout import Layout

STEPS = ("--steps", "decode,resize,support.steps:log_items")


COMMIT = ("os.rename .build/staging/", "os.link .build/final/index/", "os.rename manifest.json")
"""Operations of a commit."""

NAMES = [f"{'ab'[n % 2]}/{n:02d}.png" for n in range(TASK_ITEMS + 2)]
OLD_NAMES = len(NAMES) * 2 // 3
LATE_NAMES = sorted(NAMES)[OLD_NAMES:]
CHANGED_NAME = sorted(NAMES)[1]


def crash(folder: Path, step: int, *more: str) -> list[dict[str, Any]]:
    """Kill one-process builds at every `step`-th operation on files, and finish each (`support.crash_points`).

    ``TEST_SEED`` chooses at which operation the first one is killed.
    """
    write_images(folder / "source", NAMES)
    (folder / "out").mkdir()
    program = [sys.executable, "-m", "support.crash_points", folder / "source", folder / "out"]
    program += [str(SEED % step), str(step), *more]
    done = subprocess.run(
        program, env=environment(python_path=TESTS), capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_resumes(rounds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Check that what was resumed after each crash is what was made without one; the rounds with a crash."""
    *crashed, whole = rounds
    assert whole["status"] == 0
    for found in crashed:
        assert found["status"] == 0, found["killed_before"]
        assert found["fingerprints"] == whole["whole"], found["killed_before"]
    return crashed


def check_crashes(rounds: list[dict[str, Any]]) -> None:
    """What must hold after every crash, and after every resume."""
    for found in check_resumes(rounds):
        where, state = found["killed_before"], found["crash"]
        # Nothing half-written is readable: a crash leaves a readable dataset only behind the manifest's rename, while
        # the card is written and the workspace removed.
        assert not state["readable"] or where.split(" ", 1)[1].startswith((".build", "README.md")), where
        check_nothing_is_done_twice(found)


def check_additions(rounds: list[dict[str, Any]]) -> None:
    """What must hold after every crash of a build that adds to a dataset, and after every resume."""
    for found in check_resumes(rounds):
        where, state = found["killed_before"], found["crash"]
        assert state["readable"], where
        assert state["problems"] == [], where
        assert state["samples"] in (OLD_NAMES, len(NAMES)), where
        assert found["standing"].items() <= found["shards"].items(), where
        check_nothing_is_done_twice(found, LATE_NAMES)


def check_rewritten(rounds: list[dict[str, Any]]) -> None:
    """What must hold after every crash of an update that removes samples, and after every resume."""
    for found in check_resumes(rounds):
        where, state = found["killed_before"], found["crash"]
        assert state["readable"], where
        assert state["problems"] == [], where
        assert state["samples"] in (OLD_NAMES, len(NAMES) - 1), where
        assert not found["standing"].keys() & found["shards"].keys(), where
        check_nothing_is_done_twice(found, [CHANGED_NAME, *LATE_NAMES])


def check_nothing_is_done_twice(found: dict[str, Any], names: Sequence[str] = NAMES) -> None:
    """Neither the items of finished tasks, nor shards that stand."""
    where, state = found["killed_before"], found["crash"]
    assert not set(state["parts"]) & set(found["after"]), where
    if state["assembling"]:
        assert not found["after"], where
    for name, identity in state["shards"].items():
        assert found["shards"][name] == identity, where
    assert max(Counter(found["after"]).values(), default=1) == 1, where
    assert set(found["before"]) | set(found["after"]) == set(names)


def check_replacements(rounds: list[dict[str, Any]]) -> None:
    """What must hold after every crash of a build that replaces a dataset, and after every resume."""
    for found in check_resumes(rounds):
        where, state = found["killed_before"], found["crash"]
        assert state["readable"], where
        assert state["problems"] == [], where
        assert state["sizes"] in ([OLD_SIZE], [NEW_SIZE]), where
        assert state["samples"] == len(NAMES), where
        # A replacement that is over is no unfinished one: the command that asks for another gets it.
        if state["sizes"] == [OLD_SIZE] or not state["swapped"]:
            check_nothing_is_done_twice(found)


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_a_crash_at_any_operation_costs_nothing_that_was_finished(tmp_path: Path, step: int) -> None:
    rounds = crash(tmp_path, step)
    check_crashes(rounds)
    if step == 1:
        check_phases(rounds, ("/part-", "/shard-", "index"))
        assert any(found["crash"]["readable"] for found in rounds[:-1])


@pytest.mark.parametrize("step", [18, pytest.param(1, marks=pytest.mark.slow)])
def test_a_crash_of_a_share_or_a_merge_costs_nothing_that_was_finished(tmp_path: Path, step: int) -> None:
    rounds = crash(tmp_path, step, "shares")
    check_crashes(rounds)
    if step == 1:
        check_phases(rounds, (".pieces/.build/plan.json", "/part-000000", "/part-000001", "/shard-", "index"))


@pytest.mark.parametrize("step", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_a_crash_of_an_overwrite_leaves_the_old_dataset_or_the_new_one(tmp_path: Path, step: int) -> None:
    rounds = crash(tmp_path, step, "overwrite")
    check_replacements(rounds)
    sizes = [found["crash"]["sizes"] for found in rounds[:-1]]
    assert sizes == sorted(sizes)
    if step == 1:
        check_phases(rounds, ("/part-", *COMMIT, "os.remove shard-"))


@pytest.mark.parametrize("step", [18, pytest.param(1, marks=pytest.mark.slow)])
def test_a_crash_of_an_update_leaves_the_dataset_with_all_of_it_or_none(tmp_path: Path, step: int) -> None:
    rounds = crash(tmp_path, step, "update")
    check_additions(rounds)
    sizes = [found["crash"]["samples"] for found in rounds[:-1]]
    assert sizes == sorted(sizes)
    if step == 1:
        assert set(sizes) == {OLD_NAMES, len(NAMES)}
        check_phases(rounds, (*COMMIT, "os.remove index/"))


@pytest.mark.parametrize("step", [18, pytest.param(1, marks=pytest.mark.slow)])
def test_a_crash_of_an_update_that_removes_samples_leaves_the_old_dataset_or_the_new_one(
    tmp_path: Path, step: int
) -> None:
    rounds = crash(tmp_path, step, "replace")
    check_rewritten(rounds)
    sizes = [found["crash"]["samples"] for found in rounds[:-1]]
    assert sizes == sorted(sizes)
    if step == 1:
        assert set(sizes) == {OLD_NAMES, len(NAMES) - 1}
        check_phases(rounds, (*COMMIT, "os.remove index/", "os.remove shard-"))


def check_phases(rounds: list[dict[str, Any]], phases: Sequence[str]) -> None:
    """A build was killed in each phase."""
    places = " ".join(found["killed_before"] for found in rounds[:-1])
    assert [phase for phase in phases if phase not in places] == []


Moment = Callable[[Path], object]


def at_work(out: Path) -> object:
    """The first part is finished, and not the last."""
    return parts_of(out)


def at_assembly(out: Path) -> object:
    """The first shard is finished, and not the last."""
    return records_of(out)


def at_commit(out: Path) -> object:
    """The finished files are being moved into place; the manifest is not written."""
    return (out / "index").exists() or list(out.glob("rejects-*"))


class Progress:
    """What was done by whom, over all sessions of a build."""

    def __init__(self, out: Path, log: Path) -> None:
        self.out = out
        self.log = log
        self.finished_items: set[str] = set()
        self.shards: dict[str, tuple[int, int]] = {}
        self.logged = 0

    def after_kill(self) -> None:
        """Check what this session did, and remember what was finished."""
        with pytest.raises(NotADatasetError):
            Layout(self.out).load()
        self._check_session()
        for part in parts_of(self.out):
            self.finished_items |= {report.name for report in Piece(part).items}
        if (self.out / ".build" / "assembly.json").exists():
            lines = (self.out / ".build" / "items.jsonl").read_text().splitlines()
            self.finished_items = {json.loads(line)[1] for line in lines}
        for record in records_of(self.out):
            for folder in (self.out, record.parent):
                for shard in folder.glob(f"{record.parent.name}-*.lmdb"):
                    self.shards[shard.name] = (shard.stat().st_ino, shard.stat().st_mtime_ns)

    def at_end(self) -> None:
        """Check the last session: finished shards are the very files that stood before."""
        self._check_session()
        for name, identity in self.shards.items():
            stat = (self.out / name).stat()
            assert (stat.st_ino, stat.st_mtime_ns) == identity

    def _check_session(self) -> None:
        lines = read_log(self.log)
        again = set(lines[self.logged :]) & self.finished_items
        assert not again, "decoded again though their task was finished"
        self.logged = len(lines)


def kill_at(build: Any, out: Path, moment: Moment) -> bool:
    """Kill the build's process once a moment has come; False if its commit was over before."""
    wait_for("the moment", lambda: moment(out) or build.poll() is not None, pause_s=0)
    if build.poll() is not None:
        assert build.returncode == 0, build.communicate()[1]
        return False
    os.kill(build.pid, signal.SIGKILL)
    build.communicate()
    wait_for("the workers' end", lambda: not workers_in(out))
    return not (out / "manifest.json").exists()


def kill_in_turn(command: tuple[Any, ...], progress: Progress, env: dict[str, str], builds: list[Any]) -> bool:
    """Kill a build twice at work, then at assembly; False if one was over before."""
    for moment in (at_work, at_work, at_assembly):
        builds.append(start_packer(*command, env=env))
        # A moment that came in an earlier session has come already.
        if not kill_at(builds[-1], progress.out, moment):
            return False
        progress.after_kill()
    return True


def test_kills_in_work_assembly_and_commit(mixed: Path, tmp_path: Path, builds: list[Any]) -> None:
    env = environment(python_path=TESTS, **{LOG: str(tmp_path / "log")})
    run_packer("build", mixed, tmp_path / "whole", *OPTIONS, *STEPS, "--engine", "inline", env=env)
    (tmp_path / "log").unlink()
    for attempt in range(5):  # a machine that halts for a moment can let a whole phase pass unseen
        out = tmp_path / f"out-{attempt}"
        progress = Progress(out, tmp_path / "log")
        if kill_in_turn(("build", mixed, out, *OPTIONS, *STEPS, "--workers", 2), progress, env, builds):
            break
        (tmp_path / "log").unlink()
    else:
        pytest.fail("builds ended before they could be killed")
    hooks = before_each(tmp_path / "hooks", "packer", "os.rename", "'/manifest.json' in os.fsdecode(arguments[0])")
    dying = environment(python_path=[hooks, TESTS], **{LOG: str(tmp_path / "log")})
    run_packer("build", mixed, out, *OPTIONS, *STEPS, "--workers", 2, env=dying, expect=-signal.SIGKILL)
    progress.after_kill()
    tasks = BuildPlan.from_json(read_record(out / ".build/plan.json")).tasks
    run_packer("build", mixed, out, *OPTIONS, *STEPS, "--workers", 2, env=env)
    progress.at_end()
    check_whole(out)
    assert fingerprints(out) == fingerprints(tmp_path / "whole")
    wall_clock = Layout(out).load().wall_clock
    assert wall_clock["shards_written"] <= len(list(out.glob("shard-*")))
    assert wall_clock["tasks_run"] <= len(tasks)


def test_a_whole_group_killed_at_once(mixed: Path, reference: Path, tmp_path: Path, builds: list[Any]) -> None:
    out = tmp_path / "out"
    builds.append(start_packer("build", mixed, out, *OPTIONS, "--workers", 2))
    wait_for("a part", lambda: parts_of(out), pause_s=0)
    kill(builds[0].pid, *workers_of(builds[0].pid))
    builds[0].communicate()
    run_packer("build", mixed, out, *OPTIONS)
    assert fingerprints(out) == fingerprints(reference)


def dying_before(folder: Path, event: str, name: str) -> dict[str, str]:
    """An environment in which a build dies before an operation on a file or folder whose name begins so."""
    return environment(python_path=before_each(folder, "packer", event, f"'/{name}' in os.fsdecode(arguments[0])"))


@pytest.mark.parametrize("format", ["npy", "tfrecord"])
def test_a_killed_overwrite_goes_on(mixed: Path, tmp_path: Path, format: str) -> None:
    """In formats whose shards are folders or several files too; the second call removes what the first has left."""
    out = tmp_path / "out"
    run_packer("build", mixed, out, "--size", 16, "--limit", 60, "--shard-size", "20kB", "--format", format)
    assert len(list(out.glob("shard-*"))) > 2
    env = dying_before(tmp_path / "hooks", "os.remove", "out/shard-00001")
    again = ("build", mixed, out, *OPTIONS, "--format", format, "--overwrite")
    run_packer(*again, env=env, expect=-signal.SIGKILL)
    run_packer("verify", out, "--deep")
    manifest = Layout(out).load()
    assert manifest.generations[-1].recipe["size"] == 32
    standing = [(out / entry.name).stat() for entry in manifest.entries]
    run_packer(*again)
    assert [(one.st_ino, one.st_mtime_ns) for one in standing] == [
        (one.st_ino, one.st_mtime_ns) for one in ((out / entry.name).stat() for entry in manifest.entries)
    ]
    run_packer("build", mixed, tmp_path / "whole", *OPTIONS, "--format", format)
    assert fingerprints(out) == fingerprints(tmp_path / "whole")


def test_files_of_killed_overwrites_are_removed_by_the_next(tmp_path: Path) -> None:
    """The working folder was deleted by hand, or not copied, so nothing finishes them."""
    source, out = write_images(tmp_path / "source", NAMES), tmp_path / "out"
    options = ("--shard-size", "4kB", "--engine", "inline", "--quiet")
    run_packer("build", source, out, "--size", 8, *options)
    for number, (size, event, name, standing) in enumerate(
        [
            (10, "os.remove", "out/shard-00000", 10),
            (12, "os.rename", "manifest.json", 10),
            (14, "os.link", "index/", 10),
        ]
    ):
        env = dying_before(tmp_path / f"hooks-{number}", event, name)
        run_packer("build", source, out, "--size", size, *options, "--overwrite", env=env, expect=-signal.SIGKILL)
        shutil.rmtree(out / ".build")
        assert [sample["image"].shape[0] for sample in read_samples(out)] == [standing] * len(NAMES)
        assert packer.verify(out, deep=True, progress=False).unlisted
    run_packer("build", source, out, "--size", 16, *options, "--overwrite")
    run_packer("build", source, tmp_path / "whole", "--size", 16, *options)
    assert fingerprints(out) == fingerprints(tmp_path / "whole")


def test_shards_without_a_manifest_are_nobodys_leftovers(tmp_path: Path) -> None:
    """They may be all that is left of a dataset: no build deletes them."""
    source, out = write_images(tmp_path / "source", NAMES), tmp_path / "out"
    run_packer("build", source, out, "--size", 8)
    (out / "manifest.json").rename(tmp_path / "manifest.json")
    before = sorted(path.name for path in out.iterdir())
    run_packer("build", source, out, "--size", 16, "--overwrite", expect=2)
    assert sorted(path.name for path in out.iterdir()) == before


@pytest.mark.slow
@pytest.mark.parametrize("format", ["lmdb", "npy"])
def test_kills_at_twenty_random_moments(mixed: Path, tmp_path: Path, builds: list[Any], format: str) -> None:
    env = environment(python_path=TESTS, **{LOG: str(tmp_path / "log")})
    slow = ("--steps", "decode,resize,support.steps:log_items,support.steps:slow", "--shuffle", "3", "--format", format)
    run_packer("build", mixed, tmp_path / "whole", *OPTIONS, *slow, "--engine", "inline", env=env)
    (tmp_path / "log").unlink()
    rng = random.Random(0)
    out = tmp_path / "out"
    progress = Progress(out, tmp_path / "log")
    kills = 0
    while kills < 20:
        builds.append(start_packer("build", mixed, out, *OPTIONS, *slow, "--workers", rng.choice([1, 2, 5]), env=env))
        lines = len(read_log(tmp_path / "log"))
        target = rng.choice(["lines", "parts", "shards", "commit", "at once"])
        goal = rng.randrange(1, 20)

        def come(target: str = target, goal: int = goal, lines: int = lines) -> object:
            if target == "lines":
                return len(read_log(tmp_path / "log")) >= lines + goal
            if target == "parts":
                return len(parts_of(out)) > goal % 4
            if target == "shards":
                return len(records_of(out)) > goal % 6
            return at_commit(out) if target == "commit" else out.exists()

        wait_for(target, lambda b=builds[-1], come=come: come() or b.poll() is not None, pause_s=0)
        if builds[-1].poll() is not None:
            status, reported = builds[-1].returncode, builds[-1].communicate()[1]
            assert status == 0, reported
            progress.at_end()
            assert fingerprints(out) == fingerprints(tmp_path / "whole")
            out.rename(tmp_path / f"done-{kills}-{len(builds)}")
            (tmp_path / "log").unlink()
            progress = Progress(out, tmp_path / "log")
            continue
        victims = [builds[-1].pid, *rng.choice([[], workers_of(builds[-1].pid)])]
        kill(*victims)
        builds[-1].communicate()
        wait_for("the workers' end", lambda: not workers_in(out))
        kills += 1
        if (out / "manifest.json").exists():  # it was killed behind its commit
            check = run_packer("build", mixed, out, *OPTIONS, *slow, env=env)
            assert check.returncode == 0
            assert fingerprints(out) == fingerprints(tmp_path / "whole")
            out.rename(tmp_path / f"done-{kills}-{len(builds)}")
            (tmp_path / "log").unlink()
            progress = Progress(out, tmp_path / "log")
        elif (out / ".build" / "plan.json").exists() and format == "lmdb":
            progress.after_kill()
    run_packer("build", mixed, out, *OPTIONS, *slow, env=env)
    check_whole(out)
    assert fingerprints(out) == fingerprints(tmp_path / "whole")
    assert len(read_jsonl(file_of(out, "items.jsonl"))) == IMAGES + 3
