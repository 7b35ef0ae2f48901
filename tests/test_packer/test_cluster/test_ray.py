"""`--engine ray` on a real Ray: whatever is killed, the dataset is that of an undisturbed build on one host."""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from support import ray_cluster, relay
from support.builds import TESTS, write_images
from support.cluster_builds import OPTIONS, Run, made_on_one_host, parent_of, rounds, tree_of
from support.command import COMMAND_LIMIT_S, arguments, environment, run_packer
from support.packed import check_whole, fingerprints
from support.processes import is_alive, kill, wait_for
from support.ray_cluster import Ray
from support.sloppy import BUCKET, find_server
from support.steps import LOG

pytestmark = pytest.mark.ray


class RayRun(Run):
    """A build on all nodes of the cluster. A node is known by its raylet."""

    def __init__(self, ray: Ray, images: Path, folder: Path, *, held: bool = False, more: Sequence[str] = ()) -> None:
        self.ray = ray
        super().__init__("ray", images, folder, ("--ray-address", ray.address, *more), ray.environment, held=held)

    def started_by(self) -> list[str]:
        return self.ray.command(*self.command)

    def node_of(self, worker: int) -> int:
        return parent_of(parent_of(worker))


class StoredRun(RayRun):
    """A build to a bucket, where all its files are. The bucket is that of `Ray.bucket`, and holds the run's folder."""

    def started_by(self) -> list[str]:
        folder = f"s3://{self.out.parent.parent.name}/{self.out.parent.name}"
        words = [f"{folder}/out" if word == str(self.out) else word for word in self.command]
        return self.ray.command(*words, "--work", f"{folder}/work")

    def finish(self, expected: dict[str, str]) -> str:
        errors = super().finish(expected)
        assert [path for path in (self.out.parent / "work").rglob("*") if path.is_file()] == []
        return errors


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
        assert f"expected the input, which has '{source}" in printed
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


SCRATCH_MB, STARTS = 4, 3
FORMATS = ("hdf5", "lmdb")
"""A format whose shards are written in the node's scratch folder first, and one whose shards are not."""


class Scratch:
    """A small file system that each node mounts as its folder for temporary files."""

    def __init__(self, ray: Ray, folder: Path) -> None:
        self._ray = ray
        self._folder = folder
        folder.mkdir()

    def start_node(self) -> None:
        """Start a node with a file system of its own. On a busy machine, Ray may give up before the node has started."""
        mount = f'mount -t tmpfs -o size={SCRATCH_MB}m none {self._folder} && exec "$@"'
        with suppress(AssertionError):
            self._ray.start_node("unshare", "--mount", "sh", "-c", mount, "sh", TMPDIR=str(self._folder))

    def start_nodes(self) -> None:
        """Start nodes until there are two besides the head."""
        for _ in range(2 * STARTS):
            if len(self._ray.raylets()) < 3:
                self.start_node()
        assert len(self._ray.raylets()) == 3

    def fill(self, node: int) -> None:
        """Leave no room on a node."""
        self._on(node, f"head --bytes {2 * SCRATCH_MB}M /dev/zero > {self._folder}/full || true")

    def free(self, node: int) -> None:
        """Make room again."""
        self._on(node, f"rm -f {self._folder}/full")

    def left(self, node: int) -> str:
        """The names of files of builds."""
        return self._on(node, f"ls -d {self._folder}/packer-* 2>/dev/null || true")

    def _on(self, node: int, script: str) -> str:
        command = ["nsenter", "--mount", f"--target={node}", "sh", "-c", script]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout


class Faults:
    """Things that happen to a build. Each method is one; all take what chooses their victim."""

    def __init__(self, run: RayRun, scratch: Scratch, store: Path) -> None:
        self._run = run
        self._scratch = scratch
        self._store = store

    def worker(self, rng: random.Random) -> None:
        kill(self._worker(rng))

    def actor(self, rng: random.Random) -> None:
        kill(parent_of(self._worker(rng)))

    def raylet(self, rng: random.Random) -> None:
        kill(self._node(rng))

    def node(self, rng: random.Random) -> None:
        """The raylet, its actors and their workers at once."""
        kill(*tree_of(self._node(rng)))

    def coordinator(self, _: random.Random) -> None:
        kill(self._run.process.pid)

    def late_node(self, _: random.Random) -> None:
        self._scratch.start_node()

    def full_disk(self, rng: random.Random) -> None:
        self._scratch.fill(self._node(rng))

    def store_away(self, rng: random.Random) -> None:
        self._trouble(relay.AWAY, rng)

    def store_slow(self, rng: random.Random) -> None:
        self._trouble(relay.SLOW, rng)

    def store_refusing(self, rng: random.Random) -> None:
        self._trouble(relay.REFUSING, rng)

    def _trouble(self, fault: str, rng: random.Random) -> None:
        """Let the store fail for a minute, or until the build ends."""
        self._worker(rng)  # a build that finds no store at its start ends soon
        self._store.write_text(fault)
        with suppress(subprocess.TimeoutExpired):
            self._run.process.wait(AWAY_S)
        self._store.unlink()

    def _worker(self, rng: random.Random) -> int:
        run = self._run
        wait_for("a worker", lambda: run.workers() or run.process.poll() is not None, 0.05, COMMAND_LIMIT_S)
        return rng.choice(run.workers())

    def _node(self, rng: random.Random) -> int:
        return rng.choice(self._run.ray.raylets()[1:])


AWAY_S = 60
FAULTS = sorted(name for name in vars(Faults) if not name.startswith("_"))
OF_STORE = [name for name in FAULTS if name.startswith("store_")]
"""These end no build."""


@pytest.mark.slow
def test_faults_at_random_moments(images: Path, tmp_path: Path) -> None:
    """Killed processes and nodes, nodes that join, full disks; then the same command makes the same bytes.

    Half of the builds have a shared folder, and half of them only a bucket, which may fail for a minute.
    """
    if lacking := ray_cluster.missing():
        pytest.skip(lacking)
    if find_server("rclone") is None:
        pytest.skip("rclone is not installed")
    expected = {format: made_on_one_host(images, tmp_path / format, format) for format in FORMATS}
    store = tmp_path / "store"
    with ray_cluster.cluster(0) as ray, ray.faulty_bucket(tmp_path, store) as env:
        ray.environment.update(env)
        scratch = Scratch(ray, tmp_path / "scratch")
        for number, rng in rounds():
            scratch.start_nodes()
            folder = tmp_path / BUCKET / str(number)
            folder.mkdir(parents=True)
            format, kind = rng.choice(FORMATS), rng.choice((RayRun, StoredRun))
            possible = [name for name in FAULTS if kind is StoredRun or name not in OF_STORE]
            faults = rng.sample(possible, rng.choice((1, 1, 2)))
            print(f"round {number}: {kind.__name__}, {format}, {', '.join(faults)}", flush=True)
            with kind(ray, images, folder, more=("--format", format)) as run:
                for fault in faults:
                    time.sleep(rng.uniform(2, 8))
                    with suppress(IndexError):  # the build has ended, or a worker has at this moment
                        getattr(Faults(run, scratch, store), fault)(rng)
                if len(ray.raylets()) < 2:
                    scratch.start_nodes()  # all were lost, and the build waits for one to join
                status, errors = run.end()
                assert status == 0 or any(name not in OF_STORE for name in faults), errors
            for node in ray.raylets()[1:]:
                scratch.free(node)
            with kind(ray, images, folder, more=("--format", format)) as again:
                again.finish(expected[format])
            assert not any(map(scratch.left, ray.raylets()[1:]))
            kill(*(process for late in ray.raylets()[3:] for process in tree_of(late)))
            wait_for("the end of the late node", lambda: len(ray.raylets()) <= 3)
            shutil.rmtree(folder)
