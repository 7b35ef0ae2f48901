"""The finished parts of a plan, opened once for all passes of the cut."""

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from packer.builds.parts.part import Part
from packer.workspace import Workspace
from packer.workspace.durable import writing
from packer.workspace.fresh import ask_ahead, is_far
from packer.workspace.spool import temporary_file

_KEPT_BYTES = 8 * 10**6
"""So much of the outlines stays in memory, so that those of a small build are read once; the others are in a file."""


class OpenedParts(Iterable[Part]):
    """The finished parts of a plan for the cut, which reads them again and again, without most values of their rows.

    Each part is opened once, when they are iterated over for the first time: on a shared file system, that takes longer
    than all else.

    Parameters
    ----------
    workspace : Workspace
        That of the plan whose parts these are.
    tasks : int
        Number of tasks.
    ahead : bool, optional
        Whether many are opened at a time; by default, if they lie on a network file system.
    """

    def __init__(self, workspace: Workspace, tasks: int, *, ahead: bool | None = None) -> None:
        self._workspace = workspace
        self._tasks = tasks
        self._ahead = is_far(workspace.root) if ahead is None else ahead
        self._kept: list[Part] = []
        self._kept_bytes = 0
        self._places: list[tuple[int, int, int]] = []
        self._file: Any = None

    def __iter__(self) -> Iterator[Part]:
        yield from (self[task] for task in range(len(self)))
        tasks = range(len(self), self._tasks)
        for part, missing in ask_ahead(self._outline, tasks) if self._ahead else map(self._outline, tasks):
            self._keep(part, missing)
            yield self[len(self) - 1]

    def __len__(self) -> int:
        """The number of parts opened so far."""
        return len(self._kept) + len(self._places)

    def __getitem__(self, task: int) -> Part:
        """A part that was opened before."""
        if task < len(self._kept):
            return self._kept[task]
        offset, size, missing = self._places[task - len(self._kept)]
        self._file.seek(offset)
        return Part.from_outline(self._file.read(size), missing)

    def _outline(self, task: int) -> tuple[bytes, int]:
        return open_part(self._workspace, task, fetched=self._ahead).outline()

    def _keep(self, outline: bytes, missing: int) -> None:
        if not self._places and self._kept_bytes + len(outline) <= _KEPT_BYTES:
            self._kept.append(Part.from_outline(outline, missing))
            self._kept_bytes += len(outline)
            return
        with writing(Path(tempfile.gettempdir())):
            if self._file is None:
                self._file = temporary_file(self)
            offset = self._file.seek(0, os.SEEK_END)
            self._file.write(outline)
        self._places.append((offset, len(outline), missing))


def open_part(workspace: Workspace, task: int, *, fetched: bool = False) -> Part:
    """Open the part of a task. It is waited for only if it is not there: on a shared file system each look takes time.

    Parameters
    ----------
    workspace : Workspace
    task : int
    fetched : bool
        See `Part`.
    """
    path = workspace.part(task)
    try:
        return Part(path, fetched=fetched)
    except FileNotFoundError:
        return Part(workspace.promised(path), fetched=fetched)
