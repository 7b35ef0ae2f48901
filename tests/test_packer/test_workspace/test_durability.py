"""What a power cut leaves: only what was flushed counts, and a line may be cut anywhere."""

import importlib
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from support.builds import write_images
from support.packed import check_whole

import packer
from packer import convert
from packer.assembly import piece_writer
from packer.workspace import append_line, durable
from shardspec.errors import BuildError
from shardspec.formats import FORMATS


def test_what_the_shards_plan_goes_with_is_flushed_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the plan of the shards stands, a resume takes order, reports and index as they lie."""
    flushed: set[int] = set()
    left: dict[str, bool] = {}
    fsync, replace = os.fsync, os.replace

    def note_flush(descriptor: int) -> None:
        flushed.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def note_plan(source: Any, target: Any) -> None:
        if Path(target).name == "assembly.json":
            space = Path(target).parent
            for path in (space / "order.npy", *(space / "final").rglob("*")):
                left[path.name] = path.stat().st_ino in flushed
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_flush)
    monkeypatch.setattr(os, "replace", note_plan)
    write_images(tmp_path / "in", ["a.png", "b.png"])
    packer.build(tmp_path / "in", tmp_path / "out", shuffle=1, engine="inline", progress=False)
    index = ("index", "frame.npy", "frame_position.npy", "time.npy")
    assert left == dict.fromkeys(("order.npy", "items.jsonl", "rejects.jsonl", *index), True)
    check_whole(tmp_path / "out")


def test_a_piece_is_flushed_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[tuple[int, int]] = []
    fsync, publish = os.fsync, piece_writer.publish
    parts = []

    def note_flush(descriptor: int) -> None:
        found = os.fstat(descriptor)
        flushed.append((found.st_ino, found.st_size))
        fsync(descriptor)

    def note_part(attempt: Path, path: Path) -> bool:
        found = attempt.stat()
        parts.append((found.st_ino, found.st_size) in flushed)
        return publish(attempt, path)

    monkeypatch.setattr(os, "fsync", note_flush)
    monkeypatch.setattr(piece_writer, "publish", note_part)
    write_images(tmp_path / "in", ["a.png"])
    packer.build(tmp_path / "in", tmp_path / "out", engine="inline", progress=False)
    assert parts == [True]


@pytest.mark.skipif(os.name == "nt", reason="asks fcntl how a file was opened")
@pytest.mark.parametrize("format", sorted(FORMATS))
def test_what_is_flushed_was_opened_for_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    """Windows flushes no file that was opened for reading; folders are never flushed there."""
    fcntl = importlib.import_module("fcntl")
    read_only: list[int] = []
    flushed = 0
    fsync = os.fsync

    def note(descriptor: int) -> None:
        nonlocal flushed
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            flushed += 1
            if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                read_only.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    write_images(tmp_path / "in", ["a.png", "b.png"])
    for quality in (90, 91):
        options = {"quality": quality, "shuffle": 1, "format": format, "overwrite": True}
        packer.build(tmp_path / "in", tmp_path / "out", engine="inline", progress=False, **options)
    convert(tmp_path / "out", tmp_path / "copy", format=format, shuffle=2, engine="inline", progress=False)
    assert flushed > 5
    assert read_only == []


@pytest.mark.parametrize("before", [b"", b'{"a":1}\n', b'{"a":1}\n{"b":', b'{"a":1}\n{"b":2}'])
def test_a_line_behind_a_cut_one_is_read(tmp_path: Path, before: bytes) -> None:
    path = tmp_path / "lines"
    path.write_bytes(before)
    append_line(path, {"c": 3})
    append_line(path, {"d": 4})
    assert list(durable.read_log(path)) == [{"c": 3}, {"d": 4}]


def test_a_changed_line_is_left_out(tmp_path: Path) -> None:
    for number in range(3):
        append_line(tmp_path / "log", {"number": number})
    data = (tmp_path / "log").read_bytes()
    (tmp_path / "log").write_bytes(data.replace(b'"number":1', b'"number":7'))
    assert [line["number"] for line in durable.read_log(tmp_path / "log")] == [0, 2]


def test_what_cannot_be_removed_is_named_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()

    def refuse(path: Any, **_: Any) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "unlink", refuse)
    place = re.escape(str(tmp_path / "folder"))
    with (
        pytest.raises(BuildError, match=rf"\A{place}.*: cannot be written: Permission denied"),
        durable.writing(tmp_path),
    ):
        durable.remove_tree(tmp_path / "folder")
