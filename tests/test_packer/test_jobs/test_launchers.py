"""`--engine srun` with Slurm's commands replaced by scripts; on a real Slurm, see test_cluster."""

import os
import queue
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.builds import OPTIONS, write_pictures
from support.command import environment, run_packer, start_packer
from support.fake_slurm import NODES, fake_slurm
from support.packed import fingerprints
from support.processes import PATIENCE_S, wait_for, workers_in

from packer.jobs.engines.base import Event
from packer.jobs.engines.remote import RemoteEngine
from packer.jobs.launchers.base import Node, Take
from packer.jobs.launchers.srun import SrunLauncher, parse_counts
from packer.jobs.plan import Unit
from packer.recipe.engines import Team
from packer.workspace import Workspace
from shardspec.errors import BuildError, UsageError

SLEEPER = "support.answering"

posix = pytest.mark.skipif(os.name != "posix", reason="the scripts are for a Unix shell")


@posix
def test_a_build_over_srun_that_loses_a_node_gives_the_same_bytes(mixed: Path, reference: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    loud = [option for option in OPTIONS if option != "--quiet"]
    build = start_packer("build", mixed, out, *loud, "--engine", "srun", env=environment(**fake_slurm(tmp_path)))
    on_n2 = wait_for("a worker there", lambda: [worker for worker in workers_in(out) if _node_of(worker) == b"n2"])
    (tmp_path / "down-n2").touch()
    for worker in on_n2:
        os.kill(worker, signal.SIGKILL)
    _, errors = build.communicate(timeout=PATIENCE_S)
    assert build.returncode == 0, errors
    assert "packer: node n2 is lost" in errors
    assert "died" not in errors
    assert fingerprints(out) == fingerprints(reference)
    started = (tmp_path / "srun.log").read_text().splitlines()
    assert {re.findall(r"--nodelist=(\w+)", line)[0] for line in started} == set(NODES)
    assert all("--overlap" in line and "--mem=0" in line for line in started)
    on_n1 = [line for line in started if "--nodelist=n1" in line and not line.endswith(" true")]
    assert len(on_n1) == 1  # for all its workers


def _node_of(process: int) -> bytes:
    try:
        words = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return b""
    return next((word.partition(b"=")[2] for word in words if word.startswith(b"SLURMD_NODENAME=")), b"")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--engine", "srun"), "engine: srun works inside a Slurm allocation, found none"),
        (("--engine", "ray"), 'pip install "facepack[ray]"'),
        (
            ("--workers-per-node", "2"),
            "--workers-per-node: read only by the srun or ray engine, found engine processes",
        ),
        (("--ray-address", "auto"), "--ray-address: read only by the ray engine, found engine processes"),
        (("--engine", "srun", "--shared-detector"), "--shared-detector: expected the processes engine, found srun"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    env = {name: value for name, value in environment().items() if not name.startswith("SLURM_")}
    if "ray" in arguments:
        hidden = tmp_path / "hidden"
        hidden.mkdir()
        (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['ray'] = None\n")
        env = environment(python_path=hidden)
    source = write_pictures(tmp_path / "source", ["a/0.png"])
    done = run_packer("build", source, tmp_path / "out", *arguments, env=env, expect=2)
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_counts_of_cores_are_read_as_slurm_writes_them() -> None:
    assert parse_counts("72(x2),36") == [72, 72, 36]
    assert parse_counts("8") == [8]
    with pytest.raises(UsageError, match=r"expected counts such as '72\(x2\),36', found 'many'"):
        parse_counts("many")


@posix
def test_a_worker_that_detects_on_a_gpu_has_one_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (fake_slurm(tmp_path) | {"SLURM_GPUS_ON_NODE": "1", "SLURM_MEM_PER_CPU": "800"}).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "logs").mkdir()
    launcher = SrunLauncher(Workspace(tmp_path), Team(8, 60.0, worker_bytes=1, gpus=True))
    assert [node.places for node in launcher.nodes] == [1, 1]
    messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    link = launcher.start(launcher.nodes[1], ["nothing.of.ours"], "worker", {}, messages.put)
    assert messages.get(timeout=PATIENCE_S)["event"] == "ended"
    link.end()
    launcher.close()
    (line,) = (tmp_path / "srun.log").read_text().splitlines()
    assert "--exact --cpus-per-task=2 --gpus-per-task=1 --nodelist=n2" in line
    counts = SrunLauncher(Workspace(tmp_path), Team(8, 60.0, worker_bytes=700 * 2**20)).nodes
    assert [node.places for node in counts] == [2, 2]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SrunLauncher]:
    """A launcher over the scripts, with logs in ``logs``."""
    for name, value in fake_slurm(tmp_path).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "logs").mkdir()
    launcher = SrunLauncher(Workspace(tmp_path), Team(8, 60.0, worker_bytes=1))
    yield launcher
    launcher.close()


class Taken:
    """A worker of a launcher that sleeps, or whatever module it is, and what it has said."""

    def __init__(self, launcher: SrunLauncher, module: str = SLEEPER) -> None:
        self.messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.link = launcher.start(launcher.nodes[0], [module, "{place}"], module, {}, self.messages.put)

    def next(self) -> dict[str, Any]:
        return self.messages.get(timeout=PATIENCE_S)


@posix
def test_the_workers_of_a_node_share_a_step_and_end_one_by_one(slurm: SrunLauncher, tmp_path: Path) -> None:
    first, second, broken = Taken(slurm), Taken(slurm), Taken(slurm, "nothing.of.ours")
    ready = [first.next(), second.next()]
    assert [message["event"] for message in ready] == ["ready", "ready"]
    assert ready[0]["pid"] == ready[1]["pid"]
    assert "No module named 'nothing'" in broken.next()["message"]
    assert broken.next() == {"event": "died"}
    broken.link.send({"unit": []})  # in vain
    first.link.end()
    assert [first.next()["event"] for _ in range(2)] == ["ended", "died"]
    assert first.link.has_ended()
    assert not second.link.has_ended()
    second.link.send({"answer": 7})
    assert second.next() == {"event": "done", "result": {"answer": 7}}
    (line,) = (tmp_path / "srun.log").read_text().splitlines()
    assert "--nodelist=n1" in line
    slurm.close()
    assert {"event": "died"} in iter(second.next, None)
    assert not (tmp_path / "scancel.log").exists()


@posix
def test_a_step_that_does_not_answer_is_cancelled_with_all_its_workers(
    slurm: SrunLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_REPORT_S", "_CLOSE_S", "_TERM_S", "_CANCEL_S"):
        monkeypatch.setattr(f"packer.jobs.launchers.srun.{name}", 0.3)
    first, second = Taken(slurm), Taken(slurm)
    host = [first.next(), second.next()][0]["pid"]
    os.kill(host, signal.SIGSTOP)
    first.link.end()
    assert first.next() == {"event": "died"}
    assert second.next() == {"event": "died"}
    assert second.link.has_ended()
    second.link.end()
    assert wait_for("scancel", (tmp_path / "scancel.log").exists)
    assert (tmp_path / "scancel.log").read_text().split() == ["--quiet", "--signal=KILL", f"7.{host}"]
    third = Taken(slurm)  # in a new step
    assert third.next()["pid"] != host


class FakeLauncher:
    """Nodes of one place each; a test says what they answer, and what becomes of workers."""

    again = "try again"

    def __init__(self, *names: str) -> None:
        self.nodes = [Node(name, 1, 1) for name in names]
        self.down: set[str] = set()
        self.takes: dict[str, Take] = {}
        self.calls: list[str] = []

    def start(self, node: Node, command: object, log: str, variables: object, take: Take) -> "FakeLauncher":
        self.takes[node.name] = take
        return self

    def probe(self, node: Node) -> Any:
        launcher = self

        class Answer:
            def answered(self) -> bool:
                return node.name not in launcher.down

            def close(self) -> None: ...

        return Answer()

    def send(self, request: object) -> None: ...

    def ask_to_end(self) -> None:
        self.calls.append("ask_to_end")

    def end(self, *, wait: bool = True) -> None:
        self.calls.append("end")

    def has_ended(self) -> bool:
        return False

    def describe_end(self) -> str:
        return "the connection ended"

    def close(self) -> None:
        self.calls.append("close")


TASKS = [Unit("task", number) for number in range(3)]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tuple[RemoteEngine, FakeLauncher, Callable[[], list[Event]]]]:
    """An engine at work on three nodes, and its events but for ticks."""
    launcher = FakeLauncher("n1", "n2", "n3")
    engine = RemoteEngine(Workspace(tmp_path), launcher, Team(3, 60.0))
    for task in TASKS:
        engine.start(task, {}, False)
        launcher.takes[f"n{task.number + 1}"]({"event": "ready"})

    def events() -> list[Event]:
        found = []
        while (event := engine.wait()).kind != "tick":
            found.append(event)
        return found

    events()
    yield engine, launcher, events
    engine.close()


def test_a_death_is_blamed_on_the_item_that_the_host_names_and_else_on_none(engine: Any) -> None:
    remote, launcher, events = engine
    launcher.takes["n1"]({"event": "at", "item": 4, "frames": 0})
    assert [(event.kind, event.item) for event in events()] == [("start", 4)]
    launcher.takes["n1"]({"event": "ended", "item": 5, "message": "signal 9"})
    launcher.takes["n1"]({"event": "died"})
    launcher.takes["n2"]({"event": "at", "item": 40, "frames": 0})
    launcher.takes["n2"]({"event": "died"})
    found = {event.unit: event for event in events() if event.kind == "died"}
    assert (found[TASKS[0]].item, found[TASKS[0]].message) == (5, "signal 9")
    assert (found[TASKS[1]].item, found[TASKS[1]].message) == (None, "the connection ended")
    assert remote.idle() == 2


def test_a_lost_node_is_not_used_until_it_is_back(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    remote, launcher, events = engine
    launcher.down.add("n2")
    launcher.takes["n2"]({"event": "ended", "item": 7, "message": "signal 9"})
    launcher.takes["n2"]({"event": "died"})
    found = [(event.kind, event.unit) for event in events() if event.kind != "start"]
    assert found == [("node", None), ("again", TASKS[1])]
    assert remote.idle() == 0
    remote.start(TASKS[1], {}, True, alone=False)  # waits, since no place is free
    launcher.down.clear()
    monkeypatch.setattr(remote._clock, "now_s", lambda: 1000.0)
    launcher.takes["n1"]({"event": "done", "result": {}})
    kinds = [event.kind for event in events()]
    assert "done" in kinds
    assert "node" in kinds
    assert remote.idle() == 1  # the unit that waited has a place


def test_all_nodes_lost_ends_the_build(engine: Any) -> None:
    _, launcher, events = engine
    launcher.down |= {"n1", "n2", "n3"}
    for take in list(launcher.takes.values()):
        take({"event": "died"})
    assert [event.message for event in events() if event.kind == "failed"] == [
        "all nodes are lost (n1, n2, n3): try again"
    ]


def test_no_node_at_all_is_said_at_once(tmp_path: Path) -> None:
    launcher = FakeLauncher("n1")
    with pytest.raises(BuildError, match=r"no node answers \(n1\): try again"):
        RemoteEngine(Workspace(tmp_path), launcher, Team(3, 60.0, lost={"n1"}))
    assert launcher.calls == ["close"]


def test_a_unit_that_is_to_be_alone_first_asks_all_workers_to_end_and_then_waits_for_each(engine: Any) -> None:
    remote, launcher, events = engine
    for number in (1, 2, 3):
        launcher.takes[f"n{number}"]({"event": "done", "result": {}})
    events()
    remote.start(TASKS[0], {}, True, alone=True)
    assert launcher.calls == ["ask_to_end"] * 3 + ["end"] * 3
