"""Arrays on a real Slurm, and what may happen to them: each ends in the bytes of one undisturbed local build."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.cluster import LEASE_S, Case, Shared, share
from support.command import arguments, run_packer
from support.packed import check_whole, fingerprints
from support.processes import PATIENCE_S, is_alive, wait_for
from support.slurm import Slurm

pytestmark = pytest.mark.slurm

REQUEUE_S = 121.0
"""How long Slurm lets the job of a lost node wait until it is started again."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    return share(tmp_path_factory.mktemp("shared"))


class Submitted(Case):
    """A build that was submitted as an array of three."""

    def __init__(self, folder: Path, shared: Shared, slurm: Slurm) -> None:
        super().__init__(folder, shared)
        self.slurm = slurm
        self.env |= slurm.environment
        self.words = (*self.build, "--slurm", "--array", "3", "--workers", "1", "--quiet", "--json")

    def submit(self, *more: str) -> dict[str, str]:
        found: dict[str, str] = json.loads(run_packer("submit", *self.words, *more, env=self.env).stdout)
        return found

    def agents(self, most: int = 3) -> list[int]:
        """The agents, once so many stay at an item."""

        def held() -> list[int]:
            found = [one for one in self.status()["agents"] if not one["ended"] and "bad" in str(one["doing"])]
            return [one["pid"] for one in found if is_alive(one["pid"])] if len(found) >= most else []

        return wait_for(f"{most} agents at an item", held, 0.1)

    def check(self) -> None:
        """The finishing job commits the expected bytes."""
        self.gate.touch()
        try:
            done = self.out / "manifest.json"
            wait_for("the dataset", done.exists, 0.1, PATIENCE_S + REQUEUE_S)
            wait_for("the end of the workspace", lambda: not (self.out / ".build").exists(), 0.1)
        except AssertionError as error:
            logs = "\n".join(f"{path.name}: {path.read_text()}" for path in self.out.with_name("out.slurm").iterdir())
            raise AssertionError(f"{error}\n{self.slurm.jobs()}\n{logs}") from error
        check_whole(self.out)
        assert fingerprints(self.out) == self.shared.expected


@pytest.fixture
def case(slurm: Slurm, shared: Shared, tmp_path: Path) -> Submitted:
    tmp_path.chmod(0o755)
    return Submitted(tmp_path, shared, slurm)


def test_an_array_and_its_finishing_job_do_a_build(case: Submitted) -> None:
    jobs = case.submit()
    case.agents()
    found = case.status()
    assert {one["node"] for one in found["agents"]} == {"n1", "n2", "n3"}
    assert {one["job"] for one in found["agents"]} == {f"{jobs['array_job']}_{n}" for n in range(3)}
    assert {job["number"] for job in found["jobs"]} >= {f"{jobs['array_job']}_0", jobs["finish_job"]}
    refused = run_packer("submit", *case.words, env=case.env, expect=1)
    assert "submitted already, and in Slurm's queue" in refused.stderr
    case.check()
    logs = case.out.with_name("out.slurm")
    assert "nothing is left" in (logs / f"array-{jobs['array_job']}_0.log").read_text()
    assert "128 samples" in (logs / f"finish-{jobs['finish_job']}.log").read_text()
    assert case.status()["stage"] == "finished"


def kill_all(case: Submitted, jobs: dict[str, str]) -> None:
    """Every element fails, and so does the array."""
    for pid in case.agents():
        os.kill(pid, signal.SIGKILL)


def cancel_one(case: Submitted, jobs: dict[str, str]) -> None:
    """One element is cancelled at an item."""
    case.agents()
    case.slurm.run("scancel", f"{jobs['array_job']}_0")


def stop_one(case: Submitted, jobs: dict[str, str]) -> None:
    """One agent stands still for longer than its lease, and goes on."""
    stopped = case.agents()[0]
    os.kill(stopped, signal.SIGSTOP)
    case.gate.touch()
    claims = case.out / ".build" / "claims"
    wait_for("a second attempt", lambda: list(claims.glob("*/task-*.2")) or not claims.exists(), 0.05)
    os.kill(stopped, signal.SIGCONT)


def lose_a_node(case: Submitted, jobs: dict[str, str]) -> None:
    """A node's daemon dies and comes back late; its agent runs on, and its job is given to another."""
    case.agents()
    case.slurm.kill_node("n1")
    wait_for("a lost node", lambda: case.slurm.states()["n1"].startswith("down"), 0.2)
    case.gate.touch()
    case.slurm.start_node("n1")


@pytest.mark.parametrize("fault", [kill_all, cancel_one, stop_one, pytest.param(lose_a_node, marks=pytest.mark.slow)])
def test_whatever_happens_to_an_array_the_bytes_are_the_same(
    case: Submitted, fault: Callable[[Submitted, dict[str, str]], None]
) -> None:
    fault(case, case.submit())
    case.check()


def test_a_cancelled_array_is_resumed_by_the_same_command(case: Submitted) -> None:
    jobs = case.submit()
    case.agents()
    case.slurm.run("scancel", jobs["array_job"], jobs["finish_job"])
    wait_for("an empty queue", lambda: not case.slurm.jobs(), 0.1)
    assert case.claims() == []
    case.submit("--array", "2")
    case.check()


def test_of_two_calls_at_once_one_submits(case: Submitted) -> None:
    calls = [
        subprocess.Popen(
            arguments("submit", *case.words), env=case.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    said = [call.communicate(timeout=120) for call in calls]
    assert sorted(call.returncode for call in calls) == [0, 1], said
    refused = next(err for _, err in said if err)
    assert "another build is at work in this folder" in refused or "submitted already" in refused
    assert len({job.partition("_")[0] for job in case.slurm.jobs()}) == 2
    case.check()


@pytest.mark.slow  # Slurm's shortest limit is a minute
def test_an_agent_whose_time_is_up_in_the_middle_of_an_item_gives_it_back(case: Submitted) -> None:
    jobs = case.submit("--sbatch", "--time=1", "--array", "1")
    case.agents(1)
    log = case.out.with_name("out.slurm") / f"array-{jobs['array_job']}_0.log"
    wait_for("the end of its time", lambda: log.exists() and "the time is up" in log.read_text(), 0.2)
    case.check()
    assert LEASE_S < 60
