"""What packing costs an item as the items become many: rate, CPU time and peak memory of each process.

    python -m benchmarks.pack_scale [--items 10000 100000 1000000] [--files 300] [--workers 2] [--json FILE]
                                    [--commands dry-run build verify inspect split merge convert resume]

Method. `--files` JPEGs of 64 x 64 pixels, all different, are named by a table of as many rows as there are to be items,
again and again, each row with a label, a number and a text of its own. Every command is the ``packer`` command line, in
a process of its own. *Coordinator* is the process that was started, *workers* those that it starts; *resume* is the
build killed after half of the items, and then done by the same command again, whose figures are shown. CPU time of the
coordinator and peak memory are read from ``/proc`` while the processes run, so that the last tenth of a second is
missed. *MB* is the peak of the resident memory (``VmHWM``), *own* the largest anonymous memory that was seen
(``RssAnon``): without libraries and mapped files, whose pages the system takes back when it needs them. *Bytes an item*
are what the own memory of the coordinator grows by from one number of items to the next.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from benchmarks.measure import machine, versions

COMMANDS = ("dry-run", "build", "verify", "inspect", "split", "merge", "convert", "resume")
LIBRARIES = ("numpy", "simplejpeg", "opencv-python-headless")
_SIDE = 64
_POLL_S = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Spent:
    """What a command took.

    Attributes
    ----------
    seconds : float
    coordinator_cpu_s : float
        CPU time of the process that was started, without those that it started.
    coordinator_bytes, worker_bytes : int
        Peak memory; of the workers, the largest of any.
    own_bytes, worker_own_bytes : int
        The anonymous part of it.
    """

    seconds: float
    coordinator_cpu_s: float
    coordinator_bytes: int
    own_bytes: int
    worker_bytes: int
    worker_own_bytes: int


class Watch:
    """Reads the CPU time and peak memory of a process and its children from ``/proc`` until it ends."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.cpu_s = 0.0
        self.bytes = self.own_bytes = self.worker_bytes = self.worker_own_bytes = 0
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
        self.cpu_s = max(self.cpu_s, (int(fields[11]) + int(fields[12])) / _TICKS)
        total, own = _memory(self._pid)
        self.bytes, self.own_bytes = max(self.bytes, total), max(self.own_bytes, own)
        for task in Path(f"/proc/{self._pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                total, own = _memory(int(child))
                self.worker_bytes, self.worker_own_bytes = (
                    max(self.worker_bytes, total),
                    max(self.worker_own_bytes, own),
                )


def _memory(pid: int) -> tuple[int, int]:
    """Peak resident memory, and anonymous memory now, in bytes."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    found = {line[0]: int(line[1]) * 1024 for line in lines if line[0] in ("VmHWM:", "RssAnon:")}
    return found.get("VmHWM:", 0), found.get("RssAnon:", 0)


def run(arguments: Sequence[str], until: Callable[[], bool] | None = None) -> Spent:
    """Run a command, or kill it once a condition holds.

    Raises
    ------
    RuntimeError
        If it fails.
    """
    start = time.perf_counter()
    command = [sys.executable, "-m", "packer", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    watch = Watch(process.pid)
    while until is not None and process.poll() is None:
        if until():
            process.kill()
        time.sleep(_POLL_S)
    _, errors = process.communicate()
    watch.end()
    if until is None and process.returncode != 0:
        raise RuntimeError(f"packer {' '.join(arguments)}: ended with status {process.returncode}: {errors[-2000:]}")
    return Spent(
        time.perf_counter() - start,
        watch.cpu_s,
        watch.bytes,
        watch.own_bytes,
        watch.worker_bytes,
        watch.worker_own_bytes,
    )


def make_files(folder: Path, files: int) -> list[str]:
    """Make small JPEGs that all differ, and return their names."""
    rng = np.random.default_rng(0)
    names = []
    for number in range(files):
        small = rng.integers(0, 256, (8, 8, 3), np.uint8)
        names.append(f"picture-{number:04d}.jpg")
        cv2.imwrite(str(folder / names[-1]), cv2.resize(small, (_SIDE, _SIDE), interpolation=cv2.INTER_CUBIC))
    return names


def write_table(path: Path, names: Sequence[str], items: int) -> None:
    """Write a table that names the files again and again."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "label", "take", "note"))
        writer.writerows((names[i % len(names)], f"class-{i % 10}", i, f"row {i}") for i in range(items))


def _has_half(folder: Path) -> bool:
    """Whether an unfinished build has left the parts of more than half of its tasks."""
    plan, parts = folder / "plan.json", folder / "parts"
    if not plan.exists() or not parts.is_dir():
        return False
    tasks = len(json.loads(plan.read_bytes())["tasks"]) // 3  # three numbers each
    return 2 * sum(1 for _ in parts.rglob("part-*")) > tasks


def measure(items: int, folder: Path, names: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """All commands, one after another, over one table."""
    table, out, temporary = folder / f"table-{items}.csv", folder / "packed", folder / "more"
    write_table(table, names, items)
    build = ["build", str(table), str(out), "--workers", str(options.workers), "--quiet"]
    found: dict[str, Any] = {}

    def note(name: str, arguments: Sequence[str], until: Callable[[], bool] | None = None) -> None:
        spent = run(arguments, until)
        found[name] = asdict(spent)
        print(json.dumps({"items": items, "command": name, **found[name]}), file=sys.stderr, flush=True)

    workers = ["--workers", str(options.workers), "--quiet"]
    if "dry-run" in options.commands:
        note("dry-run", [*build, "--dry-run"])
    if "resume" in options.commands:
        run(build, lambda: _has_half(out / ".build"))
        note("resume", build)
    if "build" in options.commands or "resume" not in options.commands:
        shutil.rmtree(out, ignore_errors=True)
        if set(options.commands) - {"dry-run", "resume"}:
            note("build", build)
    for name, arguments in {
        "verify": ["verify", str(out), "--quiet"],
        "inspect": ["inspect", str(out), "--json"],
        "split": ["split", str(out), str(temporary), "--by", "source", "--ratios", "train=0.9,val=0.1", *workers],
        "merge": ["merge", str(temporary / "train"), str(temporary / "val"), str(folder / "merged"), *workers],
        "convert": ["convert", str(out), str(temporary), "--format", "webdataset", *workers],
    }.items():
        if name == "merge" and "split" not in options.commands:
            continue
        if name == "convert":
            shutil.rmtree(temporary, ignore_errors=True)
        if name in options.commands:
            note(name, arguments)
    for path in (temporary, folder / "merged"):
        shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)
    table.unlink()
    return {"items": items, "commands": found}


def print_table(groups: Sequence[Mapping[str, Any]]) -> None:
    """The table of ``docs/benchmarks.md``."""
    print(
        "| command | items | seconds | items/s | coordinator: µs of CPU an item | MB | own MB | more own bytes an item "
        "| largest worker: MB | own MB |"
    )
    print("|---|" + 9 * "--:|")
    for name in COMMANDS:
        before: tuple[int, int] | None = None
        for group in groups:
            if name not in group["commands"]:
                continue
            spent, items = Spent(**group["commands"][name]), group["items"]
            more = ""
            if before is not None:
                more = f"{(spent.own_bytes - before[1]) / (items - before[0]):.0f}"
            before = items, spent.own_bytes
            of_workers = (spent.worker_bytes, spent.worker_own_bytes)
            workers = " | ".join(f"{size / 1e6:.0f}" if size else "" for size in of_workers)
            print(
                f"| {name} | {items:,} | {spent.seconds:.1f} | {items / spent.seconds:,.0f} "
                f"| {1e6 * spent.coordinator_cpu_s / items:.1f} | {spent.coordinator_bytes / 1e6:.0f} "
                f"| {spent.own_bytes / 1e6:.0f} | {more} | {workers} |"
            )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=[10**4, 10**5, 10**6])
    parser.add_argument("--files", type=int, default=300)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--json", type=Path, help="write everything that was measured here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        names = make_files(folder, options.files)
        groups = [measure(items, folder, names, options) for items in sorted(options.items)]
    print_table(groups)
    if options.json:
        settings = {key: getattr(options, key) for key in ("items", "files", "workers", "commands")}
        found = {"benchmark": "pack_scale", "machine": machine(), "versions": versions(LIBRARIES), "settings": settings}
        options.json.write_text(json.dumps({**found, "groups": groups}, indent=1))


if __name__ == "__main__":
    main()
