"""Builds that are killed, damaged and resumed. Run as a program: ``damaged_builds.py FOLDER MODE SEED ROUNDS``.

Each round takes the folder of a job that was killed before some operation on a file, damages one file in its ``.build``
(a flipped byte, a cut, a deletion), and runs the same command again. It prints a JSON line: the damage, and what came of
it. If that is an error, the round does what the error advises, and runs the command once more.
"""

import json
import random
import re
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import packer
from readers import open_dataset
from shardspec.errors import ShardspecError
from shardspec.layout import Layout
from shardspec.manifest import Manifest
from support.crash_points import change_part, run_hooked
from support.media import scene, write_image

QUIET: dict[str, Any] = {"engine": "inline", "progress": False}
IMAGES = 72
STATES = 8
"""Kill points in one run."""
_TRIES = 40


def write_source(root: Path) -> None:
    """Small images of two classes: three tasks."""
    for number in range(IMAGES):
        write_image(root / ("real" if number % 3 else "fake") / f"{number:03d}.png", scene(number, (12, 10)))


def jobs(folder: Path) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """For each mode, what happens in the folder ``out`` before the job, and the job."""
    source, out, old = folder / "source", folder / "out", folder / "old"
    how: dict[str, Any] = {"shard_size": 9_000, **QUIET}

    def build_old(to: Path) -> None:
        packer.build(source, to, include="*0.png", **how)

    def build_part() -> None:
        """A dataset of two thirds of the images, with a further field; then the first image goes, and another changes."""
        late = sorted(source.rglob("*.png"))[IMAGES * 2 // 3 :]
        for path in late:
            path.rename(folder / path.name)
        packer.build(source, out, **how)
        keys = list(open_dataset(out).column("key"))
        packer.add(out, {"key": keys, "weight": [*range(1, len(keys)), None]}, allow_missing=True, progress=False)
        for path in late:
            (folder / path.name).rename(path)
        change_part(source)

    return {
        "build": (lambda: None, lambda: packer.build(source, out, shuffle=7, **how)),
        "overwrite": (lambda: build_old(out), lambda: packer.build(source, out, overwrite=True, **how)),
        "update": (build_part, lambda: packer.build(source, out, update=True, changed="replace", gone="drop", **how)),
        "convert": (lambda: None, lambda: packer.convert(old, out, format="npy", shard_size=5_000, progress=False)),
    }


def damage(out: Path, rng: random.Random) -> str:
    """Damage a random file below ``.build``, and say how; empty if there is none."""
    files = sorted(path for path in (out / ".build").rglob("*") if path.is_file() and path.name != "lock")
    if not files:
        return ""
    path = rng.choice(files)
    name, data = path.relative_to(out).as_posix(), bytearray(path.read_bytes())
    path.unlink()  # it may be a hard link
    how = rng.choice(("flip", "flip", "flip", "cut", "delete")) if data else "delete"
    if how == "delete":
        return f"delete {name}"
    place = rng.randrange(len(data))
    if how == "flip":
        data[place] ^= 1 << rng.randrange(8)
    path.write_bytes(data if how == "flip" else data[:place])
    return f"{how} {name} at {place} of {len(data)}"


def run(job: Callable[[], Any]) -> str:
    """Run a job; what it says if it fails."""
    try:
        job()
    except ShardspecError as error:
        return str(error)
    return ""


def follow(advice: str) -> None:
    """Delete what the message of an error says."""
    found = re.search(r": delete (/\S+(?: and /\S+)*), and run", advice)
    assert found is not None, advice
    for path in map(Path, found[1].split(" and ")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def contents(out: Path) -> Manifest:
    """The manifest, without times. Old files may be left over, and are part of no dataset."""
    return replace(Layout(out).load(), wall_clock={})


def one_round(out: Path, job: Callable[[], Any], expected: Manifest) -> str:
    """Resume, and after an error follow its advice and resume again; what is wrong, or nothing."""
    said = run(job)
    if said:
        if "\n" in said:
            return f"more than a line: {said}"
        follow(said)
        again = run(job)
        if again:
            return f"{said}\nthen: {again}"
    found, report = contents(out), packer.verify(out, progress=False)
    return "" if found == expected and report.ok else f"another dataset, {report.problems} (after {said!r})"


def main(folder: Path, mode: str, seed: int, rounds: int) -> None:
    """See the module."""
    rng = random.Random(f"{seed} {mode}")
    out, states = folder / "out", []
    write_source(folder / "source")
    packer.build(folder / "source", folder / "old", shard_size=9_000, **QUIET)
    begin, job = jobs(folder)[mode]
    begin()
    if out.exists():
        shutil.copytree(out, folder / "before")
    job()
    expected, most = contents(out), 400
    for _ in range(_TRIES):
        if len(states) == STATES:
            break
        shutil.rmtree(out)
        if (folder / "before").exists():
            shutil.copytree(folder / "before", out)
        at = rng.randrange(most)
        status, _operation = run_hooked(job, out, at)
        if not status:
            most = max(1, at)
        elif (out / ".build").exists():
            states.append(shutil.copytree(out, folder / f"killed{len(states)}"))
    for _ in range(rounds):
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(rng.choice(states), out)
        what = damage(out, rng)
        try:
            wrong = one_round(out, job, expected)
        except BaseException:
            wrong = traceback.format_exc()
        print(json.dumps({"damage": what, "wrong": wrong}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
