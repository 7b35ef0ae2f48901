"""Damaged shards: what a reader makes of truncated files and flipped bits, tried in a separate process.

``python -m support.hostile ROOT CHECKSUMS``, with the changes on standard input, damages the first shard of the dataset
in ROOT, one change at a time, reads it whole, and prints one line per change: what came of it.
"""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardspec.columns import Columns
from shardspec.errors import ShardspecError
from shardspec.layout import Layout
from shardspec.manifest import Manifest
from support.crafted import Rewrite
from support.datasets import open_shard, read_rows

SAME, OURS, WRONG, FOREIGN, CRASH, HANG = "same", "our error", "wrong data", "foreign error", "crash", "hang"
PROCESSOR_SECONDS_MAX = 60
"""Limit for one change in seconds of processor time, which does not depend on what else the machine does."""
MEMORY_MAX = 8 << 30
"""Limit of the address space, including libraries. Small shards never need the memory of a large one."""


@dataclass(frozen=True)
class Change:
    """One damage: a file cut to `place` bytes or, if `bit` is not None, with one bit flipped."""

    file: str
    place: int
    bit: int | None = None

    def apply(self, data: bytes) -> bytes:
        """The damaged bytes."""
        if self.bit is None:
            return data[: self.place]
        flipped = bytearray(data)
        flipped[self.place] ^= 1 << self.bit
        return bytes(flipped)


def truncations(root: Path, manifest: Manifest, step: int) -> list[Change]:
    """Every file of the first shard that readers look at, cut at every `step`-th byte."""
    files = [e for e in manifest.shards[0].files if not e.name.endswith(".idx")]
    return [Change(e.name, place) for e in files for place in range(0, e.bytes, step)]


def flips(root: Path, manifest: Manifest, encoded: Columns, count: int, seed: int) -> list[Change]:
    """Single-bit flips at seeded places, half of them in structural bytes, which belong to no value."""
    rng = random.Random(seed)
    values, structure = [], []
    for entry in manifest.shards[0].files:
        mask = _value_bytes((root / entry.name).read_bytes(), encoded)
        values += [(entry.name, int(place)) for place in np.flatnonzero(mask)]
        structure += [(entry.name, int(place)) for place in np.flatnonzero(~mask)]
    return [Change(*rng.choice(structure if n % 2 else values), rng.randrange(8)) for n in range(count)]


def _value_bytes(data: bytes, encoded: Columns) -> np.ndarray:
    """Which bytes of a file belong to values of eight bytes and more."""
    mask = np.zeros(len(data), bool)
    for column in encoded.values():
        rows = [row.tobytes() for row in column] if isinstance(column, np.ndarray) else column
        for value in rows:
            place = data.find(value) if len(value) >= 8 else -1
            if place >= 0:
                mask[place : place + len(value)] = True
    return mask


def outcomes(root: Path, changes: Sequence[Change | Rewrite], *, checksums: bool) -> list[str]:
    """The outcome of every change; if the process dies, another continues after the change that killed it."""
    found: list[str] = []
    while len(found) < len(changes):
        left = json.dumps([vars(change) for change in changes[len(found) :]])
        command = [sys.executable, "-W", "ignore", "-m", "support.hostile", str(root), str(int(checksums))]
        paths = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, "PYTHONPATH": paths}
        done = subprocess.run(command, env=environment, input=left, capture_output=True, text=True)
        found += done.stdout.splitlines()
        if done.returncode:
            found.append(HANG if done.returncode == -signal.SIGXCPU else CRASH)
    return found


def damaged(root: Path, changes: Sequence[Change | Rewrite]) -> Iterator[Change | Rewrite]:
    """Apply one change after another, and restore the files in between."""
    for change in changes:
        path = root / change.file
        whole = path.read_bytes()
        # A new file each time, since a mapping of the old one may still exist.
        _replace(path, change.apply(whole))
        try:
            yield change
        finally:
            _replace(path, whole)


def _replace(path: Path, data: bytes) -> None:
    new = path.with_name(path.name + ".new")
    new.write_bytes(data)
    os.replace(new, path)


def _read(root: Path, manifest: Manifest, *, checksums: bool) -> Columns:
    reader = open_shard(root, manifest, checksums=checksums)
    try:
        # Row by row first, since readers may look up few values in another way than many.
        ones = [read_rows(reader, manifest.schema, [row]) for row in range(len(reader))]
        whole = read_rows(reader, manifest.schema, range(len(reader)))
        for row, one in enumerate(ones):
            if not _same(one, {name: column[row : row + 1] for name, column in whole.items()}):
                return one
        return whole
    finally:
        reader.close()


def _same(found: Columns, expected: Columns) -> bool:
    return all(
        np.array_equal(
            column.view(np.uint8) if column.size else column, expected[name].view(np.uint8) if column.size else column
        )
        if isinstance(column, np.ndarray) and column.ndim
        else column == expected[name]
        for name, column in found.items()
    )


def main(root: Path, changes: Sequence[Change | Rewrite], *, checksums: bool) -> None:
    """Print the outcome of every change."""
    copy = root.with_name(f"{root.name}-damaged-{os.getpid()}")
    shutil.copytree(root, copy)
    manifest = Layout(copy).load()
    expected = _read(copy, manifest, checksums=True)
    for _ in damaged(copy, changes):
        used = int(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (used + PROCESSOR_SECONDS_MAX, resource.RLIM_INFINITY))
        try:
            outcome = SAME if _same(_read(copy, manifest, checksums=checksums), expected) else WRONG
        except ShardspecError:
            outcome = OURS
        except Exception as error:
            outcome = f"{FOREIGN}: {type(error).__name__}: {error}".replace("\n", " ")
        print(outcome, flush=True)
    shutil.rmtree(copy)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    documents = json.load(sys.stdin)
    kinds = [Rewrite(**change) if "edits" in change else Change(**change) for change in documents]
    main(Path(sys.argv[1]), kinds, checksums=sys.argv[2] == "1")
