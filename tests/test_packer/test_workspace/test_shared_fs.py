"""Builds over a shared file system that is as bad as any: `support.shared_fs`."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.builds import TESTS, parts_of, write_images
from support.command import arguments, environment, run_packer
from support.packed import check_whole, fingerprints
from support.processes import wait_for, workers_in
from support.shared_fs import STALE_S, SharedFolder, as_host, missing, shared_folder
from support.steps import HOLD

from packer.builds.planning.plan import TASK_ITEMS
from packer.jobs.plan import Tasks, Unit
from packer.jobs.worker import open_work
from packer.steps.chain import StepResources
from packer.workspace import Workspace
from packer.workspace.shared_files import wait_for as wait_for_file

pytestmark = [
    pytest.mark.shared_fs,
    pytest.mark.skipif(bool(missing()), reason=missing() or "it can be mounted"),
]

OPTIONS = ("--size", "16", "--label-from", "folder", "--shard-size", "20kB", "--workers", "1", "--quiet")
HELD = ("--steps", "decode,resize,support.steps:hold")
LEASE_S = 60
SEEN_S = STALE_S + 5
"""After so many seconds, what one host has written is seen by the other."""


@pytest.fixture
def shared() -> Iterator[SharedFolder]:
    with shared_folder() as found:
        yield found


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(shared: SharedFolder) -> Iterator[Start]:
    """Start a build of some host, which waits at the items behind the first while there is a file ``hold`` beside the
    source. What is under way at the end is killed."""
    started = []

    def begin(source: Path, out: Path, *host: str) -> "subprocess.Popen[str]":
        env = environment(python_path=TESTS, **{"PACKER_LEASE_S": str(LEASE_S), HOLD: str(source.with_name("hold"))})
        command = [*host, *arguments("build", source, out, *OPTIONS, *HELD)]
        started.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True))
        return started[-1]

    yield begin
    for build in started:
        if build.poll() is None:
            os.killpg(build.pid, signal.SIGKILL)
            build.communicate()


def kill(build: "subprocess.Popen[str]", out: Path) -> None:
    os.killpg(build.pid, signal.SIGKILL)
    build.communicate()
    wait_for("the end of the workers", lambda: not workers_in(out))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = [f"{'ab'[n // 64]}/{n // 48}{n:03d}.png" for n in range(4 * TASK_ITEMS)]
    return write_images(tmp_path_factory.mktemp("shared") / "source", names)


@pytest.fixture(scope="module")
def whole(source: Path) -> dict[str, str]:
    """What a local build makes of the source."""
    run_packer("build", source, source.with_name("whole"), *OPTIONS, *HELD, env=environment(python_path=TESTS))
    return fingerprints(source.with_name("whole"))


def wait_until_finished(real: Path, again: Callable[[], "subprocess.Popen[str]"]) -> None:
    """Wait until the dataset and nothing else is in a folder.

    Such a mount keeps the old state of a file that was replaced, and deleted before the replacement was written, 2 s
    later. The same command, which finds the dataset finished, then removes it.
    """
    wait_for("the dataset", (real / "manifest.json").exists)
    time.sleep(SEEN_S)
    if (real / ".build").exists():
        assert {path.name for path in (real / ".build").iterdir()} <= {"plan.json", "holder.json"}
        build = again()
        _, said = build.communicate(timeout=LEASE_S * 4)
        assert not build.returncode, said
    wait_for("what is left", lambda: not (real / ".build").exists())


def test_builds_of_two_hosts_in_one_folder(
    source: Path, whole: dict[str, str], shared: SharedFolder, start: Start
) -> None:
    real, first, second = (folder / "out" for folder in shared)

    hold = source.with_name("hold")
    hold.touch()
    killed = start(source, first)
    wait_for("the first part", lambda: parts_of(real) or killed.poll() is not None, pause_s=0.05)
    kill(killed, first)
    time.sleep(SEEN_S)  # from here on, both hosts see this state

    # A worker of another host: what it makes is seen by the first one in the end.
    plan = json.loads((real / ".build" / "plan.json").read_bytes())
    space = Workspace(first / ".build").of_plan(plan["fingerprint"])
    last = len(Tasks.from_json(plan["tasks"])) - 1
    assert not space.part(last).exists()
    work = open_work(Workspace(second / ".build").of_plan(plan["fingerprint"]).of_owner("n2"), StepResources())
    work.run(Unit("task", last), {}, lambda *_: None)
    work.close()
    wait_for_file(space.part(last))

    at_work = start(source, first)
    wait_for("a lease", lambda: list((real / ".build").glob("leases/0*")) or at_work.poll() is not None, pause_s=0.05)
    time.sleep(SEEN_S)  # while a mount remembers that there was no lease, it lets a second build make one
    other = start(source, second, *as_host("n2"))
    said = other.communicate(timeout=LEASE_S * 4)[1]
    assert other.returncode
    assert f"another build is at work in this folder (process {at_work.pid} on" in said
    assert at_work.poll() is None
    kill(at_work, first)
    hold.unlink()
    time.sleep(SEEN_S)
    resumed = start(source, second, *as_host("n2"))
    said = resumed.communicate(timeout=LEASE_S * 4)[1]
    assert not resumed.returncode, said
    wait_until_finished(real, lambda: start(source, second, *as_host("n2")))
    check_whole(real)
    assert fingerprints(real) == whole


def test_two_hosts_pack_the_shares_of_a_build(source: Path, whole: dict[str, str], shared: SharedFolder) -> None:
    """What one has done, the other sees late: the second share waits for the plan of the first."""
    real, first, second = (folder / "pieces" for folder in shared)
    env = environment(python_path=TESTS, PACKER_LEASE_S=str(LEASE_S))
    with ExitStack() as stack:
        shares = []
        for number, out, host in ((1, first, ()), (2, second, as_host("n2"))):
            command = [*host, *arguments("build", source, out, *OPTIONS, *HELD, "--share", f"{number}/2")]
            shares.append(stack.enter_context(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)))
            stack.callback(shares[-1].kill)
        for one in shares:
            said = one.communicate(timeout=LEASE_S * 4)[1]
            assert not one.returncode, said
    time.sleep(SEEN_S)
    run_packer("merge", first, real.with_name("out"), "--quiet", env=env)
    assert fingerprints(real.with_name("out")) == whole
