"""The working folder of a build: where the plan, the parts and the journal lie until the commit."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packer.workspace.durable import fsync_folder, remove_tree
from shardspec.layout import MANIFEST_NAME, PLAN_NAME, REJECTS_NAME


@dataclass(frozen=True)
class Workspace:
    """Locations below ``OUT/.build``.

    Attributes
    ----------
    root : Path
        The folder itself.
    """

    root: Path

    @property
    def out(self) -> Path:
        """The dataset's folder."""
        return self.root.parent

    @property
    def lock(self) -> Path:
        """The lock file, held by the one process that builds here."""
        return self.root / "lock"

    @property
    def plan(self) -> Path:
        """The plan; written after everything that it refers to, so a folder without it can be deleted."""
        return self.root / PLAN_NAME

    @property
    def replaced(self) -> Path:
        """The manifest of the dataset that this one will replace; it exists until then."""
        return self.root / "replaced.json"

    @property
    def base(self) -> Path:
        """The manifest of the dataset that the build adds to; it exists until the additions are part of it."""
        return self.root / "base.json"

    @property
    def kept(self) -> Path:
        """Finished parts of an earlier plan, which later plans use again where they can."""
        return self.root / "kept"

    @property
    def successor(self) -> Path:
        """The next manifest, if a dataset is replaced or added to; once it exists, everything that it names is finished."""
        return self.root / "successor.json"

    @property
    def ready(self) -> Path:
        """Finished shards that wait until the dataset in the folder is replaced, or added to."""
        return self.root / "ready"

    @property
    def shard_folder(self) -> Path:
        """Where finished shards are put."""
        return self.ready if self.replaced.exists() or self.base.exists() else self.out

    @property
    def items(self) -> Path:
        """The plan's items, one JSON line each."""
        return self.root / "items.jsonl"

    @property
    def journal(self) -> Path:
        """One JSON line per finished unit of work."""
        return self.root / "journal.jsonl"

    @property
    def verdicts(self) -> Path:
        """One JSON line per item that must not be tried again."""
        return self.root / "verdicts.jsonl"

    @property
    def assembly(self) -> Path:
        """The plan of the shards; once it exists, every task is done."""
        return self.root / "assembly.json"

    @property
    def counts(self) -> Path:
        """What became of the items; it exists once every task is done."""
        return self.root / "counts.json"

    @property
    def order(self) -> Path:
        """The stored order of the rows, int64, if it differs from the order of the tasks."""
        return self.root / "order.npy"

    @property
    def columns(self) -> Path:
        """New columns that wait until the next manifest lists them."""
        return self.root / "columns"

    @property
    def column_entries(self) -> Path:
        """The entries of all columns of the next manifest."""
        return self.root / "columns.json"

    @property
    def final(self) -> Path:
        """Finished files that belong to no shard, moved into the dataset's folder at the commit."""
        return self.root / "final"

    @property
    def reasons(self) -> Path:
        """Why no item yielded a sample (`shardspec.layout.Layout.reasons`): all that such a build leaves behind."""
        return self.root / REJECTS_NAME

    @property
    def logs(self) -> Path:
        """What workers write to their standard error."""
        return self.root / "logs"

    @property
    def parts(self) -> Path:
        """The parts' folder."""
        return self.root / "parts"

    def part(self, task: int) -> Path:
        """The result of a task."""
        return self.parts / f"part-{task:06d}"

    def item_part(self, task: int, item: int) -> Path:
        """The result of one item of a task, if the task runs item by item."""
        return self.parts / f"part-{task:06d}.item-{item:08d}"

    @property
    def scans(self) -> Path:
        """The scans' folder."""
        return self.root / "scans"

    def scan(self, shard: int) -> Path:
        """The scan of one shard of the packed datasets that rows are read from; it exists once the shard is checked."""
        return self.scans / f"scan-{shard:05d}.npy"

    def staging(self, name: str) -> Path:
        """Where a shard is written before it is moved into place."""
        return self.root / "staging" / name

    def create(self) -> None:
        """Make the folders."""
        for folder in (self.root, self.parts, self.final, self.logs, self.ready, self.root / "staging"):
            folder.mkdir(parents=True, exist_ok=True)

    def sweep(self) -> None:
        """Remove the half-written files of killed workers."""
        for path in (*self.root.rglob("*.partial"), *self.left_of_commit()):
            path.unlink(missing_ok=True)

    def give_up(self, reasons: Path) -> None:
        """Remove everything except a file with the reasons. Without a plan, any call may begin anew.

        Parameters
        ----------
        reasons : Path
            A file in the workspace; it becomes `self.reasons`.
        """
        reasons.replace(self.reasons)
        self.plan.unlink()
        for path in self.root.iterdir():
            if path not in (self.lock, self.reasons):
                remove_tree(path)

    def left_of_commit(self) -> list[Path]:
        """Half-written manifests of killed calls."""
        return sorted(self.out.glob(f"{MANIFEST_NAME}.*.partial"))

    def remove(self) -> None:
        """Remove everything; the lock, and the record of a finished replacement, last."""
        for path in self.root.iterdir() if self.root.is_dir() else ():
            if path not in (self.lock, self.successor):
                with suppress(OSError):
                    remove_tree(path)
        shutil.rmtree(self.root, ignore_errors=True)
        if self.out.is_dir():
            fsync_folder(self.out)


def append_line(path: Path, document: Any) -> None:
    """Append one JSON line. A line that a crash cut short is ended first, so that it spoils no other."""
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
        ended = file.read(1) in (b"", b"\n")
        file.write((b"" if ended else b"\n") + json.dumps(document, separators=(",", ":")).encode("ascii") + b"\n")


def read_lines(path: Path) -> Iterator[Any]:
    """The JSON lines of a file, which may be missing or end in a line cut short by a crash."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    for line in data.split(b"\n")[:-1]:
        try:
            yield json.loads(line)
        except ValueError:
            continue
