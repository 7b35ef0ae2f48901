"""Shards that are written in a machine's own scratch, since the dataset lies on a file system shared with others."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.builds import write_pictures
from support.packed import check_whole, fingerprints

import packer
from packer.assembly import shard
from packer.workspace.durable import writing
from shardspec.errors import BuildError


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that this process takes for one of a network file system, and what is beside it for local disks."""
    shared = tmp_path / "shared"

    def file_system_of(folder: Path) -> tuple[str, str]:
        return (str(shared), "nfs4") if folder.is_relative_to(shared) else ("/", "ext4")

    monkeypatch.setattr(shard, "file_system_of", file_system_of)
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path / "scratch"))
    return shared / "out"


def test_the_same_bytes_come_out_of_the_scratch(tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_pictures(tmp_path / "source", [f"a/{n}.png" for n in range(20)])
    how = {"size": 16, "shard_size": 5000, "format": "hdf5", "label_from": "folder", "engine": "inline"}
    seen = []

    @contextmanager
    def naming(scratch: Path) -> Iterator[None]:
        seen.append(scratch)
        yield

    monkeypatch.setattr(shard, "_naming", naming)
    dead = f"packer-shard-{shard.process_mark().replace(':', '_')[:-1]}x-abc"
    (tmp_path / "scratch" / dead).mkdir()
    packer.build(source, out, progress=False, **how)
    count = len(list(out.glob("shard-*.h5")))
    assert seen == [tmp_path / "scratch"] * count
    assert not list((tmp_path / "scratch").iterdir())
    check_whole(out)
    packer.build(source, tmp_path / "local", progress=False, **how)
    assert len(seen) == count, "on a local disk nothing is copied"
    assert fingerprints(out) == fingerprints(tmp_path / "local")


def test_a_full_scratch_is_named_and_one_without_room_is_not_used(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_pictures(tmp_path / "source", ["a.png"])

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device", str(tmp_path / "scratch" / "shard-00000.h5"))

    with monkeypatch.context() as patch:
        patch.setattr(shard, "_write_files", full)
        with pytest.raises(BuildError, match="scratch") as caught:
            packer.build(source, out, format="hdf5", engine="inline", progress=False)
    assert re.search(
        r"No space left on device \(host .* scratch .*scratch first: .* SLURM_TMPDIR or TMPDIR\)", str(caught.value)
    )
    assert len(str(caught.value)) < 800
    monkeypatch.setattr(shard, "_SCRATCH_BYTES", 1 << 62)  # more than any disk has
    packer.build(source, out, format="hdf5", engine="inline", progress=False)
    check_whole(out)


def test_a_copy_that_differs_is_no_shard(tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_pictures(tmp_path / "source", ["a.png"])

    def copyfile(path: Path, target: Path) -> None:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        target.write_bytes(data)

    with monkeypatch.context() as patch:
        patch.setattr(shard.shutil, "copyfile", copyfile)
        with pytest.raises(BuildError, match="differs"), writing(out):
            packer.build(source, out, format="hdf5", engine="inline", progress=False)
    assert not list(out.glob("shard-*.h5"))
    packer.build(source, out, format="hdf5", engine="inline", progress=False)
    check_whole(out)
