"""Cost of an item as the number of items grows: CPU time and peak memory of every command, and of the readers.

    python -m benchmarks.pack_scale [--items 10000 100000 1000000] [--files 300] [--workers 2] [--json FILE]
                                    [--folder DIR] [--commands build verify split-by-note ...]
    python -m benchmarks.tables FILE                        # the tables of docs/background/benchmarks.md, of what was measured

Method. `--files` JPEGs of 64 x 64 pixels, all different, are named by a table of as many rows as there are to be items,
again and again, each row with a label, a number and a text of its own. Every command is the ``packer`` command line, in
a process of its own, over the dataset that *build* made. *add* joins a table with a
number for each key.

The figures of a command are those of the process that was started (*coordinator*) and of those that it starts. *CPU* is
that of all of them, from the system's account of processes that have ended; between two numbers of items, an item costs
what the CPU time grows by from one to the other, so that starts count in none. The coordinator's CPU time and all
memory are read from ``/proc`` while the processes run, and the last tenth of a second is missed. *Peak* is that of the
resident memory (``VmHWM``), *own* the largest anonymous memory that was seen (``RssAnon``): without libraries and mapped
files, whose pages the system takes back when it needs them. *Own bytes an item* are what it grows by from one number of
items to the next. What readers do is measured likewise, each in a process of its own, without what ``import torch`` and
``import readers`` take (`benchmarks/scale_readers.py`).
"""

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from benchmarks.measure import machine, versions
from benchmarks.scale_readers import OPERATIONS
from benchmarks.tables import scale_tables
from readers import open_dataset

LIBRARIES = ("numpy", "simplejpeg", "opencv-python-headless", "lmdb", "torch")
_SIDE = 64
_QUALITY = 50
_POLL_S = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")


class Watch:
    """Reads the CPU time and peak memory of a process and its children from ``/proc`` until it ends.

    Attributes
    ----------
    found : dict of str to float
        ``coordinator_cpu_s``: CPU time of the process itself. ``coordinator_bytes`` and ``own_bytes``: its peak memory, and
        the anonymous part. ``worker_bytes`` and ``worker_own_bytes``: the same of the largest of its children.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        names = ("coordinator_cpu_s", "coordinator_bytes", "own_bytes", "worker_bytes", "worker_own_bytes")
        self.found: dict[str, float] = dict.fromkeys(names, 0)
        self._thread.start()

    def end(self) -> None:
        """Stop watching."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_POLL_S):
            try:
                self._look()
            except (OSError, IndexError):  # it has just ended
                continue

    def _look(self) -> None:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        self._note(coordinator_cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS)
        total, own = _memory(self._pid)
        self._note(coordinator_bytes=total, own_bytes=own)
        for task in Path(f"/proc/{self._pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                total, own = _memory(int(child))
                self._note(worker_bytes=total, worker_own_bytes=own)

    def _note(self, **figures: float) -> None:
        for name, figure in figures.items():
            self.found[name] = max(self.found[name], figure)


def _memory(pid: int) -> tuple[int, int]:
    """Peak resident memory, and anonymous memory now, in bytes."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    found = {line[0]: int(line[1]) * 1024 for line in lines if line[0] in ("VmHWM:", "RssAnon:")}
    return found.get("VmHWM:", 0), found.get("RssAnon:", 0)


def run(arguments: Sequence[str]) -> dict[str, float]:
    """Run a command, and return what it took: seconds, CPU time, and `Watch.found`.

    Raises
    ------
    RuntimeError
        If it fails.
    """
    start, before = time.perf_counter(), os.times()
    command = [sys.executable, "-m", "packer", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    watch = Watch(process.pid)
    _, errors = process.communicate()
    watch.end()
    if process.returncode != 0:
        raise RuntimeError(f"packer {' '.join(arguments)}: ended with status {process.returncode}: {errors[-2000:]}")
    after = os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return {"seconds": time.perf_counter() - start, "cpu_s": cpu_s, **watch.found}


def make_files(folder: Path, files: int) -> list[str]:
    """Make small JPEGs that all differ, unless they are there, and return their names."""
    rng = np.random.default_rng(0)
    names = []
    for number in range(files):
        small = rng.integers(0, 256, (8, 8, 3), np.uint8)
        names.append(f"image-{number:04d}.jpg")
        image = cv2.resize(small, (_SIDE, _SIDE), interpolation=cv2.INTER_CUBIC)
        if not (folder / names[-1]).exists():
            cv2.imwrite(str(folder / names[-1]), image, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
    return names


def write_table(path: Path, names: Sequence[str], items: int) -> None:
    """Write a table that names the files again and again."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "label", "take", "note"))
        writer.writerows((names[i % len(names)], f"class-{i % 10}", i, f"row {i}") for i in range(items))


def write_scores(path: Path, dataset: Path) -> None:
    """Write a table with a number for each key of a dataset, in another order than the dataset's."""
    keys = open_dataset(dataset, fields=["key"]).column("key")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("key", "score"))
        writer.writerows((keys[i], i / 7) for i in reversed(range(len(keys))))


COMMANDS: Mapping[str, str] = {
    "build --dry-run": "build {table} {out} {working} --dry-run",
    "build": "build {table} {out} {working}",
    "build found finished": "build {table} {out} {working}",
    "build --update, nothing new": "build {table} {out} {working} --update",
    "verify": "verify {out} --quiet",
    "inspect": "inspect {out} --json",
    "split --by source": "split {out} {made} --by source --ratios train=0.9,val=0.1 {working}",
    "merge": "merge {made}/fold-0 {made}/fold-1 {merged} {working}",
    "convert": "convert {out} {made} --format webdataset {working}",
    "add": "add {out} {scores} --quiet",
}
"""In the order in which they are run: the last one changes the dataset."""


def measure(items: int, folder: Path, names: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """All commands, one after another, over one table."""
    paths = {"out": folder / f"packed-{items}", "table": folder / f"table-{items}.csv", "scores": folder / "scores.csv"}
    paths |= {"made": folder / "made", "merged": folder / "merged"}
    out, made = paths["out"], paths["made"]
    working = f"--workers {options.workers} --quiet"
    write_table(paths["table"], names, items)
    found: dict[str, Any] = {"commands": {}, "readers": {}}

    def words(command: str) -> list[str]:
        return [word.format(**paths) for word in command.replace("{working}", working).split()]

    def prepare(name: str) -> None:
        """Do what must be done before a command, outside its time."""
        if name == "build":
            shutil.rmtree(out, ignore_errors=True)
        elif name != "build --dry-run" and not out.exists():
            run(words(COMMANDS["build"]))
        if name == "merge":
            run(words("split {out} {made} --folds 2 {working}"))
        elif name == "add":
            write_scores(paths["scores"], out)

    def note(what: str, name: str, spent: Mapping[str, float]) -> None:
        found[what][name] = dict(spent)
        print(json.dumps({"items": items, "what": name, **spent}), file=sys.stderr, flush=True)

    for name in COMMANDS:
        if name == "add" and options.readers:
            for operation in OPERATIONS:
                note("readers", operation, _read(out, operation))
        if name in options.commands:
            prepare(name)
            note("commands", name, run(words(COMMANDS[name])))
            for path in (made, paths["merged"]):
                shutil.rmtree(path, ignore_errors=True)
    if not options.keep or "add" in options.commands:
        shutil.rmtree(out, ignore_errors=True)
    return {"items": items, **found}


def _read(dataset: Path, operation: str) -> dict[str, float]:
    """One operation of the readers, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.scale_readers", str(dataset), operation]
    found: dict[str, float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=[10**4, 10**5, 10**6])
    parser.add_argument("--files", type=int, default=300)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--commands", nargs="*", choices=COMMANDS, default=list(COMMANDS), metavar="NAME")
    parser.add_argument("--readers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--folder", type=lambda path: Path(path).absolute(), help="where to work; by default a temporary folder"
    )
    parser.add_argument("--keep", action="store_true", help="keep the datasets in the folder, and use them again")
    parser.add_argument("--json", type=Path, help="write everything that was measured here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        names = make_files(folder, options.files)
        groups = [measure(items, folder, names, options) for items in sorted(options.items)]
    print("\n\n".join(scale_tables(groups)))
    if options.json:
        settings = {key: getattr(options, key) for key in ("files", "workers")}
        found = {"benchmark": "pack_scale", "machine": machine(), "versions": versions(LIBRARIES), "settings": settings}
        options.json.write_text(json.dumps({**found, "groups": groups}, indent=1) + "\n")


if __name__ == "__main__":
    main()
