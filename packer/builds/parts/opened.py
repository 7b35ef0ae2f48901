"""The finished parts of a plan in task order, opened as soon as they are made."""

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from packer.builds.parts.part import Part
from packer.workspace import Workspace
from packer.workspace.fresh import AHEAD, ask_ahead, is_far, look_again

_PAUSE_S = 1.0
"""Seconds until another look at a part that is made but cannot be opened yet."""


class PartsInOrder:
    """The parts of a plan, in task order, while some are still being made. Each is opened once.

    Parameters
    ----------
    workspace : Workspace
        That of the plan whose parts these are.
    tasks : int
        Number of tasks.
    ahead : bool, optional
        Whether many are opened at a time, in threads; by default, if they lie on a network file system, where opening
        one takes longer than all else.
    """

    def __init__(self, workspace: Workspace, tasks: int, *, ahead: bool | None = None) -> None:
        self._workspace = workspace
        self._tasks = tasks
        self._ahead = is_far(workspace.root) if ahead is None else ahead
        self._made: set[int] = set()
        self._next = 0
        self._opening: deque[Future[Part]] = deque()
        self._threads: ThreadPoolExecutor | None = None
        self._look_s = 0.0

    def add(self, task: int) -> None:
        """Note that the part of a task is made."""
        self._made.add(task)

    def ready(self, most: int) -> Iterator[Part]:
        """The next parts, as far as they can be had now. One that cannot be opened yet is tried again later."""
        if time.monotonic() < self._look_s:
            return
        for _ in range(most):
            try:
                part = self._open_ahead() if self._ahead else self._open_next()
            except OSError:  # on a shared file system, as long as it is not seen here
                self._drop_ahead()
                self._look_s = time.monotonic() + _PAUSE_S
                return
            if part is None:
                return
            self._made.discard(self._next)
            self._next += 1
            yield part

    def rest(self) -> Iterator[Part]:
        """All further parts, once every task is done."""
        self._drop_ahead()
        tasks = range(self._next, self._tasks)
        yield from ask_ahead(self._open, tasks) if self._ahead else map(self._open, tasks)

    def close(self) -> None:
        """Open no more."""
        self._drop_ahead()
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None

    def _open_next(self) -> Part | None:
        return self._open(self._next, promised=False) if self._next in self._made else None

    def _open_ahead(self) -> Part | None:
        while len(self._opening) < 2 * AHEAD and (task := self._next + len(self._opening)) in self._made:
            self._threads = self._threads or ThreadPoolExecutor(AHEAD, "parts")
            self._opening.append(self._threads.submit(self._open, task, promised=False))
        if not self._opening or not self._opening[0].done():
            return None
        return self._opening.popleft().result()

    def _drop_ahead(self) -> None:
        for future in self._opening:
            future.cancel()
        self._opening.clear()

    def _open(self, task: int, *, promised: bool = True) -> Part:
        if promised:
            return open_part(self._workspace, task, fetched=self._ahead)
        path = self._workspace.part(task)
        try:
            return Part(path, fetched=self._ahead)
        except FileNotFoundError:
            look_again(path.parent)
            return Part(path, fetched=self._ahead)


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
