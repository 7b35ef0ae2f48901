"""`--engine srun` on a real Slurm: whatever is killed, the dataset is that of an undisturbed build on one host."""

import os
import random
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.builds import TESTS, write_pictures
from support.cluster_builds import OPTIONS, Run, parent_of, program, rounds, variable_of
from support.command import arguments, environment, run_packer
from support.packed import check_whole, fingerprints
from support.processes import command_of, is_alive, wait_for, workers_in
from support.slurm import Slurm
from support.steps import LOG, read_log

import packer

pytestmark = pytest.mark.slurm

HOST = b"packer.jobs.launchers.host"


class SlurmRun(Run):
    """A build in an allocation of all nodes; the command is given `times` times, one after another."""

    def __init__(
        self, slurm: Slurm, pictures: Path, folder: Path, *more: str, times: int = 1, held: bool = False
    ) -> None:
        self.slurm = slurm
        self._times = times
        super().__init__("srun", pictures, folder, more, slurm.environment, held=held)

    def started_by(self) -> list[str]:
        script = "; ".join([shlex.join(self.command)] * self._times) + "; exit $?"
        return ["salloc", "--quiet", "--nodes=3", "--exclusive", "--no-kill", "bash", "-c", script]

    def node_of(self, worker: int) -> str:
        return variable_of(worker, "SLURMD_NODENAME")

    def hosts(self, node: str | None = None) -> list[int]:
        """The processes beside the workers."""
        found = [process for process in workers_in(self.out, HOST) if not program(process).endswith(b"srun")]
        return [process for process in found if node is None or self.node_of(process) == node]

    def sruns(self) -> list[int]:
        """The ``srun`` of each node, the leaders of their groups."""
        found = [process for process in workers_in(self.out, HOST) if program(process).endswith(b"srun")]
        return [process for process in found if os.getpgid(process) == process]

    def srun_of(self, worker: int) -> int:
        """The ``srun`` that speaks for a worker."""
        node = f"--nodelist={self.node_of(worker)}".encode()
        return next(process for process in self.sruns() if node in command_of(process).split(b"\0"))


@pytest.fixture
def run(slurm: Slurm, pictures: Path, tmp_path: Path) -> Iterator[SlurmRun]:
    with SlurmRun(slurm, pictures, tmp_path) as run:
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


def test_a_killed_srun_costs_its_task_and_blames_no_item(run: SlurmRun, expected: dict[str, str]) -> None:
    os.kill(run.srun_of(run.at_work()), signal.SIGKILL)
    errors = run.finish(expected)
    assert "a worker process died at task" in errors
    assert ".png" not in errors


def test_the_step_of_a_killed_srun_is_cancelled_by_its_number(run: SlurmRun, expected: dict[str, str]) -> None:
    """Slurm itself would let it run on for minutes once all of the processes of `srun` are gone."""
    worker = run.at_work()
    os.killpg(run.srun_of(worker), signal.SIGKILL)
    wait_for("the end of its worker", lambda: not is_alive(worker))
    assert ".png" not in run.finish(expected)


def test_a_killed_host_process_takes_its_worker_along(run: SlurmRun, expected: dict[str, str]) -> None:
    worker = run.at_work()
    os.kill(parent_of(worker), signal.SIGKILL)
    wait_for("the end of its worker", lambda: not is_alive(worker))
    assert ".png" not in run.finish(expected)


def test_a_lost_node_gives_its_work_back_and_blames_no_item(run: SlurmRun, expected: dict[str, str]) -> None:
    """All that runs there dies at the same moment."""
    run.at_work("n2")
    run.slurm.kill_node("n2")
    for process in [*run.hosts("n2"), *run.workers("n2")]:
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)
    errors = run.finish(expected)
    assert "packer: node n2 is lost" in errors
    assert "died" not in errors


def test_a_daemon_that_comes_back_late_changes_nothing(
    slurm: Slurm, pictures: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    """Slurm has given its node up by then. Its workers run on meanwhile, and no new one can be started."""
    with SlurmRun(slurm, pictures, tmp_path, held=True) as run:
        worker = run.at_work("n2")
        slurm.kill_node("n2")
        os.kill(worker, signal.SIGKILL)
        run.wait_for_line("packer: node n2 is lost")
        wait_for("the node's end", lambda: slurm.states()["n2"].startswith("down"), 0.2)
        slurm.start_node("n2")
        run.gate.touch()
        run.finish(expected)


def test_a_cancelled_allocation_ends_the_build_which_goes_on_in_another(
    slurm: Slurm, pictures: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    """As when its time is up: in the middle of items."""
    with SlurmRun(slurm, pictures, tmp_path, held=True) as run:
        run.at_work()
        slurm.run("scancel", *slurm.jobs())
        status, errors = run.end()
        assert status == 1
        assert "run the same command again, in an allocation" in errors
        assert not run.workers()
        run.gate.touch()
    with SlurmRun(slurm, pictures, tmp_path) as again:
        again.finish(expected)


def test_a_killed_build_goes_on_in_the_same_allocation(
    slurm: Slurm, pictures: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    """What it left behind, stopped as well, is cancelled first."""
    with SlurmRun(slurm, pictures, tmp_path, times=2) as run:
        worker = run.at_work()
        os.kill(worker, signal.SIGSTOP)
        os.kill(parent_of(worker), signal.SIGSTOP)
        os.kill(parent_of(run.sruns()[0]), signal.SIGKILL)
        run.finish(expected)
        assert not is_alive(worker)


def test_a_second_build_says_that_the_first_is_at_work(run: SlurmRun, expected: dict[str, str]) -> None:
    worker = run.at_work()
    os.kill(worker, signal.SIGSTOP)  # so that the first is not finished meanwhile
    second = run.slurm.run(*run.command[:-2], expect=1, env=run.env)
    os.kill(worker, signal.SIGCONT)
    assert "another build is at work in this folder" in second
    run.finish(expected)


@pytest.mark.slow
def test_with_all_nodes_lost_the_same_command_goes_on(
    slurm: Slurm, pictures: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    with SlurmRun(slurm, pictures, tmp_path, "--workers-per-node", "1") as run:
        run.at_work()
        for node in slurm.nodes:
            slurm.kill_node(node)
        for host in run.hosts():
            os.kill(host, signal.SIGKILL)
        status, errors = run.end()
        assert status == 1
        assert "run the same command again" in errors.splitlines()[-1]
    slurm.rest()
    with SlurmRun(slurm, pictures, tmp_path) as again:
        again.finish(expected)


def test_an_item_that_kills_is_rejected_as_on_one_host(slurm: Slurm, pictures: Path, tmp_path: Path) -> None:
    names = [f"a/{number:02d}.png" for number in range(34)] + ["a/bad.png"]
    source = write_pictures(tmp_path / "few", names)
    steps = ("--steps", "decode,resize,support.steps:kill_itself", "--max-rejects", "1.0")
    log = {LOG: str(tmp_path / "log")}
    env = environment(python_path=TESTS, **log)
    run_packer("build", source, tmp_path / "one", *OPTIONS, *steps, env=env)
    command = arguments("build", source, tmp_path / "many", *OPTIONS, *steps, "--engine", "srun")
    slurm.run("salloc", "--nodes=3", "--exclusive", *command, env=env)
    assert fingerprints(tmp_path / "many") == fingerprints(tmp_path / "one")


def test_an_item_that_hangs_hard_is_ended(slurm: Slurm, tmp_path: Path) -> None:
    """Its worker answers no request, and ends for no closed input."""
    source = write_pictures(tmp_path / "few", ["a/0.png", "a/bad.png"])
    steps = ("--steps", "decode,resize,support.steps:hang_hard", "--max-rejects", "1.0", "--item-timeout", "1")
    env = environment(python_path=TESTS, **{LOG: str(tmp_path / "log")})
    command = arguments("build", source, tmp_path / "out", *OPTIONS, *steps, "--engine", "srun")
    slurm.run("salloc", "--nodes=1", "--exclusive", *command, env=env)
    counts = check_whole(tmp_path / "out")
    assert counts.samples == 1
    assert not is_alive(int(read_log(tmp_path / "log")[0]))


def test_packed_datasets_are_written_anew_on_the_nodes_as_on_one_host(slurm: Slurm, tmp_path: Path) -> None:
    how: dict[str, Any] = {"size": 16, "label_from": "folder", "shard_size": "20kB", "progress": False}
    names = [f"{'ab'[number % 2]}/{number:02d}.png" for number in range(40)]
    source, whole, other = write_pictures(tmp_path / "source", names), tmp_path / "whole", tmp_path / "other"
    packer.build(source, whole, **how)
    packer.build(write_pictures(tmp_path / "few", ["a/few.png", "b/few.png"]), other, **how)
    (source / "a" / "00.png").write_bytes((source / "b" / "01.png").read_bytes())
    packer.build(source, whole, update=True, **how)

    def commands(folder: Path) -> list[tuple[object, ...]]:
        shutil.copytree(whole, folder / "compact")
        return [
            ("convert", whole, folder / "convert", "--format", "npy"),
            ("merge", whole, other, folder / "merge"),
            ("split", whole, folder / "split", "--by", "source"),
            ("compact", folder / "compact"),
        ]

    for words in commands(tmp_path / "one"):
        run_packer(*words, "--quiet")
    many = [arguments(*words, "--quiet", "--engine", "srun") for words in commands(tmp_path / "many")]
    slurm.run("salloc", "--nodes=2", "--exclusive", "bash", "-ec", "\n".join(map(shlex.join, many)), env=environment())
    assert fingerprints(tmp_path / "many") == fingerprints(tmp_path / "one")
    assert check_whole(tmp_path / "many" / "compact").samples == 40


FAULTS: dict[str, Callable[[SlurmRun, random.Random], None]] = {
    "worker": lambda run, rng: _kill(run.workers(), rng),
    "host process": lambda run, rng: _kill(run.hosts(), rng),
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
def test_faults_at_random_moments(slurm: Slurm, pictures: Path, tmp_path: Path, expected: dict[str, str]) -> None:
    for number, rng in rounds("under srun", 0.4):
        folder = tmp_path / str(number)
        folder.mkdir()
        faults = rng.sample(sorted(FAULTS), rng.choice((1, 1, 2, 3)))
        print(f"round {number}: {', '.join(faults)}", flush=True)
        with SlurmRun(slurm, pictures, folder) as run:
            for fault in faults:
                time.sleep(rng.uniform(0, 3))
                with suppress(OSError):
                    FAULTS[fault](run, rng)
            run.end()
        slurm.rest()
        with SlurmRun(slurm, pictures, folder) as again:
            again.finish(expected)
