"""`--engine ray` on a real Ray: whatever is killed, the dataset is that of an undisturbed build on one host."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support import ray_cluster
from support.builds import TESTS, write_images
from support.cluster_builds import OPTIONS, Run, parent_of, rounds
from support.command import arguments, environment, run_packer
from support.packed import check_whole, fingerprints
from support.processes import is_alive, wait_for
from support.ray_cluster import Ray
from support.steps import LOG

pytestmark = pytest.mark.ray


class RayRun(Run):
    """A build on all nodes of the cluster. A node is known by its raylet."""

    def __init__(self, ray: Ray, images: Path, folder: Path, *, held: bool = False) -> None:
        self.ray = ray
        super().__init__("ray", images, folder, ("--ray-address", ray.address), ray.environment, held=held)

    def started_by(self) -> list[str]:
        return self.ray.command(*self.command)

    def node_of(self, worker: int) -> int:
        return parent_of(parent_of(worker))


@pytest.fixture
def run(ray: Ray, images: Path, tmp_path: Path) -> Iterator[RayRun]:
    with RayRun(ray, images, tmp_path) as run:
        yield run


def test_a_killed_worker_is_replaced(run: RayRun, expected: dict[str, str]) -> None:
    os.kill(run.at_work(), signal.SIGKILL)
    errors = run.finish(expected)
    assert "a worker process died at" in errors
    assert "signal 9" in errors


def test_a_killed_actor_ends_its_worker(run: RayRun, expected: dict[str, str]) -> None:
    worker = run.at_work()
    os.kill(parent_of(worker), signal.SIGKILL)
    wait_for("the end of its worker", lambda: not is_alive(worker))
    assert ".png" not in run.finish(expected)


def test_a_lost_node_gives_its_work_back_and_blames_no_item(run: RayRun, expected: dict[str, str]) -> None:
    lost = run.node_of(run.at_work())
    os.kill(lost, signal.SIGKILL)
    errors = run.finish(expected)
    run.ray.start_node()
    assert ".png" not in errors


def test_a_stopped_raylet_changes_nothing_when_it_wakes_up(
    ray: Ray, images: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    """The cluster has given the node up by then; its workers run on."""
    with RayRun(ray, images, tmp_path, held=True) as run:
        worker = run.at_work()
        stopped = run.node_of(worker)
        os.kill(stopped, signal.SIGSTOP)
        try:
            run.wait_for_line("were lost")
            assert is_alive(worker)
            run.gate.touch()
            assert run.end()[0] == 0
            assert fingerprints(run.out) == expected
        finally:
            os.kill(stopped, signal.SIGCONT)
        with suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGKILL)
        wait_for("the end of the raylet", lambda: not is_alive(stopped))
        ray.start_node()
        run.finish(expected)


def test_a_killed_build_resumes_with_the_same_command(
    ray: Ray, images: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    with RayRun(ray, images, tmp_path) as run:
        run.at_work()
        os.kill(run.process.pid, signal.SIGKILL)
    with RayRun(ray, images, tmp_path) as again:
        again.finish(expected)


def test_an_item_that_kills_is_rejected_as_on_one_host(ray: Ray, tmp_path: Path) -> None:
    source = write_images(tmp_path / "few", ["a/0.png", "a/1.png", "a/bad.png"])
    steps = ("--steps", "decode,resize,support.steps:kill_itself", "--max-rejects", "1.0")
    env = environment(python_path=TESTS, **{LOG: str(tmp_path / "log")})
    run_packer("build", source, tmp_path / "one", *OPTIONS, *steps, env=env)
    more = ("--engine", "ray", "--ray-address", ray.address)
    ray.run(*arguments("build", source, tmp_path / "many", *OPTIONS, *steps, *more), env=env)
    assert fingerprints(tmp_path / "many") == fingerprints(tmp_path / "one")


def test_a_node_that_cannot_do_the_work_is_given_up(tmp_path: Path) -> None:
    """One has another version of a library, and one does not see the source."""
    if lacking := ray_cluster.missing():
        pytest.skip(lacking)
    source, hooks = write_images(tmp_path / "images" / "few", ["a/0.png"]), tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(
        "import importlib.metadata as m, os\nreal = m.version\n"
        "if os.environ.get('ODD_NODE'):\n    m.version = lambda name: '1.0' if name == 'numpy' else real(name)\n"
    )
    with ray_cluster.cluster(0) as ray:
        ray.start_node(ODD_NODE="1")
        hide = f'mount -t tmpfs none {source.parent} && exec "$@"'
        ray.start_node("unshare", "--mount", "sh", "-c", hide, "sh")
        words = ("build", source, tmp_path / "out", "--size", "16", "--engine", "ray", "--ray-address", ray.address)
        env = environment(python_path=hooks)
        printed = ray.run("bash", "-c", '"$@" || echo "status $?"', "bash", *arguments(*words), env=env)
        assert "numpy" in printed
        assert "1.0" in printed
        assert f"expected the source, which has '{source}" in printed
        assert "no node can do the work" in printed
        assert "Traceback" not in printed
        assert "status 1" in printed
        ray.start_node()
        ray.run(*arguments(*words), env=env)
    check_whole(tmp_path / "out")


def test_a_missing_cluster_is_reported(ray: Ray, tmp_path: Path) -> None:
    source = write_images(tmp_path / "few", ["a/0.png"])
    options = ("--size", "16", "--engine", "ray", "--ray-address", "127.0.0.1:1")
    command = arguments("build", source, tmp_path / "out", *options)
    printed = ray.run("bash", "-c", '"$@" || echo "status $?"', "bash", *command, env=environment())
    assert "expected a Ray cluster at" in printed
    assert "Traceback" not in printed
    assert "status 1" in printed
    assert not (tmp_path / "out").exists(), "nothing is planned before"


def test_a_cluster_that_asks_for_a_token(tmp_path: Path) -> None:
    source, token = write_images(tmp_path / "few", ["a/0.png"]), "0123456789abcdef" * 4
    if lacking := ray_cluster.missing():
        pytest.skip(lacking)
    with ray_cluster.cluster(1, token) as ray:
        options = ("--size", "16", "--engine", "ray", "--ray-address", ray.address)
        command = arguments("build", source, tmp_path / "out", *options)
        without = ("env", "--unset=RAY_AUTH_MODE", "--unset=RAY_AUTH_TOKEN", f"HOME={tmp_path}")
        printed = ray.run(*without, "bash", "-c", '"$@" || echo "status $?"', "bash", *command, env=environment())
        assert "asks for a token: set RAY_AUTH_MODE=token" in printed
        assert "Traceback" not in printed
        assert "status 1" in printed
        ray.run(*command, env=environment())
    assert (tmp_path / "out" / "manifest.json").exists()


FAULTS: dict[str, Callable[[RayRun, random.Random], int]] = {
    "worker": lambda run, rng: rng.choice(run.workers()),
    "actor": lambda run, rng: parent_of(rng.choice(run.workers())),
    "raylet": lambda run, rng: run.node_of(rng.choice(run.workers())),
    "coordinator": lambda run, rng: run.process.pid,
}


@pytest.mark.slow
def test_faults_at_random_moments(ray: Ray, images: Path, tmp_path: Path, expected: dict[str, str]) -> None:
    for number, rng in rounds():
        folder = tmp_path / str(number)
        folder.mkdir()
        faults = rng.sample(sorted(FAULTS), rng.choice((1, 1, 2)))
        print(f"round {number}: {', '.join(faults)}", flush=True)
        with RayRun(ray, images, folder) as run:
            for fault in faults:
                time.sleep(rng.uniform(2, 8))
                with suppress(OSError, IndexError):
                    os.kill(FAULTS[fault](run, rng), signal.SIGKILL)
            run.end()
        while len(ray.raylets()) < 3:
            ray.start_node()
        with RayRun(ray, images, folder) as again:
            again.finish(expected)
