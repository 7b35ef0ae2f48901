"""What follows when workers die, hang or fail: the schedule by itself, and real steps that misbehave."""

import json
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.builds import OPTIONS, TESTS, write_images
from support.command import environment, file_of, read_jsonl, run_packer, start_packer
from support.hooks import DIE, at_start_of, before_each
from support.packed import check_whole, fingerprints, read_samples
from support.processes import is_alive, kill, wait_for, workers_in, workers_of
from support.steps import LOG, ODD_VALUES, read_log

import packer
from packer.jobs.engines.base import Ended, Event
from packer.jobs.plan import Task, Unit, Verdicts
from packer.jobs.schedule import ItemTally, Schedule
from packer.workspace import Workspace
from shardspec.errors import BuildError

Behaviour = Callable[[Unit, Verdicts, bool], Event]


class FakeEngine:
    """Runs nothing: a function says what becomes of each unit."""

    def __init__(self, behave: Behaviour, places: int = 2) -> None:
        self.behave = behave
        self.places = places
        self.running: deque[Event] = deque()
        self.started: list[Unit] = []
        self.alone: list[bool] = []

    def idle(self) -> int:
        return self.places - len(self.running)

    def start(self, unit: Unit, verdicts: Verdicts, fresh: bool, *, alone: bool = False) -> None:
        assert self.idle()
        assert not (alone and self.running)
        self.started.append(unit)
        self.alone.append(alone)
        self.running.append(self.behave(unit, verdicts, fresh))

    def wait(self) -> Event:
        return self.running.popleft() if self.running else Event("tick")

    def close(self) -> None:
        assert not self.running


TASKS = (Task(0, 3, 0), Task(3, 5, 0))


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    """An empty workspace."""
    workspace = Workspace(tmp_path / ".build")
    workspace.create()
    workspace.create_results(2)
    return workspace


def run(space: Workspace, behave: Behaviour, units: list[Unit] | None = None) -> list[Unit]:
    """Run both tasks, or the units given, and return what was started."""
    engine = FakeEngine(behave)
    seen: list[Event] = []
    Schedule(engine, space, TASKS, seen.append).run(units or [Unit("task", 0), Unit("task", 1)])
    engine.close()
    return engine.started


def test_every_unit_runs_once(space: Workspace) -> None:
    assert run(space, lambda unit, verdicts, fresh: Event("done", unit)) == [Unit("task", 0), Unit("task", 1)]


def test_a_task_whose_worker_dies_runs_again(space: Workspace) -> None:
    deaths = iter([True])

    def behave(unit: Unit, verdicts: Verdicts, fresh: bool) -> Event:
        return Event("died", unit, 1) if unit.number == 0 and next(deaths, False) else Event("done", unit)

    assert run(space, behave).count(Unit("task", 0)) == 2
    assert not list(space.read_verdicts())


def test_an_item_that_brings_down_fresh_workers_by_itself_is_rejected(space: Workspace) -> None:
    def behave(unit: Unit, verdicts: Verdicts, fresh: bool) -> Event:
        if unit.do in ("task", "item") and 4 not in verdicts and (unit.item == 4 or unit == Unit("task", 1)):
            assert unit.do == "task" or fresh
            return Event("died", unit, 4, message="signal 9")
        return Event("done", unit)

    started = run(space, behave)
    assert started.count(Unit("task", 1)) == 2
    assert started.count(Unit("item", 1, 4)) == 4
    assert started.count(Unit("item", 1, 3)) == 1
    assert started[-1] == Unit("join", 1)
    (verdict,) = space.read_verdicts()
    assert (verdict["item"], verdict["step"]) == (4, "worker")
    assert "brought down a worker 3 times, by itself (signal 9)" in verdict["reason"]


def test_what_may_reject_an_item_runs_alone_when_all_else_is_done(space: Workspace) -> None:
    """Items 0 and 2 bring down any worker that is not alone, and item 1 that one, too, at first."""
    deaths = iter([True] * 3)

    def behave(unit: Unit, verdicts: Verdicts, fresh: bool) -> Event:
        if unit == Unit("task", 0):
            return Event("died", unit, 2)
        alone = engine.alone[-1]
        died = unit == Unit("item", 0, 1) and (not alone or next(deaths, False))
        died |= unit.do == "item" and unit.item in (0, 2) and not alone
        return (
            Event("died", unit, unit.item, message="signal 9")
            if died and unit.item not in verdicts
            else Event("done", unit)
        )

    engine = FakeEngine(behave)
    Schedule(engine, space, TASKS, lambda event: None).run([Unit("task", 0), Unit("task", 1)])
    alone = [unit for unit, lonely in zip(engine.started, engine.alone, strict=True) if lonely]
    beside = [unit for unit, lonely in zip(engine.started, engine.alone, strict=True) if not lonely]
    assert sorted(unit.item for unit in alone) == [0, 1, 1, 1, 2]
    assert beside.count(Unit("item", 0, 0)) == 1
    assert beside.count(Unit("item", 0, 2)) == 0, "its task has shown that it needs to be alone"
    assert engine.alone.index(True) > engine.started.index(Unit("task", 1))
    assert engine.started[-1] == Unit("join", 0)
    assert [line["item"] for line in space.read_verdicts()] == [1]


def test_a_shard_whose_worker_dies_again_and_again_is_written_alone(space: Workspace) -> None:
    def behave(unit: Unit, verdicts: Verdicts, fresh: bool) -> Event:
        return Event("done", unit) if engine.alone[-1] or unit.number else Event("died", unit, None)

    engine = FakeEngine(behave)
    Schedule(engine, space, (), lambda event: None).run([Unit("shard", number) for number in range(4)])
    assert engine.started[-1] == Unit("shard", 0)
    assert engine.alone == [False] * (len(engine.alone) - 1) + [True]


def test_a_worker_that_dies_before_it_has_begun_an_item_is_not_the_items_fault(space: Workspace) -> None:
    deaths = iter([True] * 2)

    def behave(unit: Unit, verdicts: Verdicts, fresh: bool) -> Event:
        if unit == Unit("task", 1):
            return Event("died", unit, 3)
        died = unit == Unit("item", 1, 4) and next(deaths, False)
        return Event("died", unit, None) if died else Event("done", unit)

    run(space, behave)
    assert not list(space.read_verdicts())


@pytest.mark.parametrize("unit", [Unit("shard", 3), Unit("item", 1, 4), Unit("task", 0)])
def test_workers_that_always_die_before_they_begin_end_the_job(space: Workspace, unit: Unit) -> None:
    def behave(unit: Unit, verdicts: Verdicts, fresh: bool) -> Event:
        return Event("died", unit, None, message="exit status 1")

    with pytest.raises(BuildError, match=r"exit status 1.*run the same command again to resume"):
        run(space, behave, [unit])
    assert not list(space.read_verdicts())


def test_an_item_that_takes_too_long_is_rejected_and_its_task_runs_again_without_it(space: Workspace) -> None:
    def behave(unit: Unit, verdicts: Verdicts, fresh: bool) -> Event:
        if unit == Unit("task", 0) and 2 not in verdicts:
            return Event("timeout", unit, 2, message="took longer than 5 s")
        return Event("done", unit)

    assert run(space, behave).count(Unit("task", 0)) == 2
    (verdict,) = space.read_verdicts()
    assert verdict == {"item": 2, "step": "worker", "reason": "took longer than 5 s"}
    # A resumed build remembers.
    seen: list[Any] = []

    def remember(unit: Unit, verdicts: Verdicts, fresh: bool) -> Event:
        seen.append(dict(verdicts))
        return Event("done", unit)

    run(space, remember, [Unit("task", 0)])
    assert seen == [{2: ("worker", "took longer than 5 s")}]


def test_a_failure_ends_the_job(space: Workspace) -> None:
    with pytest.raises(BuildError, match="disk full"):
        run(space, lambda unit, verdicts, fresh: Event("failed", unit, message="disk full"))


# Real processes from here on.

NAMES = [f"{number:02d}.png" for number in range(36)]


def images_with(folder: Path, *bad: str) -> Path:
    """Two tasks of images, the bad ones in the second."""
    return write_images(folder / "source", sorted([*NAMES, *bad]))


def build_with(
    folder: Path,
    step: str,
    *more: object,
    expect: int = 0,
    source: Path | None = None,
    hooks: Sequence[Path] = (),
) -> Any:
    """Run the command with a step of `support.steps` after decoding; the result as JSON."""
    env = environment(python_path=[*hooks, TESTS], **{LOG: str(folder / "log")})
    values = (
        source or folder / "source",
        folder / "out",
        "--steps",
        f"decode,support.steps:{step}",
        "--json",
        "--quiet",
    )
    done = run_packer("build", *values, "--workers", 2, *more, env=env, expect=expect)
    return json.loads(done.stdout) if done.stdout else done.stderr


def rejects_of(out: Path) -> dict[str, str]:
    """Why each rejected item was."""
    return {line["item"]: f"{line['step']}: {line['reason']}" for line in read_jsonl(file_of(out, "rejects.jsonl"))}


def test_a_step_that_kills_its_process_costs_exactly_its_item(tmp_path: Path) -> None:
    images_with(tmp_path, "33-bad.png")
    counts = build_with(tmp_path, "kill_itself")
    assert (counts["items"], counts["packed_items"], counts["rejected_items"]) == (37, 36, 1)
    rejects = rejects_of(tmp_path / "out")
    assert rejects["33-bad.png"].startswith(
        "worker: brought down a worker 3 times, by itself (signal 9, as when memory runs out"
    )
    assert read_log(tmp_path / "log") == ["33-bad.png"] * 5  # twice in its task, three times alone
    check_whole(tmp_path / "out")


def test_no_number_of_workers_decides_which_items_are_rejected(tmp_path: Path) -> None:
    """Items for which there is memory enough only while no other worker is there."""
    images_with(tmp_path, "02-bad.png", "33-bad.png")
    counts = build_with(tmp_path, "kill_beside_others")
    assert (counts["packed_items"], counts["rejected_items"]) == (38, 0)
    assert read_log(tmp_path / "log"), "they have been killed beside others"
    build = ("build", tmp_path / "source", tmp_path / "one", "--steps", "decode,support.steps:kill_beside_others")
    env = environment(python_path=TESTS, **{LOG: str(tmp_path / "none")})
    run_packer(*build, "--workers", 1, env=env)
    assert read_log(tmp_path / "none") == []
    assert fingerprints(tmp_path / "one") == fingerprints(tmp_path / "out")


@pytest.mark.parametrize(
    ("step", "lost", "follows"),
    [
        (
            "kill_itself",
            "died at 'b-bad.png' (signal 9, as when memory runs out): ",
            [
                "its task is run again",
                "its task is run again, item by item",
                "the item is tried again by itself (time 2 of 3)",
                "the item is tried again by itself (time 3 of 3)",
                "the item is rejected",
            ],
        ),
        ("hang", "was ended at 'b-bad.png' (took longer than 2 s): ", ["the item is rejected"]),
    ],
)
def test_each_worker_that_is_lost_is_reported_in_a_line(
    tmp_path: Path, step: str, lost: str, follows: list[str]
) -> None:
    source = write_images(tmp_path / "source", ["a.png", "b-bad.png", "c.png"])
    steps = ("--steps", f"decode,support.steps:{step}", "--item-timeout", 2, "--max-rejects", "50%")
    env = environment(python_path=TESTS, **{LOG: str(tmp_path / "log")})
    done = run_packer("build", source, tmp_path / "out", *steps, env=env)
    reported = [line for line in done.stderr.splitlines() if line.startswith("packer: ")]
    assert reported == [f"packer: a worker process {lost}{what}" for what in follows]
    assert "packing: 3/3 items, " in done.stderr
    assert ", 1 reject" in done.stderr, "what the first item gave counts once, though its task ran again"


def test_the_progress_counts_every_item_once() -> None:
    """A task that runs again, or item by item, gives its items again; what they give is then what counts."""
    tally, task = ItemTally([Task(0, 3, 0), Task(3, 4, 0)]), Unit("task", 0)

    def ends(unit: Unit, *ended: tuple[int, int, str]) -> Event:
        return Event("items", unit, ends=[Ended(*one) for one in ended])

    assert tally.take(ends(task, (0, 2, ""), (1, 1, ""))) == (2, 3, 0)
    assert tally.take(Event("died", task, 2)) == (0, 0, 0)
    assert tally.take(ends(task, (0, 2, ""))) == (0, 0, 0)
    assert tally.take(ends(Unit("item", 0, 1), (1, 0, "gone"))) == (0, -1, 1)
    assert tally.take(Event("done", Unit("item", 0, 1))) == (0, 0, 0)
    assert tally.take(ends(Unit("item", 0, 2), (2, 0, "gone"))) == (1, 0, 1)
    assert tally.take(Event("tick")) == (0, 0, 0)
    assert tally.take(Event("done", Unit("join", 0))) == (0, 0, 0)
    assert tally.take(ends(Unit("task", 1), (3, 0, ""))) == (1, 0, 0), "an item without samples on purpose"


def test_a_worker_that_dies_while_it_joins_a_tasks_items_costs_nothing(tmp_path: Path) -> None:
    images_with(tmp_path, "33-bad.png")
    killed = str(tmp_path / "killed")
    condition = f"'.item-00000034' in str(arguments[0]) and 'partial' not in str(arguments[0]) and not os.path.exists({killed!r})"
    hooks = before_each(
        tmp_path / "hooks", "packer.jobs.worker", "os.remove", condition, f"open({killed!r}, 'x').close()\n{DIE}"
    )
    counts = build_with(tmp_path, "kill_itself", hooks=[hooks])
    assert Path(killed).exists()
    assert (counts["packed_items"], counts["rejected_items"]) == (36, 1)
    check_whole(tmp_path / "out")


@pytest.mark.parametrize("step", ["hang", "hang_hard"])
def test_a_step_that_hangs_costs_exactly_its_item(tmp_path: Path, step: str) -> None:
    images_with(tmp_path, "33-bad.png")
    counts = build_with(tmp_path, step, "--item-timeout", "3")
    assert (counts["packed_items"], counts["rejected_items"]) == (36, 1)
    assert rejects_of(tmp_path / "out") == {"33-bad.png": "worker: took longer than 3 s"}
    check_whole(tmp_path / "out")


@pytest.mark.parametrize(
    ("step", "reported"),
    [
        ("fail", "support.steps:fail: RuntimeError: the step does not like this image"),
        ("fail_late", "support.steps:fail_late: RuntimeError: the second sample is broken"),
        ("give_nothing", "support.steps:give_nothing: gave no sample (received 1 sample)"),
        ("exit_early", "support.steps:exit_early: SystemExit: 0"),
        ("give_no_dict", "support.steps:give_no_dict: expected samples as dicts, found ndarray"),
        (
            "add_field",
            "encode: expected the same fields as in most items, found others: field 'extra' is new",
        ),
    ],
)
def test_a_step_that_misbehaves_on_an_item_costs_exactly_that_item(tmp_path: Path, step: str, reported: str) -> None:
    images_with(tmp_path, "33-bad.png", "05-bad.png")
    counts = build_with(tmp_path, step, "--max-rejects", "100%")
    assert (counts["packed_items"], counts["rejected_items"]) == (36, 2)
    rejects = rejects_of(tmp_path / "out")
    assert set(rejects) == {"05-bad.png", "33-bad.png"}
    assert all(why.startswith(reported) for why in rejects.values()), rejects
    manifest = check_whole(tmp_path / "out")
    assert "extra" not in manifest.schema
    keys = [sample["key"] for sample in read_samples(tmp_path / "out")]
    assert "00000005-000000" not in keys
    assert len(keys) == 36


@pytest.mark.parametrize("which", sorted(ODD_VALUES))
def test_a_value_that_cannot_be_stored_costs_exactly_its_item(tmp_path: Path, which: str) -> None:
    write_images(tmp_path / "source", ["a.png", "b-bad.png", "c.png"])
    odd = {"use": "support.steps:give_odd", "which": which}
    result = packer.build(
        tmp_path / "source", tmp_path / "out", steps=["decode", odd], engine="inline", progress=False, max_rejects=1
    )
    assert (result.counts.packed_items, result.counts.rejected_items) == (2, 1)
    (why,) = rejects_of(tmp_path / "out").values()
    assert why.startswith("encode: "), why
    check_whole(tmp_path / "out")


def test_a_task_that_ran_item_by_item_has_the_same_bytes(tmp_path: Path) -> None:
    """What differs from the rest of its task is a reject, whether the task ran as a whole or item by item."""
    images_with(tmp_path, "33-bad.png", "34-worst.png")
    counts = build_with(tmp_path, "add_field_or_kill", "--max-rejects", "100%")
    assert counts["rejected_items"] == 2
    rejects = rejects_of(tmp_path / "out")
    assert rejects["33-bad.png"] == (
        "encode: expected the same fields as in most items, found others: field 'extra' is new"
    )
    assert rejects["34-worst.png"].startswith("worker: brought down a worker 3 times")
    check_whole(tmp_path / "out")


def test_the_first_reject_ends_the_build_if_it_is_asked_to(tmp_path: Path) -> None:
    images_with(tmp_path, "33-bad.png")
    reported = build_with(tmp_path, "fail", "--on-error", "fail", expect=1)
    assert "'33-bad.png'" in reported
    assert "--on-error is fail" in reported
    assert "the step does not like this image" in reported
    assert not (tmp_path / "out" / "manifest.json").exists()
    counts = build_with(tmp_path, "fail", "--on-error", "skip")
    assert counts["rejected_items"] == 1


def running(folder: Path, *more: object, step: str = "log_items,support.steps:slow") -> Any:
    """Start a build that takes some seconds, and wait until both of its workers are at work."""
    env = environment(python_path=TESTS, **{LOG: str(folder / "log")})
    values = (folder / "source", folder / "out", "--steps", f"decode,support.steps:{step}", "--workers", 2, *more)
    build = start_packer("build", *values, env=env)
    wait_for("both workers at work", lambda: len(read_log(folder / "log")) > 4 and len(workers_of(build.pid)) == 2)
    return build


def finish(build: Any) -> tuple[int, str]:
    """Wait for a build that was started; its exit status and messages."""
    _, reported = build.communicate(timeout=300)
    return build.returncode, reported


def test_a_worker_killed_from_outside_costs_nothing(tmp_path: Path, builds: list[Any]) -> None:
    images_with(tmp_path)
    builds.append(running(tmp_path))
    for _ in range(2):
        victim = wait_for("a worker", lambda: workers_of(builds[0].pid))[0]
        kill(victim)
        wait_for(
            "another in its place", lambda v=victim: v not in workers_of(builds[0].pid) or builds[0].poll() is not None
        )
    status, reported = finish(builds[0])
    assert status == 0, reported
    manifest = check_whole(tmp_path / "out")
    assert manifest.generations[0].counts.packed_items == len(NAMES)
    assert not read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
    assert not workers_in(tmp_path / "out")


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_workers_and_says_how_to_resume(
    tmp_path: Path, builds: list[Any], sign: signal.Signals
) -> None:
    source = images_with(tmp_path / "with space")
    builds.append(running(tmp_path / "with space"))
    workers = workers_of(builds[0].pid)
    os.killpg(builds[0].pid, sign)
    status, reported = finish(builds[0])
    assert status == 130
    assert "Traceback" not in reported
    assert f"run the same command again to resume (packer build '{source}'" in reported
    wait_for("the workers' end", lambda: not any(map(is_alive, workers)))
    out = tmp_path / "with space" / "out"
    assert not (out / "manifest.json").exists()
    assert "expected a packed dataset, found an unfinished build" in run_packer("inspect", out, expect=2).stderr


def test_an_interrupted_dry_run_has_nothing_to_resume(tmp_path: Path, builds: list[Any]) -> None:
    write_images(tmp_path / "source", ["a-bad.png"])
    env = environment(python_path=TESTS, **{LOG: str(tmp_path / "log")})
    steps = "decode,support.steps:log_items,support.steps:hang"
    builds.append(start_packer("build", tmp_path / "source", tmp_path / "out", "--steps", steps, "--dry-run", env=env))
    wait_for("the first item", lambda: read_log(tmp_path / "log"))
    os.kill(builds[0].pid, signal.SIGINT)
    assert finish(builds[0]) == (130, "packer: interrupted\n")


@pytest.mark.parametrize("step", ["slow", "hang", "hang_hard", "start_child"])
def test_workers_end_with_their_parent_whatever_they_are_doing(tmp_path: Path, builds: list[Any], step: str) -> None:
    write_images(tmp_path / "source", ["a-bad.png", "b.png", *NAMES])
    env = environment(python_path=TESTS, **{LOG: str(tmp_path / "log")})
    steps = f"decode,support.steps:log_items,support.steps:{step}"
    builds.append(
        start_packer("build", tmp_path / "source", tmp_path / "out", "--steps", steps, "--workers", 2, env=env)
    )
    more = step in ("hang_hard", "start_child")

    def begun() -> bool:
        lines = read_log(tmp_path / "log")
        return len(lines) > 2 and (not more or any(map(str.isdecimal, lines)))

    wait_for("workers at work", begun)
    workers = wait_for("workers", lambda: workers_of(builds[0].pid))
    children = [int(line) for line in read_log(tmp_path / "log") if line.isdecimal()]
    os.kill(builds[0].pid, signal.SIGKILL)
    builds[0].wait()
    wait_for("the end of all workers", lambda: not any(map(is_alive, workers)) and not workers_in(tmp_path / "out"))
    wait_for("the end of what they started", lambda: not any(map(is_alive, children)))


def test_a_build_that_was_stopped_for_a_while_blames_no_item(tmp_path: Path, builds: list[Any]) -> None:
    """A suspended job (Slurm, Ctrl-Z) goes on where it was; no item has taken too long."""
    images_with(tmp_path)
    builds.append(running(tmp_path, "--item-timeout", "2"))
    workers = workers_of(builds[0].pid)
    everyone = [builds[0].pid, *workers]
    for process in everyone:
        os.kill(process, signal.SIGSTOP)
    signal.sigtimedwait([], 4)
    for process in everyone:
        os.kill(process, signal.SIGCONT)
    status, reported = finish(builds[0])
    assert status == 0, reported
    assert not read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))


def test_a_worker_that_cannot_start_ends_the_build_with_its_last_words(tmp_path: Path, mixed: Path) -> None:
    env = environment(python_path=at_start_of(tmp_path, "packer.jobs.worker", "sys.exit('no graphics card today')"))
    done = run_packer("build", mixed, tmp_path / "out", *OPTIONS, env=env, expect=1)
    assert "worker processes do not start: exit status 1: " in done.stderr
    assert "no graphics card today" in done.stderr
    run_packer("build", mixed, tmp_path / "out", *OPTIONS)
    check_whole(tmp_path / "out")
