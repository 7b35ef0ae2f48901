"""`--engine srun` on a real Slurm: whatever is killed, the dataset is that of an undisturbed build on one host."""

import os
import random
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.builds import TESTS, write_images
from support.cluster_builds import OPTIONS, Run, parent_of, program, rounds, variable_of
from support.command import arguments, environment, run_packer
from support.packed import check_whole, fingerprints
from support.processes import command_of, is_alive, wait_for, workers_in
from support.slurm import Slurm
from support.steps import LOG, read_log

pytestmark = pytest.mark.slurm

AGENT = b"packer\0work"


class SlurmRun(Run):
    """A build in an allocation of all nodes; the command is given `times` times, one after another."""

    def __init__(
        self, slurm: Slurm, images: Path, folder: Path, *more: str, times: int = 1, held: bool = False
    ) -> None:
        self.slurm = slurm
        self._times = times
        super().__init__("srun", images, folder, more, slurm.environment, held=held)

    def started_by(self) -> list[str]:
        script = "; ".join([shlex.join(self.command)] * self._times) + "; exit $?"
        return ["salloc", "--quiet", "--nodes=3", "--exclusive", "--no-kill", "bash", "-c", script]

    def node_of(self, worker: int) -> str:
        return variable_of(worker, "SLURMD_NODENAME")

    def agents(self, node: str | None = None) -> list[int]:
        found = [process for process in workers_in(self.out, AGENT) if not program(process).endswith(b"srun")]
        return [process for process in found if node is None or self.node_of(process) == node]

    def sruns(self) -> list[int]:
        """Return the ``srun`` of each node, the leaders of their groups."""
        found = [process for process in workers_in(self.out, AGENT) if program(process).endswith(b"srun")]
        return [process for process in found if os.getpgid(process) == process]

    def srun_of(self, worker: int) -> int:
        """The ``srun`` that speaks for a worker."""
        node = f"--nodelist={self.node_of(worker)}".encode()
        return next(process for process in self.sruns() if node in command_of(process).split(b"\0"))


@pytest.fixture
def run(slurm: Slurm, images: Path, tmp_path: Path) -> Iterator[SlurmRun]:
    with SlurmRun(slurm, images, tmp_path) as run:
        yield run


def test_an_undisturbed_build_uses_all_nodes(run: SlurmRun, expected: dict[str, str]) -> None:
    wait_for("workers on all nodes", lambda: {run.node_of(worker) for worker in run.workers()} >= set(run.slurm.nodes))
    assert "died" not in run.finish(expected)


def test_a_killed_worker_is_replaced(run: SlurmRun, expected: dict[str, str]) -> None:
    os.kill(run.at_work(), signal.SIGKILL)
    errors = run.finish(expected)
    assert "a worker process died at" in errors
    assert "signal 9" in errors


def test_a_stopped_worker_goes_on(run: SlurmRun, expected: dict[str, str]) -> None:
    worker = run.at_work()
    os.kill(worker, signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(worker, signal.SIGCONT)
    assert "died" not in run.finish(expected)


def test_a_killed_srun_blames_no_item(run: SlurmRun, expected: dict[str, str]) -> None:
    os.kill(run.srun_of(run.at_work()), signal.SIGKILL)
    assert ".png" not in run.finish(expected)


def test_the_step_of_a_killed_srun_is_over_when_the_build_is(run: SlurmRun, expected: dict[str, str]) -> None:
    """Slurm would let it run for minutes once all processes of `srun` are gone."""
    os.killpg(run.srun_of(run.at_work()), signal.SIGKILL)
    assert ".png" not in run.finish(expected)


def test_a_killed_agent_takes_its_worker_along(run: SlurmRun, expected: dict[str, str]) -> None:
    worker = run.at_work()
    os.kill(parent_of(worker), signal.SIGKILL)
    wait_for("the end of its worker", lambda: not is_alive(worker))
    assert ".png" not in run.finish(expected)


def test_a_lost_node_gives_its_work_back_and_blames_no_item(run: SlurmRun, expected: dict[str, str]) -> None:
    """All that runs there dies at the same moment."""
    run.at_work("n2")
    run.slurm.kill_node("n2")
    for process in [*run.agents("n2"), *run.workers("n2")]:
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)
    errors = run.finish(expected)
    assert "the agent on n2 ended" in errors
    assert ".png" not in errors


def test_a_daemon_that_comes_back_late_changes_nothing(
    slurm: Slurm, images: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    """Slurm has given its node up by then. Its workers run on meanwhile, and no new one can be started."""
    with SlurmRun(slurm, images, tmp_path, held=True) as run:
        worker = run.at_work("n2")
        slurm.kill_node("n2")
        os.kill(worker, signal.SIGKILL)
        wait_for("the node's end", lambda: slurm.states()["n2"].startswith("down"), 0.2)
        slurm.start_node("n2")
        run.gate.touch()
        run.finish(expected)


def test_a_cancelled_allocation_ends_the_build_which_goes_on_in_another(
    slurm: Slurm, images: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    """As when its time is up: in the middle of items."""
    with SlurmRun(slurm, images, tmp_path, held=True) as run:
        run.at_work()
        slurm.run("scancel", *slurm.jobs())
        status, errors = run.end()
        assert status == 1
        assert "run the same command again" in errors
        wait_for("the end of all workers", lambda: not run.workers())
        run.gate.touch()
    with SlurmRun(slurm, images, tmp_path) as again:
        again.finish(expected)


def test_a_killed_build_goes_on_in_the_same_allocation(
    slurm: Slurm, images: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    """An agent that it left behind, stopped, loses its lease."""
    with SlurmRun(slurm, images, tmp_path, times=2) as run:
        worker = run.at_work()
        os.kill(worker, signal.SIGSTOP)
        os.kill(parent_of(worker), signal.SIGSTOP)
        os.kill(parent_of(run.sruns()[0]), signal.SIGKILL)
        run.finish(expected)
        wait_for("the end of the stopped worker", lambda: not is_alive(worker))


def test_a_second_build_says_that_the_first_is_at_work(run: SlurmRun, expected: dict[str, str]) -> None:
    worker = run.at_work()
    os.kill(worker, signal.SIGSTOP)  # so that the first is not finished meanwhile
    second = run.slurm.run(*run.command[:-2], expect=1, env=run.env)
    os.kill(worker, signal.SIGCONT)
    assert "at work here" in second
    run.finish(expected)


@pytest.mark.slow
def test_with_all_nodes_lost_the_same_command_goes_on(
    slurm: Slurm, images: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    with SlurmRun(slurm, images, tmp_path, "--workers-per-node", "1") as run:
        run.at_work()
        for node in slurm.nodes:
            slurm.kill_node(node)
        for agent in run.agents():
            os.kill(agent, signal.SIGKILL)
        status, errors = run.end()
        assert status == 1
        assert "run the same command again" in errors.splitlines()[-1]
    slurm.rest()
    with SlurmRun(slurm, images, tmp_path) as again:
        again.finish(expected)


def test_an_item_that_kills_is_rejected_as_on_one_host(slurm: Slurm, tmp_path: Path) -> None:
    names = [f"a/{number:02d}.png" for number in range(34)] + ["a/bad.png"]
    source = write_images(tmp_path / "few", names)
    steps = ("--steps", "decode,resize,support.steps:kill_itself", "--max-rejects", "1.0")
    log = {LOG: str(tmp_path / "log")}
    env = environment(python_path=TESTS, **log)
    run_packer("build", source, tmp_path / "one", *OPTIONS, *steps, env=env)
    command = arguments("build", source, tmp_path / "many", *OPTIONS, *steps, "--engine", "srun")
    slurm.run("salloc", "--nodes=3", "--exclusive", *command, env=env)
    assert fingerprints(tmp_path / "many") == fingerprints(tmp_path / "one")


def test_an_item_that_hangs_hard_is_ended(slurm: Slurm, tmp_path: Path) -> None:
    """Its worker answers no request, and ends for no closed input."""
    source = write_images(tmp_path / "few", ["a/0.png", "a/bad.png"])
    steps = ("--steps", "decode,resize,support.steps:hang_hard", "--max-rejects", "1.0", "--item-timeout", "1")
    env = environment(python_path=TESTS, **{LOG: str(tmp_path / "log")})
    command = arguments("build", source, tmp_path / "out", *OPTIONS, *steps, "--engine", "srun")
    slurm.run("salloc", "--nodes=1", "--exclusive", *command, env=env)
    counts = check_whole(tmp_path / "out")
    assert counts.samples == 1
    assert not is_alive(int(read_log(tmp_path / "log")[0]))


FAULTS: dict[str, Callable[[SlurmRun, random.Random], None]] = {
    "worker": lambda run, rng: _kill(run.workers(), rng),
    "agent": lambda run, rng: _kill(run.agents(), rng),
    "srun": lambda run, rng: _kill(run.sruns(), rng),
    "group of srun": lambda run, rng: _kill(run.sruns(), rng, os.killpg),
    "coordinator": lambda run, rng: _kill([parent_of(process) for process in run.sruns()], rng),
    "slurmd": lambda run, rng: run.slurm.kill_node(rng.choice(run.slurm.nodes)),
}


def _kill(processes: list[int], rng: random.Random, how: Callable[[int, int], None] = os.kill) -> None:
    if processes:
        with suppress(ProcessLookupError):
            how(rng.choice(processes), signal.SIGKILL)


@pytest.mark.slow
def test_faults_at_random_moments(slurm: Slurm, images: Path, tmp_path: Path, expected: dict[str, str]) -> None:
    for number, rng in rounds("under srun", 0.4):
        folder = tmp_path / str(number)
        folder.mkdir()
        faults = rng.sample(sorted(FAULTS), rng.choice((1, 1, 2, 3)))
        print(f"round {number}: {', '.join(faults)}", flush=True)
        with SlurmRun(slurm, images, folder) as run:
            for fault in faults:
                time.sleep(rng.uniform(0, 3))
                with suppress(OSError):
                    FAULTS[fault](run, rng)
            run.end()
        slurm.rest()
        with SlurmRun(slurm, images, folder) as again:
            again.finish(expected)
