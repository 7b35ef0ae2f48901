"""The workers of a build: which processes they are, and which item each is at, from the files that they keep mapped."""

import os
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from packer.jobs.place import read_place
from packer.jobs.plan import Tasks
from packer.page.cards import shown_text
from packer.sources.item import item_name
from packer.workspace import Workspace
from packer.workspace.fresh import host
from packer.workspace.lock import read_holder

_PROC = Path("/proc")
_WORKER = b"packer.jobs.worker"
_PLACE = b".item"
_COMMAND_BYTES = 1 << 14


class WorkerSeen(NamedTuple):
    """A worker.

    Attributes
    ----------
    name : str
        Its number, after the name of the agent that started it, if any.
    process : int or None
        Where that can be seen: on this machine.
    item : str
        What it is at; empty between two items.
    frames : int
        Frames of the item that were examined so far.
    since_s : float
        Seconds for which it has been at that item; if `longer`, or more, since nobody looked before.
    longer : bool
    """

    name: str
    process: int | None
    item: str
    frames: int
    since_s: float
    longer: bool


class Workers:
    """Looks at the workers of a build again and again. Not safe between threads."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int | None, float, bool]] = {}
        self._names: dict[int, str] = {}

    def look(self, space: Workspace, tasks: Tasks) -> list[WorkerSeen]:
        """The workers at work now, by name."""
        now_s, processes, found = time.monotonic(), _processes(space), []
        first, names = not self._seen, {}
        for path in sorted(space.root.glob("logs/**/worker-*.item")):
            process = None if processes is None else processes.get(os.path.realpath(path))
            if processes is not None and process is None:
                continue  # it has ended
            place = read_place(path)
            if place is None:
                continue
            name = path.relative_to(space.root / "logs").with_suffix("").as_posix().replace("worker-", "")
            item, since_s, longer = self._seen.get(name, (None, now_s, first))
            if item != place.item or name not in self._seen:
                item, since_s, longer = place.item, now_s, name not in self._seen
            self._seen[name] = item, since_s, longer
            if item is not None:
                names[item] = self._names.get(item) or _name_of(space, tasks, item)
            shown = "" if item is None else names[item]
            found.append(WorkerSeen(shown_text(name), process, shown, place.frames, now_s - since_s, longer))
        self._names = names
        return found


def _name_of(space: Workspace, tasks: Tasks, item: int) -> str:
    """The name of an item of the plan; its number if that is not to be had."""
    place = bisect_right(tasks, item, key=lambda task: task.start) - 1
    try:
        return shown_text(item_name(space.items, tasks[max(0, place)], item))
    except (OSError, ValueError, StopIteration, IndexError):
        return f"item {item}"


def _processes(space: Workspace) -> dict[str, int] | None:
    """The worker processes of this machine, by the file in which they note their item; None if they cannot be seen here."""
    holder = read_holder(space)
    if sys.platform != "linux" or holder.get("host") != host():
        return None
    try:
        return dict(_worker_processes())
    except PermissionError:  # another user's worker, which shows its command line alone
        return None


def _worker_processes() -> Iterator[tuple[str, int]]:
    for folder in _PROC.iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            with (folder / "cmdline").open("rb") as file:
                words = file.read(_COMMAND_BYTES).split(b"\0")
        except OSError:  # it has just ended, or is somebody else's
            continue
        if _WORKER in words:
            place = next((word for word in words if word.endswith(_PLACE)), None) or _mapped_place(folder)
            if place is not None:
                yield os.path.realpath(os.fsdecode(place)), int(folder.name)


def _mapped_place(folder: Path) -> bytes | None:
    """Where a worker from standby notes its item, which is not in its command line; None if it has not begun.

    Raises
    ------
    PermissionError
        If the process is another user's.
    """
    try:
        lines = (folder / "maps").read_bytes().split(b"\n")
    except PermissionError:
        raise
    except OSError:  # it has just ended
        return None
    line = next((line for line in lines if line.endswith(_PLACE)), None)
    return None if line is None else line.split(maxsplit=5)[5].replace(rb"\012", b"\n")
