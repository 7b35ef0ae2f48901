"""Builds that are killed at every operation on files, one after another. Run as a program:
``crash_points.py SOURCE FOLDER FIRST STEP [overwrite | update | replace | shares]``.

Each round forks, builds in the child, and has the child kill itself with a real SIGKILL just before its k-th operation
(seen by an audit hook); then it forks again and lets the same build run to its end. It prints one JSON line per round:
the operation, the state of the folder at that moment, and its state in the end. With ``overwrite``, each build replaces
a dataset of smaller images; with ``update``, it adds the last third of the images to a dataset of the others; with
``replace``, the first of the others is gone besides, and the second has changed. With ``shares``, it is packed in two
shares, whose pieces are then merged.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import packer
from packer import verify
from packer.assembly.piece import Piece
from packer.jobs.engines.inline import InlineEngine
from packer.workspace import Workspace
from packer.workspace.durable import read_record
from shardspec.errors import NotADatasetError
from shardspec.layout import Layout
from support.media import scene, write_image
from support.packed import check_whole, fingerprints, read_samples
from support.steps import LOG, read_log

OPERATIONS = frozenset({"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "open"})


MODES: dict[str, dict[str, Any]] = {
    "": {},
    "overwrite": {"overwrite": True},
    "update": {"update": True},
    "replace": {"update": True, "changed": "replace", "gone": "drop"},
    "shares": {},
}

OLD_SIZE = 8
NEW_SIZE = 16


def build(source: Path, out: Path, mode: str) -> None:
    """The build that is crashed: several tasks, several shards, in one process."""
    how: dict[str, Any] = {"engine": "inline", "progress": False, **MODES[mode]}
    how |= {"steps": ("decode", "resize", "support.steps:log_items"), "size": NEW_SIZE, "shard_size": 20_000}
    how |= {"label_from": "folder"}
    if mode != "shares":
        packer.build(source, out, **how)
        return
    for share in ("1/2", "2/2"):
        packer.build(source, pieces_of(out), share=share, **how)
    packer.merge([pieces_of(out)], out, engine="inline", progress=False)


def pieces_of(out: Path) -> Path:
    """The folder of pieces of a build in shares. Its operations on files are seen as those below `out`."""
    return out.with_name(f"{out.name}.pieces")


def build_old(source: Path, out: Path) -> None:
    """The dataset that is replaced: other samples, more shards of the same names, another index."""
    packer.build(source, out, size=OLD_SIZE, shard_size=4_000, engine="inline", progress=False)


def build_part(source: Path, aside: Path, out: Path) -> None:
    """The dataset that is added to: that of the first two thirds of the images."""
    aside.mkdir()
    paths = sorted(path for path in source.rglob("*") if path.is_file())
    late = paths[len(paths) * 2 // 3 :]
    for number, path in enumerate(late):
        path.rename(aside / str(number))
    build(source, out, "")
    for number, path in enumerate(late):
        (aside / str(number)).rename(path)


def change_part(source: Path) -> None:
    """Remove the first image, and put another in the place of the second."""
    first, second, *_ = sorted(path for path in source.rglob("*") if path.is_file())
    first.unlink()
    write_image(second, scene(77, (24, 18)))


def describe(event: str, arguments: tuple[Any, ...], out: Path) -> str | None:
    """An operation that changes something below `out`, in words; None for any other."""
    if event not in OPERATIONS or (
        event == "open" and not (isinstance(arguments[1], str) and set(arguments[1]) & set("wxa+"))
    ):
        return None
    names = [os.fsdecode(a) for a in arguments[:2] if isinstance(a, str | bytes | os.PathLike)]
    inside = [name.removeprefix(f"{out}/") for name in names if name.startswith(str(out))]
    return f"{event} {' '.join(inside)}" if inside else None


def run_forked(source: Path, out: Path, mode: str, kill_at: int | None) -> tuple[int, str]:
    """Build in a child; its exit status, and the operation before which it was killed."""
    return run_hooked(lambda: build(source, out, mode), out, kill_at)


def run_hooked(call: Callable[[], None], out: Path, kill_at: int | None) -> tuple[int, str]:
    """Run something in a child; its exit status, and the operation below `out` before which it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        count = 0

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal count
            operation = describe(event, arguments, out)
            if operation is None:
                return
            if count == kill_at:
                os.write(writing, operation.encode("utf-8", "replace"))
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

        status = 1
        try:
            sys.addaudithook(hook)
            call()
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        operation = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return status, operation


def look(out: Path) -> dict[str, Any]:
    """What a reader and a resume would find."""
    pieces, space = (open_workspace(path) for path in (pieces_of(out), out))
    found: dict[str, Any] = {"parts": [], "shards": {}, "readable": False}
    found["assembling"] = space.assembly.exists()
    parts = [path for one in (pieces, space) for path in one.part_files() if path.suffix != ".partial"]
    found["parts"] = sorted(report.name for path in parts for report in Piece(path).items)
    for record in space.staging.glob("*/*/record.json"):
        if record.parent.suffix == ".partial":
            continue
        for folder in (space.out, record.parent):
            shard = folder / f"{read_record(record)['name']}.lmdb"
            if shard.exists():
                found["shards"][shard.name] = [shard.stat().st_ino, shard.stat().st_mtime_ns]
    try:
        Layout(out).load()
        found["readable"] = True
        found["sizes"] = sorted({sample["image"].shape[0] for sample in read_samples(out)})
        found["samples"] = len(read_samples(out))
        found["problems"] = verify(out).problems
        found["swapped"] = not space.assembly.exists()
    except NotADatasetError:
        pass
    return found


def open_workspace(out: Path) -> Workspace:
    """The workspace of a build, with the key of its plan if there is one."""
    space = Workspace(out / ".build")
    return space.of_plan(json.loads(space.plan.read_bytes())["fingerprint"]) if space.plan.exists() else space


def identities(out: Path) -> dict[str, list[int]]:
    """Which file each shard is."""
    return {path.name: [path.stat().st_ino, path.stat().st_mtime_ns] for path in out.glob("*.lmdb")}


def main(source: Path, folder: Path, first: int, step: int, mode: str) -> None:
    """Crash at every `step`-th operation from the `first` one on."""
    assert InlineEngine.__module__ in sys.modules  # loaded before the forks, once for all
    old = folder / "old"
    os.environ[LOG] = str(folder / "old.log")
    if mode == "overwrite":
        build_old(source, old)
    elif mode in ("update", "replace"):
        build_part(source, folder / "aside", old)
        if mode == "replace":
            change_part(source)
    kill_at = first
    while True:
        out = folder / f"{kill_at:04d}"
        if old.exists():
            shutil.copytree(old, out)
        standing = identities(out)
        log = folder / f"{kill_at:04d}.log"
        os.environ[LOG] = str(log)
        status, operation = run_forked(source, out, mode, kill_at)
        if os.WIFEXITED(status):
            print(json.dumps({"whole": fingerprints(out), "status": status}))
            return
        at_crash = look(out)
        before = read_log(log)
        status, _ = run_forked(source, out, mode, None)
        line: dict[str, Any] = {"killed_before": operation, "status": status, "crash": at_crash, "before": before}
        if not status:
            check_whole(out)
            line |= {"fingerprints": fingerprints(out), "standing": standing, "shards": identities(out)}
            line["after"] = read_log(log)[len(before) :]
        print(json.dumps(line), flush=True)
        kill_at += step


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), "".join(sys.argv[5:]))
