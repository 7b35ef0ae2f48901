"""The files of a workspace in an object store, for processes on hosts that share no disk.

Each process works in a local folder of its own, whose files have the names of the objects. Workers put there what they
have finished. The coordinating process keeps copies of its own small files (`packer.jobs.mirror`). Pieces have unique
names, so an object is never replaced by a late worker: the coordinating process counts the one that was reported to it.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from packer.workspace.paths import RECORD_NAME, temporary_path
from shardspec.entries import Shard
from shardspec.errors import BuildError, UsageError
from shardspec.layout import BUILD_FOLDER
from shardspec.wording import shorten

if TYPE_CHECKING:
    from packer.workspace.scratch import TemporaryFiles
    from shardspec.stores import Store

REMOTE = "PACKER_REMOTE"
"""Environment variable with the URLs of a worker's `RemoteFiles`."""

DEFAULT_WORK = f"{BUILD_FOLDER}/work"
"""Name of a workspace below the dataset's place, if no other place is chosen for it."""

_PIECE = re.compile(r"parts/([0-9a-f]+)/[0-9]+/part-([0-9]+)\.[0-9a-f]+-[0-9a-f]+-[0-9a-f]+-[0-9a-f]{8}\Z")
"""Key of the plan and number of the task in the name of a piece (`packer.assembly.remote_piece`)."""


@dataclass(frozen=True)
class RemoteFiles:
    """Objects of a workspace, and of the dataset that is built in it.

    Attributes
    ----------
    work : Store
        The place of the workspace.
    out : Store
        The place of the dataset.
    pieces : dict of int to str
        Names of the finished pieces by task, as far as the coordinating process knows them.
    scratch : TemporaryFiles or None
        Temporary folder of the coordinating process.
    """

    work: "Store"
    out: "Store"
    pieces: dict[int, str] = field(default_factory=dict)
    scratch: "TemporaryFiles | None" = None

    def variables(self) -> dict[str, str]:
        """Return environment variables from which workers make their own object."""
        return {REMOTE: json.dumps(self.urls)}

    @property
    def urls(self) -> tuple[str, str]:
        """The URLs of the workspace and of the dataset."""
        return self.work.url, self.out.url

    def place(self, name: str) -> str:
        """Return the URL of an object of the workspace."""
        return self.work.place(name)

    def fetch(self, root: Path, path: Path) -> None:
        """Download a file of a workspace unless it is there.

        Raises
        ------
        BuildError
            If the object does not exist.
        """
        if path.exists():
            return
        name = name_of(root, path)
        attempt = temporary_path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.work.download(name, attempt)
        except FileNotFoundError:
            raise BuildError(
                place=self.place(name),
                expected="an object of this build",
                found="none",
                hint="run the same command again to resume",
            ) from None
        attempt.replace(path)

    def add(self, root: Path, path: Path) -> None:
        """Copy a file of a workspace to the store."""
        self.work.put(name_of(root, path), path)

    def put(self, root: Path, path: Path) -> None:
        """Move a file of a workspace to the store."""
        self.add(root, path)
        path.unlink()

    def settle(self, root: Path, path: Path) -> None:
        """Replace a file by the object with its name. If there is none, the file becomes the object."""
        name = name_of(root, path)
        self.work.put_if(name, path.read_bytes(), None)
        data = self.work.read(name, _SMALL_BYTES)
        attempt = temporary_path(path)
        attempt.write_bytes(data)
        attempt.replace(path)

    def read(self, name: str, span: tuple[int, int]) -> bytes:
        """Return a part of a piece.

        Raises
        ------
        BuildError
            If the piece does not exist.
        """
        try:
            return self.work.part(name, span)
        except FileNotFoundError:
            raise BuildError(
                place=self.place(name), expected="a piece of this build", found="none", hint=REPEAT
            ) from None

    def put_shard(self, root: Path, published: Path, shard: Shard) -> None:
        """Move the files of a finished shard to the dataset's place, and then its record to the workspace."""
        for entry in shard.files:
            path = published / entry.name
            if path.exists():
                self.out.put(entry.name, path)
                path.unlink()
        self.work.put(name_of(root, published / RECORD_NAME), published / RECORD_NAME)

    def add_pieces(self, names: Iterable[str], key: str) -> None:
        """Record the finished pieces of a plan among some objects: of each task, the one with the smallest name."""
        for name in sorted(names, reverse=True):
            found = _PIECE.match(name)
            if found is not None and found[1] == key:
                self.pieces[int(found[2])] = name


REPEAT = "delete assembly.json next to it if there is one, and run the same command again"

_SMALL_BYTES = 1 << 20


def name_of(root: Path, path: Path) -> str:
    """Return the name of the object that holds a file of a workspace."""
    return path.relative_to(root).as_posix()


def check_places(work: "Store", out: "Store", source: object) -> None:
    """Check that the objects of a workspace are not in the source, and that the dataset is not among them.

    Raises
    ------
    UsageError
        If they are.
    """
    if f"{out.url}/".startswith(f"{work.url}/"):
        raise UsageError(option="work", expected="a place that does not hold the output", found=shorten(work.url))
    if isinstance(source, str) and f"{work.url}/".startswith(f"{source.rstrip('/')}/"):
        raise UsageError(option="work", expected="a place outside the source", found=shorten(work.url))
