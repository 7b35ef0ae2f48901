"""The working folder of a build, which holds the plan, the parts and the journal until the commit."""

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packer.workspace.durable import fsync_folder, read_log, remove_tree
from packer.workspace.shared_files import map_files, wait_for
from shardspec.layout import MANIFEST_NAME, PLAN_NAME, REJECTS_NAME

PARTS_A_FOLDER = 1000
"""The most parts in one folder: listing a folder of a million files on a shared file system is slow."""

RECORD_NAME = "record.json"
"""A shard's entry in the manifest, in the folder in which the shard was published."""

_KEY_CHARACTERS = 12
_OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
_PART = re.compile(r"part-([0-9]+)")


@dataclass(frozen=True)
class Workspace:
    """Paths below ``OUT/.build``, for one process.

    Each plan has a separate folder of results, which only the coordinating process makes. If a worker that was believed
    dead continues after the commit, or after another plan was started, its folder is gone and it cannot write.

    Attributes
    ----------
    root : Path
        The folder itself.
    key : str
        Key of the plan whose results the paths belong to (`of_plan`).
    owner : str
        Name of the agent, used in the names of unfinished files, of the journal and of the verdicts; empty for the
        coordinating process and its workers. At most 64 letters, digits, ``_`` and ``-``.
    """

    root: Path
    key: str = ""
    owner: str = ""

    def __post_init__(self) -> None:
        if self.owner and not _OWNER.match(self.owner):
            raise ValueError(f"owner: expected up to 64 letters, digits, '_' and '-', found {self.owner[:80]!r}")

    def of_plan(self, fingerprint: str) -> "Workspace":
        """Return the workspace with the results of a plan."""
        return replace(self, key=fingerprint[:_KEY_CHARACTERS])

    def of_owner(self, owner: str) -> "Workspace":
        """Return the workspace as an agent writes to it."""
        return replace(self, owner=owner)

    def promised(self, path: Path) -> Path:
        """Return a path that must exist. An agent waits until the file appears, since another host may have just written it.

        Raises
        ------
        BuildError
            If the file does not appear in time.
        """
        if self.owner:
            wait_for(path)
        return path

    def attempt(self, path: Path) -> Path:
        """Return a new temporary name next to a path, with the owner in it."""
        return temporary_path(path, self.owner)

    @property
    def out(self) -> Path:
        """The dataset's folder."""
        return self.root.parent

    @property
    def lock(self) -> Path:
        """The lock file. The one process that builds in this folder holds it."""
        return self.root / "lock"

    @property
    def holder(self) -> Path:
        """Record about the holder of the lock, for messages of other processes."""
        return self.root / "holder.json"

    @property
    def leases(self) -> Path:
        """Folder of the leases of processes that build here, for file systems that may not support locks."""
        return self.root / "leases"

    def is_of_lock(self, path: Path) -> bool:
        """Return whether a path belongs to the lock, whose files are removed last."""
        return path in (self.lock, self.holder, self.leases)

    @property
    def plan(self) -> Path:
        """The plan. It is written after all files that it refers to, so a workspace without a plan can be deleted."""
        return self.root / PLAN_NAME

    @property
    def replaced(self) -> Path:
        """The manifest of the dataset that the build will replace. It exists until the replacement is done."""
        return self.root / "replaced.json"

    @property
    def base(self) -> Path:
        """The manifest of the dataset that the build updates. It exists until the update is done."""
        return self.root / "base.json"

    @property
    def kept(self) -> Path:
        """Finished parts of earlier plans, which later plans reuse if they can."""
        return self.root / "kept"

    @property
    def successor(self) -> Path:
        """The next manifest of a dataset that is replaced or updated.

        Once the file exists, all files that it lists are finished.
        """
        return self.root / "successor.json"

    @property
    def upload(self) -> Path:
        """Record of the upload to an object store (`packer.jobs.upload`)."""
        return self.root / "upload.json"

    @property
    def ready(self) -> Path:
        """Folder of finished shards, until the dataset in the output folder is replaced or updated."""
        return self.root / "ready"

    @property
    def shard_folder(self) -> Path:
        """Folder that finished shards are moved to."""
        return self.ready if self.replaced.exists() or self.base.exists() else self.out

    @property
    def items(self) -> Path:
        """The plan's items, one JSON line each."""
        return self.root / "items.jsonl"

    @property
    def journal(self) -> Path:
        """One JSON line per finished unit of work of this owner. Each owner writes only its own file."""
        return self._log("journal")

    @property
    def verdicts(self) -> Path:
        """One JSON line per item that must not be tried again, as decided by this owner."""
        return self._log("verdicts")

    def read_journal(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of the journals of all owners, those of the coordinating process first."""
        return self._read_logs("journal")

    def read_verdicts(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of the verdicts of all owners, those of the coordinating process first."""
        return self._read_logs("verdicts")

    def _log(self, name: str) -> Path:
        # The file is in the plan's folder, so a late owner cannot write into the log of another plan.
        return self.parts / f"{name}.{self.owner}.jsonl" if self.owner else self.root / f"{name}.jsonl"

    def journals(self) -> list[Path]:
        """Return the paths of the journals of all owners, that of the coordinating process first."""
        return self._logs("journal")

    def _read_logs(self, name: str) -> Iterator[dict[str, Any]]:
        for path in self._logs(name):
            yield from read_log(path)

    def _logs(self, name: str) -> list[Path]:
        return [self.root / f"{name}.jsonl", *sorted(self.parts.glob(f"{name}.*.jsonl"))]

    @property
    def assembly(self) -> Path:
        """The plan of the shards. It exists once every task is done."""
        return self.root / "assembly.json"

    @property
    def counts(self) -> Path:
        """Counts of the items. The file exists once every task is done."""
        return self.root / "counts.json"

    @property
    def order(self) -> Path:
        """The stored order of the rows, int64, if it differs from the order of the tasks."""
        return self.root / "order.npy"

    @property
    def columns(self) -> Path:
        """Folder of new columns, until the next manifest lists them."""
        return self.root / "columns"

    @property
    def column_entries(self) -> Path:
        """The entries of all columns of the next manifest."""
        return self.root / "columns.json"

    @property
    def final(self) -> Path:
        """Folder of finished files that belong to no shard. The commit moves them into the dataset's folder."""
        return self.root / "final"

    @property
    def reasons(self) -> Path:
        """Reasons why no item yielded a sample, the only file that such a build leaves (`shardspec.layout.Layout.reasons`)."""
        return self.root / REJECTS_NAME

    @property
    def logs(self) -> Path:
        """Standard error of the workers; each owner has a separate folder."""
        return self.root / "logs" / self.owner

    @property
    def agents(self) -> Path:
        """The records of agents (`packer.workspace.leases`)."""
        return self.root / "agents"

    @property
    def claims(self) -> Path:
        """The claims of agents to the plan's tasks (`packer.workspace.agents`)."""
        return self.root / "claims" / self.key

    @property
    def array(self) -> Path:
        """Options for agents; the file exists in a build that was submitted."""
        return self.root / "array.json"

    @property
    def parts(self) -> Path:
        """Folder of the plan's parts, in subfolders of `PARTS_A_FOLDER`."""
        return self.root / "parts" / self.key

    def part(self, task: int) -> Path:
        """The result of a task."""
        return self._part_folder(task) / f"part-{task:06d}"

    def item_part(self, task: int, item: int) -> Path:
        """The result of one item of a task, if the task runs item by item."""
        return self._part_folder(task) / f"part-{task:06d}.item-{item:08d}"

    def part_folders(self) -> list[Path]:
        """The folders with the plan's parts."""
        return sorted(path for path in self.parts.iterdir() if path.is_dir()) if self.parts.is_dir() else []

    def part_files(self) -> Iterator[Path]:
        """Yield the parts of the plan, of tasks and of items, and unfinished files next to them."""
        for folder in self.part_folders():
            yield from sorted(folder.glob("part-*"))

    def finished_tasks(self) -> set[int]:
        """Return the tasks whose parts exist. Listing the folders is much faster than looking for each part."""
        return {int(match[1]) for match in (_PART.fullmatch(path.name) for path in self.part_files()) if match}

    def _part_folder(self, task: int) -> Path:
        return self.parts / f"{task // PARTS_A_FOLDER:03d}"

    @property
    def scans(self) -> Path:
        """The folder of the plan's scans."""
        return self.root / "scans" / self.key

    def scan(self, shard: int) -> Path:
        """The scan of one shard of a source dataset. It exists once the shard is checked."""
        return self.scans / f"scan-{shard:05d}.npy"

    @property
    def staging(self) -> Path:
        """Folder in which shards are written before they are moved into place, with a subfolder for each shard plan."""
        return self.root / "staging"

    def create(self) -> None:
        """Make the folders."""
        for folder in (self.root, self.final, self.logs, self.ready, self.staging):
            folder.mkdir(parents=True, exist_ok=True)

    def create_results(self, tasks: int) -> None:
        """Make the folders of a plan's results. Only the coordinating process may call this (see the class)."""
        self.scans.mkdir(parents=True, exist_ok=True)
        self.parts.mkdir(parents=True, exist_ok=True)
        for task in range(0, max(1, tasks), PARTS_A_FOLDER):
            self._part_folder(task).mkdir(exist_ok=True)

    def sweep(self) -> None:
        """Remove unfinished files of killed processes. A process that is still running notices that its file is gone."""
        for path in (*_attempts(self.root), *self.left_of_commit()):
            with suppress(FileNotFoundError):  # it has been published just now
                self.take_away(path)
        for path in self.root.glob(f"*{_GONE}"):
            remove_tree(path)

    def take_away(self, path: Path) -> None:
        """Remove a file or folder of this workspace, even while a worker that was believed dead writes into it.

        A folder is renamed first, so that the worker cannot write further files into it.
        """
        if path.is_dir() and not path.is_symlink():
            away = self.root / f"{uuid.uuid4().hex}{_GONE}"
            path.replace(away)
            path = away
        remove_tree(path)

    def give_up(self, reasons: Path) -> None:
        """Remove everything except a file with the reasons. Without a plan, any call may start from scratch.

        Parameters
        ----------
        reasons : Path
            A file in the workspace; it becomes `self.reasons`.
        """
        reasons.replace(self.reasons)
        self.plan.unlink()
        for path in self.root.iterdir():
            if not self.is_of_lock(path) and path != self.reasons:
                self.take_away(path)

    def left_of_commit(self) -> list[Path]:
        """Return the unfinished manifests of killed calls."""
        return sorted(self.out.glob(f"{MANIFEST_NAME}.*.partial"))

    def remove(self) -> None:
        """Remove everything. The lock and the record of a finished replacement or upload are removed last."""
        many = [*self.staging.glob("*/*"), *self.root.glob("claims/*/*"), *self.root.glob("parts/*/*/*")]
        list(map_files(self.root, _try_to_remove, many))
        for path in self.root.iterdir() if self.root.is_dir() else ():
            if not self.is_of_lock(path) and path not in (self.successor, self.upload):
                with suppress(OSError):
                    self.take_away(path)
        shutil.rmtree(self.root, ignore_errors=True)
        if self.out.is_dir():
            fsync_folder(self.out)


def _try_to_remove(path: Path) -> None:
    with suppress(OSError):
        remove_tree(path)


_GONE = ".gone"
"""Suffix of folders that are being removed."""


def temporary_path(path: Path, owner: str = "") -> Path:
    """Return a new temporary name next to a path."""
    return path.with_name(f"{path.name}{'.' if owner else ''}{owner}.{uuid.uuid4().hex}.partial")


def _attempts(folder: Path) -> Iterator[Path]:
    """Yield unfinished files below a folder."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.endswith(".partial"):
            yield Path(entry.path)
        elif entry.is_dir(follow_symlinks=False):
            yield from _attempts(Path(entry.path))
