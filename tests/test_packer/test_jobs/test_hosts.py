"""`--engine srun` with Slurm's commands replaced by scripts; on a real Slurm, see test_cluster."""

import json
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.builds import OPTIONS, write_images
from support.command import environment, run_packer, start_packer
from support.errors import raises
from support.fake_slurm import NODES, fake_slurm
from support.listeners import Listener
from support.packed import fingerprints
from support.processes import PATIENCE_S, wait_for, workers_in

import packer
from packer.jobs.hosts.base import Host, HostLimits, run_agents
from packer.jobs.hosts.srun import SrunCluster, parse_counts
from packer.jobs.plan import JobSettings
from packer.recipe.options import BuildOptions
from packer.workspace import Workspace, append_line
from packer.workspace.leases import Agent
from shardspec.errors import BuildError, UsageError

posix = pytest.mark.skipif(os.name != "posix", reason="the scripts are for a Unix shell")


@posix
def test_a_build_over_srun_that_loses_a_node_gives_the_same_bytes(mixed: Path, reference: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    loud = [option for option in OPTIONS if option != "--quiet"]
    env = environment(**fake_slurm(tmp_path), PACKER_LEASE_S="2")
    build = start_packer("build", mixed, out, *loud, "--engine", "srun", env=env)
    on_n2 = wait_for("an agent there", lambda: [found for found in _agents(out) if _node_of(found) == b"n2"])
    (tmp_path / "down-n2").touch()
    for process in [*on_n2, *(worker for worker in workers_in(out) if _node_of(worker) == b"n2")]:
        os.kill(process, signal.SIGKILL)
    _, errors = build.communicate(timeout=PATIENCE_S)
    assert build.returncode == 0, errors
    assert "the agent on n2 ended with status 9" in errors
    assert fingerprints(out) == fingerprints(reference)
    started = (tmp_path / "srun.log").read_text().splitlines()
    assert {re.findall(r"--nodelist=(\w+)", line)[0] for line in started} == set(NODES)
    assert all("--overlap" in line and "--mem=0" in line for line in started)
    assert all(shlex.split(line)[-2:] == ["--workers", "2"] for line in started)


def _agents(out: Path) -> list[int]:
    return workers_in(out, b"packer\0work")


def _node_of(process: int) -> bytes:
    try:
        words = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return b""
    return next((word.partition(b"=")[2] for word in words if word.startswith(b"SLURMD_NODENAME=")), b"")


@posix
def test_the_build_ends_if_all_agents_do_and_the_same_command_resumes(
    mixed: Path, reference: Path, tmp_path: Path
) -> None:
    out, env = tmp_path / "out", environment(**fake_slurm(tmp_path))
    for node in NODES:
        (tmp_path / f"down-{node}").touch()
    done = run_packer("build", mixed, out, *OPTIONS, "--engine", "srun", env=env, expect=1)
    assert "no agent is left: run the same command again to resume" in done.stderr
    assert not (out / "manifest.json").exists()
    for node in NODES:
        (tmp_path / f"down-{node}").unlink()
    run_packer("build", mixed, out, *OPTIONS, "--engine", "srun", env=env)
    assert fingerprints(out) == fingerprints(reference)
    again = run_packer("build", mixed, out, *OPTIONS[:-1], "--engine", "srun", "--json", env=env)
    assert '"found_finished": true' in again.stdout


@posix
def test_agents_end_with_the_build_that_started_them(tmp_path: Path) -> None:
    source = write_images(tmp_path / "source", [f"a/{number:03d}.png" for number in range(400)])
    out, env = tmp_path / "out", environment(**fake_slurm(tmp_path), PACKER_LEASE_S="2")
    build = start_packer("build", source, out, "--size", "16", "--engine", "srun", env=env)
    wait_for("agents", lambda: len(_agents(out)) == len(NODES))
    build.kill()
    build.communicate()
    wait_for("the end of the agents", lambda: not _agents(out) and not workers_in(out))


@posix
def test_an_item_that_fails_ends_the_build_of_all_agents(tmp_path: Path) -> None:
    source = write_images(tmp_path / "source", [f"a/{number:03d}.png" for number in range(40)])
    (source / "a" / "bad.png").write_bytes(b"no image")
    env = environment(**fake_slurm(tmp_path))
    words = ("build", source, tmp_path / "out", "--size", "16", "--engine", "srun", "--on-error", "fail")
    done = run_packer(*words, env=env, expect=1)
    assert "a/bad.png" in done.stderr.splitlines()[-1]


def test_a_missing_library_of_ray_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = run_packer(
        "build", write_images(tmp_path / "source", ["a.png"]), tmp_path / "out", "--engine", "ray", expect=2
    )
    assert 'pip install "facepack[ray]"' in done.stderr
    assert len(done.stderr.splitlines()) == 1


@posix
def test_only_builds_run_on_several_hosts(reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in fake_slurm(tmp_path).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="runs builds only, found convert"):
        packer.convert(reference, tmp_path / "out", format="npy", engine="srun", progress=False)
    assert not (tmp_path / "srun.log").exists()


def test_counts_of_cores_are_read_as_slurm_writes_them() -> None:
    assert parse_counts("72(x2),36") == [72, 72, 36]
    assert parse_counts("8") == [8]
    with raises(UsageError, place="SLURM_JOB_CPUS_PER_NODE", found="'many'"):
        parse_counts("many")


def test_the_gpus_of_a_node_share_its_workers() -> None:
    for per_node, expected in ((None, [2, 3, 3]), (7, [2, 2, 3]), (2, [1, 1])):
        room = HostLimits(per_node, None, 1, gpus=True)
        assert [host.workers for host in room.share("n", 8, None, 3)] == expected
    assert HostLimits(7, None, 1, gpus=False).share("n", 8, None, 3) == [Host("n", 7)]


class _Nodes:
    """A cluster of two hosts, whose agents end with a status after they have written a line to their logs."""

    def __init__(self, status: int | None, end: Callable[[], object]) -> None:
        self.hosts = [Host("n1", 1), Host("n2", 1)]
        self._status = status
        self._end = end

    def start(self, _host: Host, _command: Sequence[str], log: Path) -> "_Nodes":
        with log.open("a") as file:
            file.write("packer: a worker process died\n")
        return self

    def poll(self) -> int | None:
        return self._status

    def end(self) -> None:
        self._end()

    def close(self) -> None:
        pass


def _run_on(nodes: _Nodes, space: Workspace, monkeypatch: pytest.MonkeyPatch) -> Listener:
    """Run agents for a plan of one task with five items, which an earlier call has done."""
    space.create()
    space.create_results(1)
    space.part(0).mkdir(exist_ok=True)
    append_line(space.journal, {"did": "task", "number": 0, "rows": 5})
    monkeypatch.setattr("packer.jobs.hosts.base.resolve", lambda *_: lambda *_: nodes)
    task = SimpleNamespace(start=0, stop=5)
    plan: Any = SimpleNamespace(tasks=[task], settings=JobSettings("build", "images"))
    listener = Listener()
    options: Any = SimpleNamespace(
        engine="ray", workers="auto", workers_per_node=None
    )  # whether or not Ray is installed
    run_agents(plan, space, options, listener)
    return listener


def test_what_an_earlier_call_did_and_said_is_not_reported_as_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = Workspace(tmp_path / "out" / ".build")
    for _ in range(2):
        listener = _run_on(_Nodes(0, lambda: None), space, monkeypatch)
        assert listener.messages.count("packer: a worker process died") == 2
        assert {(one.done, one.resumed) for one in listener.heard} == {(5, 5)}


def test_an_agent_that_does_not_start_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packer.jobs.hosts.base._SILENT_S", -1.0)
    monkeypatch.setattr("packer.jobs.hosts.base._LOOK_S", 0.5)
    space = Workspace(tmp_path / "out" / ".build")
    nodes, seen = _Nodes(None, lambda: None), []

    def poll() -> int | None:
        seen.append(1)
        return 0 if len(seen) > 8 else None

    monkeypatch.setattr(nodes, "poll", poll)
    monkeypatch.setattr(nodes, "start", lambda _host, _command, log: log.write_text("srun: waiting\n") and nodes)
    listener = _run_on(nodes, space, monkeypatch)
    more = "; it may wait for resources that others use"
    for name in ("n1", "n2"):
        assert listener.messages.count(f"packer: the agent on {name} has not started yet{more}") == 1


def test_all_agents_are_ended_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = Workspace(tmp_path / "out" / ".build")
    space.agents.mkdir(parents=True)
    failed = Agent("n1-1", failed="a/bad.png: no image")
    (space.agents / "n1-1.json").write_text(json.dumps(asdict(failed)))
    together = threading.Barrier(2)
    with pytest.raises(BuildError, match=r"a/bad\.png"):
        _run_on(_Nodes(None, lambda: together.wait(PATIENCE_S)), space, monkeypatch)


def test_workers_are_spread_over_the_hosts() -> None:
    hosts = [Host("a", 2), Host("b", 8), Host("c", 8)]
    for in_all, expected in ((None, [2, 8, 8]), (7, [2, 3, 2]), (2, [1, 1])):
        assert [host.workers for host in HostLimits(None, in_all, 1, gpus=False).limit(hosts)] == expected


@posix
def test_an_agent_that_detects_on_a_gpu_has_one_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = {"SLURM_GPUS_ON_NODE": "2", "SLURM_MEM_PER_CPU": "800", "SLURM_JOB_CPUS_PER_NODE": "8(x2)"}
    for name, value in (fake_slurm(tmp_path) | gpus).items():
        monkeypatch.setenv(name, value)
    cluster = SrunCluster(Workspace(tmp_path), HostLimits(None, None, 1, gpus=True), BuildOptions())
    assert cluster.hosts == [Host("n1", 4), Host("n1", 4), Host("n2", 4), Host("n2", 4)]
    step = cluster.start(cluster.hosts[2], [sys.executable, "-c", "input()"], tmp_path / "log")
    step.end()
    assert step.poll() == 1  # its input has ended
    cluster.close()
    (line,) = (tmp_path / "srun.log").read_text().splitlines()
    assert "--exact --cpus-per-task=4 --gpus-per-task=1 --nodelist=n2" in line
    room = HostLimits(None, None, 1500 * 2**20, gpus=False)
    assert [host.workers for host in SrunCluster(Workspace(tmp_path), room, BuildOptions()).hosts] == [4, 4]


@posix
def test_an_agent_that_reports_an_error_is_not_started_again(mixed: Path, tmp_path: Path) -> None:
    """A node whose step cannot be started is tried again; an agent whose libraries differ is not."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(
        "import importlib.metadata as m, os\nreal = m.version\n"
        "if os.environ.get('SLURMD_NODENAME'):\n    m.version = lambda name: '1.0' if name == 'numpy' else real(name)\n"
    )
    env = environment(python_path=hooks, **fake_slurm(tmp_path))
    done = run_packer("build", mixed, tmp_path / "out", *OPTIONS, "--engine", "srun", env=env, expect=1)
    assert "numpy" in done.stderr.splitlines()[-1]
    assert len((tmp_path / "srun.log").read_text().splitlines()) == len(NODES)
