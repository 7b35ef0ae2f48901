"""The working folder of a build, which holds the plan, the parts and the journal until the commit."""

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer.workspace.durable import fsync_folder, read_log, remove_tree
from packer.workspace.shared_files import map_files, wait_for
from shardspec.layout import COMPUTED_NAME, MANIFEST_NAME, PLAN_NAME, REJECTS_NAME

if TYPE_CHECKING:
    from packer.workspace.remote import RemoteFiles

PARTS_A_FOLDER = 1000
"""The most parts in one folder: listing a folder of a million files on a shared file system is slow."""

RECORD_NAME = "record.json"
"""A shard's entry in the manifest, in the folder in which the shard was published."""

_KEY_CHARACTERS = 12
_OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
_PART = re.compile(r"part-([0-9]+)")


class _Place:
    """A path in the workspace. In its name, ``{key}`` and ``{owner}`` stand for those of the workspace."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, space: "Workspace", _: object) -> Path:
        return space.root / self._name.format(key=space.key, owner=space.owner)


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
        Name of the owner, used in the names of unfinished files, of the journal and of the verdicts; empty for the
        coordinating process and its workers on the same host. At most 64 letters, digits, ``_`` and ``-``.
    shared : bool
        Whether other hosts write into the workspace, too.
    remote : RemoteFiles or None
        If given, the workspace is in an object store, and the folder has only the files of this process.
    """

    root: Path
    key: str = ""
    owner: str = ""
    shared: bool = False
    remote: "RemoteFiles | None" = None

    lock = _Place("lock")
    """The lock file. The one process that builds in this folder holds it."""
    holder = _Place("holder.json")
    """Record about the holder of the lock, for messages of other processes."""
    leases = _Place("leases")
    """Folder of the leases of processes that build here, for file systems that may not support locks."""
    plan = _Place(PLAN_NAME)
    """The plan. It is written after all files that it refers to, so a workspace without a plan can be deleted."""
    replaced = _Place("replaced.json")
    """The manifest of the dataset that the build replaces."""
    base = _Place("base.json")
    """The manifest of the dataset that the build updates."""
    kept = _Place("kept")
    """Finished parts of earlier plans, which later plans reuse if they can."""
    upload = _Place("upload.json")
    """Record of the upload to an object store (`packer.jobs.upload`)."""
    items = _Place("items.jsonl")
    """The plan's items, one JSON line each."""
    assembly = _Place("assembly.json")
    """The plan of the shards. It exists once every task is done."""
    order = _Place("order.npy")
    """The stored order of the rows, int64, if it differs from the order of the tasks."""
    columns = _Place("columns")
    """Folder of new columns, until the next manifest lists them."""
    computed = _Place(COMPUTED_NAME)
    """Folder of finished blocks of values that ``packer compute`` has computed, until all are there."""
    final = _Place("final")
    """Folder of finished files that belong to no shard. The commit puts them into the dataset's folder."""
    reasons = _Place(REJECTS_NAME)
    """Reasons why no item yielded a sample, the only file that such a build leaves (`shardspec.layout.Layout.reasons`)."""
    logs = _Place("logs/{owner}")
    """Standard error of the workers; each owner has a separate folder."""
    parts = _Place("parts/{key}")
    """Folder of the plan's parts, in subfolders of `PARTS_A_FOLDER`."""
    scans = _Place("scans/{key}")
    """The folder of the plan's scans."""
    staging = _Place("staging")
    """Folder of finished shards until the commit, with a subfolder for each shard plan."""

    def __post_init__(self) -> None:
        if self.owner and not _OWNER.match(self.owner):
            raise ValueError(f"owner: expected up to 64 letters, digits, '_' and '-', found {self.owner[:80]!r}")

    def of_plan(self, fingerprint: str) -> "Workspace":
        """Return the workspace with the results of a plan."""
        return replace(self, key=fingerprint[:_KEY_CHARACTERS])

    def of_owner(self, owner: str) -> "Workspace":
        """Return the workspace as another owner writes to it, who may be on another host."""
        return replace(self, owner=owner, shared=True)

    def promised(self, path: Path) -> Path:
        """Return a path that must exist. In a store, download it. In a shared folder, wait until this host sees it.

        Raises
        ------
        BuildError
            If there is no such object, or the file does not appear in time.
        """
        if self.remote is not None:
            self.remote.fetch(self.root, path)
        elif self.shared:
            wait_for(path)
        return path

    def attempt(self, path: Path) -> Path:
        """Return a new temporary name next to a path, with the owner in it."""
        return temporary_path(path, self.owner)

    @property
    def out(self) -> Path:
        """The dataset's folder."""
        return self.root.parent

    def is_of_lock(self, path: Path) -> bool:
        """Return whether a path belongs to the lock, whose files are removed last."""
        return path in (self.lock, self.holder, self.leases)

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

    def _read_logs(self, name: str) -> Iterator[dict[str, Any]]:
        for path in self._logs(name):
            yield from read_log(path)

    def _logs(self, name: str) -> list[Path]:
        return [self.root / f"{name}.jsonl", *sorted(self.parts.glob(f"{name}.*.jsonl"))]

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
        if self.remote is not None:
            return set(self.remote.pieces)
        return {int(match[1]) for match in (_PART.fullmatch(path.name) for path in self.part_files()) if match}

    def _part_folder(self, task: int) -> Path:
        return self.parts / f"{task // PARTS_A_FOLDER:03d}"

    def scan(self, shard: int) -> Path:
        """The scan of one shard of a source dataset. It exists once the shard is checked."""
        return self.scans / f"scan-{shard:05d}.npy"

    def create(self) -> None:
        """Make the folders."""
        for folder in (self.root, self.final, self.logs, self.staging):
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
        """Remove everything. The lock and the record of a finished upload are removed last."""
        many = [*self.staging.glob("*/*"), *self.root.glob("parts/*/*/*")]
        list(map_files(self.root, _try_to_remove, many))
        for path in self.root.iterdir() if self.root.is_dir() else ():
            if not self.is_of_lock(path) and path != self.upload:
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
