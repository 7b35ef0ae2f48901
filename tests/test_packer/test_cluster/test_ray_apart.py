"""`--engine ray` from a bucket to a bucket, on nodes that share no disk: each has a /tmp of its own.

The bucket is that of ``rclone serve s3``, in the network of the cluster.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest
from support import ray_cluster
from support.builds import TESTS, write_images
from support.command import COMMAND_LIMIT_S, arguments, environment
from support.packed import check_whole, fingerprints
from support.ray_cluster import Ray
from support.sloppy import BUCKET, find_server

pytestmark = pytest.mark.ray

NAMES = [f"{'ab'[n % 2]}/{n:03d}{'-bad' if n == 7 else ''}.png" for n in range(150)]
OPTIONS = ("--size", "16", "--label-from", "folder", "--shard-size", "20kB", "--max-rejects", "1.0")
_PORT = 9321
_STARTS = 5
_APART = (
    'mount --bind "$RAY_TMPDIR" /mnt && mount -t tmpfs none /tmp && mkdir "$RAY_TMPDIR" && '
    'mount --bind /mnt "$RAY_TMPDIR" && exec "$@"'
)
"""Only the folder of Ray's own sockets stays, since Ray takes nodes with one address for one machine."""


class Apart:
    """A cluster whose nodes share no disk, and a bucket."""

    def __init__(self, ray: Ray, folder: Path) -> None:
        self.ray = ray
        self.bucket = folder / BUCKET
        keys = {"AWS_ACCESS_KEY_ID": "S3RVER", "AWS_SECRET_ACCESS_KEY": "S3RVER", "AWS_DEFAULT_REGION": "us-east-1"}
        self.env = {**environment(python_path=TESTS), **keys, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{_PORT}"}

    def start_node(self) -> None:
        """Start a node. On a busy machine, Ray itself may give up because its agent takes more than 15 s to start."""
        for attempt in range(_STARTS):
            with suppress(AssertionError) if attempt < _STARTS - 1 else nullcontext():
                self.ray.start_node("unshare", "--mount", "sh", "-c", _APART, "sh")
                return

    def build(self, out: str, scratch: Path, *more: str) -> list[str]:
        """The command line of a build on the cluster, whose temporary files are in a folder."""
        scratch.mkdir()
        words = arguments("build", f"s3://{BUCKET}/raw", f"s3://{BUCKET}/{out}", *OPTIONS, *more)
        on_ray = ("--engine", "ray", "--ray-address", self.ray.address)
        return self.ray.command("env", f"TMPDIR={scratch}", *words, *on_ray)

    def run(self, *command: str) -> str:
        env = {**self.env, **self.ray.environment}
        done = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr

    def files(self, folder: str) -> list[str]:
        """The names of the objects below a prefix."""
        root = self.bucket / folder
        return [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    if lacking := ray_cluster.missing():
        pytest.skip(lacking)
    rclone = find_server("rclone")
    if rclone is None:
        pytest.skip("rclone is not installed")
    folder = tmp_path_factory.mktemp("store")
    write_images(folder / BUCKET / "raw", NAMES)
    with ray_cluster.cluster(0) as ray:
        ray.environment["RAY_raylet_start_wait_time_s"] = "60"
        own = [
            "--addr",
            f"127.0.0.1:{_PORT}",
            "--auth-key",
            "S3RVER,S3RVER",
            "--dir-cache-time",
            "1s",
            "--config",
            os.devnull,
        ]
        with _running(ray.command(rclone, "serve", "s3", *own, str(folder))):
            found = Apart(ray, folder)
            found.start_node()
            found.start_node()
            yield found


@contextmanager
def _running(command: list[str]) -> Iterator[None]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


@pytest.fixture(scope="module")
def expected(apart: Apart, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What one host makes of the same bucket, by format."""
    root = tmp_path_factory.mktemp("expected")
    found = {}
    for format in ("lmdb", "npy", "webdataset"):
        words = arguments("build", f"s3://{BUCKET}/raw", root / format, *OPTIONS, "--format", format)
        apart.run(*apart.ray.command(*words, "--engine", "inline"))
        found[format] = fingerprints(root / format)
    return found


def downloaded(apart: Apart, out: str, to: Path) -> dict[str, str]:
    """The dataset in the bucket, where nothing else is."""
    assert [name for name in apart.files(out) if name.startswith(".")] == []
    shutil.copytree(apart.bucket / out, to)
    shutil.rmtree(to / ".build", ignore_errors=True)  # empty folders
    check_whole(to)
    return fingerprints(to)


@pytest.mark.parametrize("format", ["lmdb", "npy", "webdataset"])
def test_nodes_without_a_shared_disk_make_the_bytes_of_one_host(
    apart: Apart, expected: dict[str, dict[str, str]], tmp_path: Path, format: str
) -> None:
    apart.run(*apart.build(f"out-{format}", tmp_path / "scratch", "--format", format))
    assert downloaded(apart, f"out-{format}", tmp_path / "back") == expected[format]
    assert list((tmp_path / "scratch").iterdir()) == []
