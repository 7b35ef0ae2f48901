"""`--engine ray` from a bucket to a bucket, on nodes that share no disk: each has a /tmp of its own.

The bucket is that of ``rclone serve s3``, in the network of the cluster.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import ray_cluster
from support.builds import TESTS, write_images
from support.command import COMMAND_LIMIT_S, arguments, environment
from support.media import write_video
from support.packed import check_whole, fingerprints
from support.processes import wait_for, workers_in
from support.ray_cluster import Ray
from support.sloppy import BUCKET, find_server

pytestmark = pytest.mark.ray

NAMES = [f"{'ab'[n % 2]}/{n:03d}{'-bad' if n == 7 else ''}.png" for n in range(150)]
OPTIONS = ("--size", "16", "--label-from", "folder", "--shard-size", "20kB", "--max-rejects", "1.0")
STEPS = ("--steps", "decode,resize,support.steps:slow")
_APART = (
    'mount --bind "$RAY_TMPDIR" /mnt && mount -t tmpfs none /tmp && mkdir "$RAY_TMPDIR" && '
    'mount --bind /mnt "$RAY_TMPDIR" && exec "$@"'
)
"""Only the folder of Ray's own sockets stays, since Ray takes nodes with one address for one machine."""


class Apart:
    """A cluster whose nodes share no disk, and a bucket."""

    def __init__(self, ray: Ray, folder: Path, env: Mapping[str, str]) -> None:
        self.ray = ray
        self.bucket = folder / BUCKET
        self.env = {**environment(python_path=TESTS), **env, **ray.environment}

    def start_node(self) -> None:
        self.ray.start_node("unshare", "--mount", "sh", "-c", _APART, "sh")

    def build(self, out: str, scratch: Path, *more: str) -> list[str]:
        """The command line of a build on the cluster, whose temporary files are in a folder."""
        scratch.mkdir()
        words = arguments("build", f"s3://{BUCKET}/raw", f"s3://{BUCKET}/{out}", *OPTIONS, *more)
        on_ray = ("--engine", "ray", "--ray-address", self.ray.address)
        return self.ray.command("env", f"TMPDIR={scratch}", *words, *on_ray)

    def run(self, *command: str, expect: int = 0) -> str:
        done = subprocess.run(
            command,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
        assert done.returncode == expect, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr

    @contextmanager
    def start(self, log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start a command in a process group of its own, whose messages go to a file."""
        with (
            log.open("w") as file,
            subprocess.Popen(command, env=self.env, stderr=file, start_new_session=True) as process,
        ):
            try:
                yield process
            finally:
                process.kill()

    def pieces(self) -> list[int]:
        """The tasks of the pieces in the place of `--work`."""
        return [int(found[1]) for name in self.files("scratch") if (found := re.search(r"/part-([0-9]+)\.", name))]

    def files(self, folder: str) -> list[str]:
        """The names of the objects below a prefix."""
        root = self.bucket / folder
        return [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    if lacking := ray_cluster.missing():
        pytest.skip(lacking)
    if find_server("rclone") is None:
        pytest.skip("rclone is not installed")
    folder = tmp_path_factory.mktemp("store")
    write_images(folder / BUCKET / "raw", NAMES)
    for number in range(4):
        write_video(folder / BUCKET / f"videos/{number}.mp4", frames=12, number=number)
    with ray_cluster.cluster(0) as ray, ray.bucket(folder) as env:
        found = Apart(ray, folder, env)
        found.start_node()
        found.start_node()
        yield found


@pytest.fixture(scope="module")
def expected(apart: Apart, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What one host makes of the same bucket, by format."""
    root = tmp_path_factory.mktemp("expected")
    found = {}
    for format in ("lmdb", "npy", "webdataset"):
        words = arguments("build", f"s3://{BUCKET}/raw", root / format, *OPTIONS, "--format", format)
        apart.run(*apart.ray.command(*words, "--engine", "inline"))
        found[format] = fingerprints(root / format)
    words = arguments("build", f"s3://{BUCKET}/raw", root / "slow", *OPTIONS, *STEPS)
    apart.run(*apart.ray.command(*words, "--engine", "inline"))
    return {**found, "slow": fingerprints(root / "slow")}


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


@pytest.fixture(scope="module")
def built(apart: Apart, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset in the bucket, and next to it another of the same images."""
    for name in ("built", "built-again"):
        apart.run(*apart.build(name, tmp_path_factory.mktemp(name) / "scratch"))
    return f"s3://{BUCKET}/built"


@pytest.fixture(scope="module")
def frames(apart: Apart, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of frames of videos in the bucket."""
    words = arguments("build", f"s3://{BUCKET}/videos", f"s3://{BUCKET}/frames", "--size", "32", "--shard-size", "10kB")
    apart.run(*apart.ray.command("env", f"TMPDIR={tmp_path_factory.mktemp('scratch')}", *words, "--engine", "inline"))
    return f"s3://{BUCKET}/frames"


@pytest.mark.parametrize("job", ["convert", "merge", "split", "tracks"])
def test_jobs_from_a_bucket_to_a_bucket(apart: Apart, built: str, frames: str, tmp_path: Path, job: str) -> None:
    """They make what one host makes. The host of the command downloads no shard."""
    (tmp_path / "scratch").mkdir()
    inputs, options = {
        "convert": ([built], ["--format", "npy", "--shuffle", "3", "--shard-size", "10kB"]),
        "merge": ([built, f"{built}-again"], ["--shuffle", "3"]),
        "split": ([built], ["--stratify", "label", "--ratios", "train=0.5,val=0.5"]),
        "tracks": ([frames], ["--sample", "item"]),
    }[job]
    for out, engine in ((tmp_path / "local", "inline"), (f"s3://{BUCKET}/made-{job}", "ray")):
        places = ("env", f"TMPDIR={tmp_path / 'scratch'}", f"FACEPACK_CACHE={tmp_path / engine}")
        words = arguments("convert" if job == "tracks" else job, *inputs, out, *options, "--engine", engine)
        apart.run(*apart.ray.command(*places, f"RAY_ADDRESS={apart.ray.address}", *words))
    for part in ("train", "val") if job == "split" else ("",):
        there = downloaded(apart, f"made-{job}/{part}", tmp_path / "back" / part)
        assert there == fingerprints(tmp_path / "local" / part)
    assert list((tmp_path / "ray").rglob("manifest.json"))
    assert not list((tmp_path / "ray").rglob("shard-*"))
    assert list((tmp_path / "scratch").iterdir()) == []


def test_an_update_of_a_dataset_in_the_bucket(apart: Apart, tmp_path: Path) -> None:
    """A changed item has all shards written again, so the nodes read those of the dataset, and the host reads none."""
    places = ("env", f"TMPDIR={tmp_path / 'scratch'}", f"FACEPACK_CACHE={tmp_path / 'cache'}")
    (tmp_path / "scratch").mkdir()

    def build(*more: str) -> None:
        for out, engine in ((tmp_path / "local", "inline"), (f"s3://{BUCKET}/grown", "ray")):
            words = arguments("build", f"s3://{BUCKET}/grows", out, *OPTIONS, *more, "--engine", engine)
            apart.run(*apart.ray.command(*places, f"RAY_ADDRESS={apart.ray.address}", *words))

    source = write_images(apart.bucket / "grows", NAMES[:60])
    build()
    write_images(source, NAMES[60:90])
    shutil.copy(source / NAMES[1], source / NAMES[2])
    build("--update", "--changed", "replace")
    assert downloaded(apart, "grown", tmp_path / "back") == fingerprints(tmp_path / "local")
    assert list((tmp_path / "cache").rglob("manifest.json"))
    assert not list((tmp_path / "cache").rglob("shard-*"))
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_lost_coordinator_and_a_lost_node(apart: Apart, expected: dict[str, dict[str, str]], tmp_path: Path) -> None:
    """The same command goes on where the lost coordinator was: no piece is made twice."""
    more = ("--work", f"s3://{BUCKET}/scratch", *STEPS)
    with apart.start(tmp_path / "first.log", *apart.build("out", tmp_path / "first", *more)) as process:
        wait_for("a piece", apart.pieces, patience_s=COMMAND_LIMIT_S)
        os.killpg(process.pid, signal.SIGKILL)
    shutil.rmtree(tmp_path / "first")
    wait_for("the end of its workers", lambda: not workers_in(Path(BUCKET) / "out"))
    kept = apart.pieces()
    assert "manifest.json" not in apart.files("out")
    with apart.start(tmp_path / "second.log", *apart.build("out", tmp_path / "second", *more)) as process:
        wait_for("another piece", lambda: len(apart.pieces()) > len(kept), patience_s=COMMAND_LIMIT_S)
        assert set(apart.pieces()) > set(kept)
        os.kill(apart.ray.raylets()[-1], signal.SIGKILL)
        process.wait(COMMAND_LIMIT_S)
    said = (tmp_path / "second.log").read_text()
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert [line for line in said.splitlines() if ".png" in line] == []
    assert apart.files("scratch") == []
    assert downloaded(apart, "out", tmp_path / "back") == expected["slow"]
    apart.start_node()


def test_what_only_the_host_of_the_command_has_is_named(apart: Apart, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("[profile lab]\nregion = us-east-1\n")
    for name, more, settings, why in (
        ("profile", (), {"AWS_PROFILE": "lab", "AWS_CONFIG_FILE": str(config)}, "no AWS profile 'lab'"),
        ("folder", ("--work", str(tmp_path / "work")), {}, f"expected the folder {tmp_path}/work"),
    ):
        words = apart.build(f"only-{name}", tmp_path / name, *more)
        place = words.index("env") + 1
        words[place:place] = [f"{variable}={value}" for variable, value in settings.items()]
        said = apart.run(*words, expect=1)
        assert re.search(f"no node can do the work: .*{why}", said)
        assert "were lost 5 times" not in said
        assert "manifest.json" not in apart.files(f"only-{name}")


def test_a_local_source_is_refused_before_any_work(apart: Apart, tmp_path: Path) -> None:
    source = write_images(tmp_path / "few", ["a/0.png"])
    (tmp_path / "scratch").mkdir()
    words = arguments("build", source, f"s3://{BUCKET}/refused", "--size", "16")
    on_ray = ("--engine", "ray", "--ray-address", apart.ray.address)
    said = apart.run(*apart.ray.command("env", f"TMPDIR={tmp_path / 'scratch'}", *words, *on_ray), expect=1)
    assert f"expected the input, which has '{source}" in said
    assert "manifest.json" not in apart.files("refused")


def test_pieces_that_nodes_do_not_see_are_merged_by_this_host_alone(apart: Apart, tmp_path: Path) -> None:
    source, pieces = write_images(tmp_path / "few", ["a/0.png", "a/1.png"]), tmp_path / "pieces"
    apart.run(*arguments("build", source, pieces, "--size", "16", "--share", "1/1", "--engine", "inline"))
    merge = arguments("merge", pieces, f"s3://{BUCKET}/pieces")
    on_ray = ("--engine", "ray")
    said = apart.run(*apart.ray.command("env", f"RAY_ADDRESS={apart.ray.address}", *merge, *on_ray), expect=1)
    assert f"expected the input, which has '{pieces}" in said.splitlines()[-1]
    assert "manifest.json" not in apart.files("pieces")
    apart.run(*apart.ray.command(*merge, "--engine", "inline"))
    apart.run(*arguments("build", source, tmp_path / "whole", "--size", "16", "--engine", "inline"))
    assert downloaded(apart, "pieces", tmp_path / "back") == fingerprints(tmp_path / "whole")
