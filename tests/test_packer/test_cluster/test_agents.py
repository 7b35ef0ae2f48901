"""Agents that share a build: side by side, killed, stopped past their lease, told to end, out of time."""

import json
import os
import shutil
import signal
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from support.builds import write_images
from support.cluster import LEASE_S, TASKS, Case, Shared, end, share
from support.command import run_packer, start_packer
from support.errors import raises
from support.packed import fingerprints
from support.processes import wait_for

import packer
from packer.workspace import Workspace
from packer.workspace.agents import Claims, read_terms
from packer.workspace.leases import Agent, Lease, Observer, read_agents
from shardspec.errors import BuildLockedError, ResumeMismatchError, UsageError


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    return share(tmp_path_factory.mktemp("shared"))


def test_agents_share_the_tasks_of_a_build(shared: Shared, tmp_path: Path) -> None:
    case = shared.begin(tmp_path)
    case.gate.touch()
    refused = run_packer("work", case.out, env=with_other_numpy(case), expect=1)
    assert f"numpy {version('numpy')} (here 1.0.0)" in refused.stderr
    agents = [case.start_agent("--json", held=False) for _ in range(3)]
    done = [json.loads(end(agent, 0)) for agent in agents]
    assert sum(one["tasks"] for one in done) >= 4
    assert {one["ended"] for one in done} == {"nothing is left"}
    found = case.status()
    assert (found["stage"], found["done"], found["samples"]) == ("packing", 128, 128)
    assert found["tasks_done"] == found["tasks"] == TASKS
    case.finish()
    assert case.status()["stage"] == "finished"
    again = run_packer("work", case.out, env=case.env)
    assert "the build is finished" in again.stdout


def with_other_numpy(case: Case) -> dict[str, str]:
    """The environment of a host on which numpy has another version, as far as its installation says."""
    installed = case.folder / "other" / "numpy-1.0.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.0.0\n")
    return {**case.env, "PYTHONPATH": os.pathsep.join([str(installed.parent), case.env["PYTHONPATH"]])}


def test_everyone_is_told_who_is_at_work_until_it_is_killed(shared: Shared, tmp_path: Path) -> None:
    case = shared.begin(tmp_path)
    agent = case.start_agent()
    for command in ("build", "submit"):
        refused = run_packer(command, *case.build, "--quiet", env=case.env, expect=1)
        assert f"1 agent is at work here (process {agent.pid} on" in refused.stderr
        assert "packer status" in refused.stderr
    (seen,) = case.status()["agents"]
    assert (seen["pid"], seen["state"], seen["workers"]) == (agent.pid, "at work", 1)
    assert "bad.png" in run_packer("status", case.out, env=case.env).stdout
    assert case.status()["running"]
    agent.kill()
    end(agent, -signal.SIGKILL)
    check_that_another_takes_over(case)
    case.finish()


def test_an_agent_that_was_stopped_wakes_up_after_its_successor_has_finished(shared: Shared, tmp_path: Path) -> None:
    """Its workers have gone on meanwhile."""
    case = shared.begin(tmp_path)
    lost = case.start_agent()
    lost.send_signal(signal.SIGSTOP)
    check_that_another_takes_over(case)
    case.finish()
    lost.send_signal(signal.SIGCONT)
    assert "the build is finished" in end(lost, 0)
    assert fingerprints(case.out) == shared.expected
    assert not (case.out / ".build").exists()


def check_that_another_takes_over(case: Case) -> None:
    """What a lost agent had in hand is free for others."""
    case.gate.touch()
    end(case.start_agent(held=False), 0)
    assert case.claims() == []
    assert len(list(Workspace(case.out / ".build").root.glob("claims/*/*.2"))) >= 1


def test_an_agent_alone_goes_on_after_it_was_stopped_past_its_lease(shared: Shared, tmp_path: Path) -> None:
    case = shared.begin(tmp_path)
    case.env["PACKER_LEASE_S"] = "0.5"
    agent = case.start_agent()
    os.kill(agent.pid, signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(agent.pid, signal.SIGCONT)
    case.gate.touch()
    assert "nothing is left" in end(agent, 0)
    case.finish()


def test_what_others_have_taken_after_a_lease_is_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = Workspace(tmp_path / ".build").of_plan("plan")
    space.claims.mkdir(parents=True)
    space.agents.mkdir()
    first, second = (Claims(space.claims, name, "task", 3) for name in ("first", "second"))
    assert [first.take(number) for number in range(3)] == [True] * 3
    second.look()
    observer = Observer(space.agents)
    assert second.freed(observer) == []
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", None)
        assert second.freed(observer) == [], "whose the claims are is known, and not read again"
    assert second.take(1)
    second.finish(2)
    first.look()
    first.forget()
    assert first.held == {0: 1}
    second.give_back([1])
    first.look()
    assert first.fresh() == [1], "nobody waits for the first, which has nothing in hand of it"
    assert first.take(1)
    assert first.held[1] == 3, "it is known that others had it, and may have done some of it"
    first.give_back([0, 1])
    second.look()
    assert (second.fresh(), second.freed(observer)) == ([0, 1], [])


def test_a_lease_is_renewed_whatever_there_is_to_say_and_a_slow_renewal_may_be_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = Workspace(tmp_path / ".build")
    space.agents.mkdir(parents=True)
    agent = replace(Agent.here(), lease_s=0.3)

    def watch() -> dict[str, Any]:
        raise StopIteration

    with Lease(space.agents, agent, watch) as lease:
        wait_for("a renewal", lambda: read_agents(space.agents)[agent.name].beat > 1)
        write = lease._write

        def write_slowly(record: Agent) -> None:
            time.sleep(0.6)
            write(record)

        lease.lost = False
        monkeypatch.setattr(lease, "_write", write_slowly)
        wait_for("the loss", lambda: lease.lost)


def test_an_agent_that_ends_gives_back_what_it_has_not_finished(shared: Shared, tmp_path: Path) -> None:
    case = shared.begin(tmp_path)
    for how, status, said in (
        (signal.SIGUSR1, 0, "it was asked to"),
        (signal.SIGTERM, 130, "run the same command again to continue"),
        (None, 0, "the time is up"),
    ):
        limit = () if how else ("--time-limit=0.05",)
        agent = case.start_agent(*limit, held=how is not None)
        if how is not None:
            agent.send_signal(how)
        assert said in end(agent, status)
        assert case.claims() == []
    case.finish()


def test_an_agent_without_work_ends_when_it_is_told_to_and_when_its_time_is_up(shared: Shared, tmp_path: Path) -> None:
    case = shared.begin(tmp_path)
    space = Workspace(case.out / ".build")
    other = Agent.here()
    space = space.of_plan(json.loads(space.plan.read_bytes())["fingerprint"]).of_owner(other.name)
    with Lease(space.agents, other):
        assert all(Claims(space.claims, other.name, "task", TASKS).take(number) for number in range(TASKS))
        agents = [case.start_agent(held=False), case.start_agent("--time-limit=0.05", held=False)]
        wait_for("the agent", lambda: any(agent.pid == agents[0].pid for agent in read_agents(space.agents).values()))
        agents[0].send_signal(signal.SIGUSR1)
        assert "it was asked to" in end(agents[0], 0)
        assert "the time is up" in end(agents[1], 0)


def test_a_finishing_call_waits_for_leases_that_are_not_over_and_no_longer(shared: Shared, tmp_path: Path) -> None:
    case = shared.begin(tmp_path)
    agent = case.start_agent()
    agent.send_signal(signal.SIGSTOP)
    case.gate.touch()
    done = run_packer("build", *case.build, env=case.env)
    assert f"waiting up to {LEASE_S:g} s, as 1 agent may still be at work" in done.stderr
    agent.send_signal(signal.SIGCONT)
    end(agent, 0)
    assert fingerprints(case.out) == shared.expected


def test_items_that_bring_down_workers_are_rejected_as_in_a_local_build(shared: Shared, tmp_path: Path) -> None:
    options = ("--size", "16", "--steps", "decode,resize,support.steps:kill_itself", "--max-rejects", "1.0", "--quiet")
    case = Case(tmp_path, shared)
    source = write_images(tmp_path / "source", ["1.png", "2-bad.png", "3.png"])
    env = {**case.env, "PACKER_TEST_LOG": str(tmp_path / "log")}
    run_packer("build", source, tmp_path / "local", *options, env=env)
    run_packer("submit", source, case.out, *options, env=env)
    case.env = env
    agents = [case.start_agent(held=False) for _ in range(2)]
    wait_for("rejects", lambda: case.status()["rejected"])
    assert "worker: brought down a worker … times" in next(iter(case.status()["reasons"]))
    for agent in agents:
        end(agent, 0)
    run_packer("build", source, case.out, *options, env=env)
    assert fingerprints(case.out) == fingerprints(tmp_path / "local")


def test_no_call_clears_a_folder_in_which_agents_are_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKER_LEASE_S", "6")
    source, out = write_images(tmp_path / "source", ["1.png", "2.png"]), tmp_path / "out"
    options: dict[str, Any] = {"size": 16, "update": True, "progress": False}
    packer.build(source, out, **options)
    (new,) = (path for path in write_images(tmp_path / "more", ["3.png"]).iterdir())
    shutil.copy(new, source)
    packer.submit(source, out, **options)
    (source / "3.png").unlink()
    space = Workspace(out / ".build")
    with Lease(space.agents, Agent.here()):
        with pytest.raises(BuildLockedError, match="1 agent is at work here"):
            packer.build(source, out, **options)
        with pytest.raises(BuildLockedError, match="1 agent is at work here"), packer.Writer(out, overwrite=True):
            pass
    assert space.plan.exists()
    assert packer.build(source, out, **options).found_finished
    assert not space.root.exists()


def test_a_call_that_refuses_leaves_the_build_to_its_agents(tmp_path: Path) -> None:
    source, out = write_images(tmp_path / "source", ["1.png", "2.png"]), tmp_path / "out"
    space = Workspace(out / ".build")

    def is_open() -> bool:
        terms = read_terms(space)
        return terms is not None and "closed" not in terms

    packer.submit(source, out, size=24, progress=False)
    with pytest.raises(ResumeMismatchError):
        packer.build(source, out, size=16, progress=False)
    assert is_open()
    foreign = out / "mine.txt"
    foreign.touch()
    with (
        raises(UsageError, expected="a new or empty folder", found="'mine.txt', which no build made"),
        packer.Writer(out, overwrite=True),
    ):
        pass
    assert is_open()
    foreign.unlink()
    packer.build(source, out, size=16, overwrite=True, progress=False)
    packer.submit(source, out, size=24, overwrite=True, progress=False)
    assert packer.build(source, out, size=16, progress=False).found_finished
    assert is_open(), "an unfinished replacement stays for the agents"


def test_agents_are_told_how_to_go_on_after_a_build_that_was_killed_alone(shared: Shared, tmp_path: Path) -> None:
    case = shared.begin(tmp_path)
    alone = start_packer("build", *case.build, "--quiet", env=case.env)
    wait_for("the build alone", lambda: f"process {alone.pid} on" in case.status()["closed"])
    alone.kill()
    end(alone, -signal.SIGKILL)
    said = f"process {alone.pid} on"
    for command in ("work", "status"):
        told = run_packer(command, case.out, env=case.env).stdout
        assert said in told
        assert "if it was killed, run packer submit or packer build again" in told
    run_packer("submit", *case.build, "--quiet", env=case.env)
    assert not case.status()["closed"]
    case.gate.touch()
    assert "nothing is left" in end(case.start_agent(held=False), 0)
    case.finish()


def test_agents_need_a_submitted_build(shared: Shared, tmp_path: Path) -> None:
    refused = run_packer("work", tmp_path, expect=2)
    assert "expected a submitted build, found no build: packer submit" in refused.stderr
    assert "expected a build or a packed dataset" in run_packer("status", tmp_path, expect=2).stderr
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "manifest.json").write_text("{")
    unread = run_packer("status", tmp_path / "torn", expect=1).stderr
    assert "manifest.json: expected a JSON document" in unread
    assert "to build here" not in unread
    assert "source: expected" not in refused.stderr
    for words, said in (
        (("--sbatch", "-p x"), "sbatch: read only"),
        (("--array", "4"), "array: read only"),
    ):
        refused = run_packer("submit", shared.source, tmp_path / "out", *words, expect=2)
        assert said in refused.stderr
    assert not (tmp_path / "out").exists()
