"""Checkpoints: finished parts are flushed to the disk together, every few seconds, and not one by one.

A process that is killed leaves its files whole, since what it wrote is in the system's memory. Only if the machine goes
down is a file lost that nobody has flushed. So the journal says in which run of the machine each session of a job was,
and which parts were flushed; a session after a restart of the machine removes the others, and makes them again. Before
shards are written, after which parts are deleted, all are flushed, unless the job is younger than the first checkpoint.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Self

from packer.workspace.durable import fsync_file, fsync_folder, writing
from packer.workspace.folder import remove_shards
from packer.workspace.fresh import machine_run
from packer.workspace.lines import append_line
from packer.workspace.paths import FLUSHED, Workspace

INTERVAL_S = 10.0
"""Seconds between two checkpoints. A job of less has none: it is as quickly done again."""


class Checkpoints:
    """Flushes the parts of finished tasks. Use as a context manager around the tasks.

    Parameters
    ----------
    workspace : Workspace
    interval_s : float
        Seconds between two checkpoints. Where the runs of the system have no names, each part is flushed at once.
    """

    def __init__(self, workspace: Workspace, interval_s: float = INTERVAL_S) -> None:
        self._workspace = workspace
        self._interval_s = interval_s if machine_run() is not None else 0.0
        flushed, _ = _flushed(workspace)
        self._waiting = sorted(workspace.finished_tasks() - flushed)
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._flushing: Future[list[int]] | None = None
        self._began_s = time.monotonic()
        self._any = bool(flushed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        try:
            if kind is None:
                self._finish()
            else:
                with suppress(Exception):  # the first error is the one that ended the job
                    self._record()
        finally:
            self._thread.shutdown()

    def add(self, task: int, *, flushed: bool = False) -> None:
        """Note that the part of a task is finished, and whether its maker has flushed it.

        Raises
        ------
        BuildError
            If a part could not be flushed, as when the disk is full.
        """
        if flushed:
            self._any = True
            return
        self._waiting.append(task)
        if self._flushing is not None and self._flushing.done():
            self._record()
        if self._flushing is None and time.monotonic() - self._began_s >= self._interval_s:
            self._begin()

    def _begin(self) -> None:
        """Flush what waits, in a thread: neither this one nor the workers need to wait."""
        self._flushing = self._thread.submit(self._flush, self._waiting)
        self._waiting, self._began_s, self._any = [], time.monotonic(), True

    def _flush(self, tasks: list[int]) -> list[int]:
        _fsync_parts(self._workspace, tasks)
        return tasks

    def _record(self) -> None:
        """Wait for what is being flushed, and note in the journal that it is."""
        if self._flushing is None:
            return
        with writing(self._workspace.out):
            flushed, self._flushing = self._flushing.result(), None
            _note(self._workspace, flushed, whole=False)

    def _finish(self) -> None:
        """Flush the rest: the next stage deletes parts as it goes on, which would then have to be made again."""
        self._record()
        if self._any and self._waiting:
            self._begin()
            self._record()
        if self._any:
            note_whole(self._workspace)


def flush_all(workspace: Workspace) -> None:
    """Flush what a killed session may have left in the memory of this machine, so that others can build on it."""
    flushed, _ = _flushed(workspace)
    flush_parts(workspace, sorted(workspace.finished_tasks() - flushed))


def flush_parts(workspace: Workspace, tasks: Sequence[int]) -> None:
    """Flush the parts of some tasks, and note in the owner's journal that they are."""
    if tasks:
        _fsync_parts(workspace, tasks)
        append_line(workspace.journal, {"did": "flush", "tasks": list(tasks), "only": False})
        fsync_file(workspace.journal)


def note_whole(workspace: Workspace) -> None:
    """Note that the parts of all tasks are flushed, by this process or others; their names are flushed now."""
    for folder in workspace.part_folders():
        fsync_folder(folder)
    _note(workspace, [], whole=True)


def note_session(workspace: Workspace) -> None:
    """Note in the journal in which run of the machine this session is. The line is on the disk before any part is."""
    append_line(workspace.journal, {"did": "session", "machine_run": machine_run()})
    fsync_file(workspace.journal)
    fsync_folder(workspace.root)


def drop_unflushed(workspace: Workspace) -> None:
    """Remove what may have been lost with the machine's memory, if the machine was started anew since the job began.

    A journal without a session says so, too: its line was lost, with whatever was not flushed after it.

    Parts that were not flushed go; unless all parts were flushed before the shards were planned, so do the plan of the
    shards and every shard, since a task that is done again may give other rows, as when a file can be read now.
    """
    runs: set[str | None] = set()
    for line in workspace.read_journal():
        if line.get("did") == "session":
            runs.add(line.get("machine_run"))
        elif line.get("only"):
            runs.clear()
    if runs == {machine_run()} and None not in runs:
        return
    flushed, whole = _flushed(workspace)
    kept = {workspace.part(task).name for task in flushed}
    for path in workspace.part_files():
        if path.name not in kept:
            path.unlink()
    if not whole:
        workspace.assembly.unlink(missing_ok=True)
        remove_shards(workspace)
    # Those that are gone may be made again, and not be flushed.
    _note(workspace, sorted(flushed & workspace.finished_tasks()), whole=whole, only=True)


def _flushed(workspace: Workspace) -> tuple[set[int], bool]:
    """The tasks whose parts were flushed, and whether the parts of all tasks were."""
    flushed: set[int] = set()
    whole = False
    for line in workspace.read_journal():
        if line.get("did") == "flush":
            flushed = {*line["tasks"], *(() if line["only"] else flushed)}
            whole = line.get("whole", whole)
        elif line.get(FLUSHED) and line["did"] in ("task", "join"):
            flushed.add(line["number"])
    return flushed, whole


def _fsync_parts(workspace: Workspace, tasks: Sequence[int]) -> None:
    for task in tasks:
        fsync_file(workspace.part(task))
    for folder in sorted({workspace.part(task).parent for task in tasks}):
        fsync_folder(folder)


def _note(workspace: Workspace, tasks: list[int], *, whole: bool, only: bool = False) -> None:
    append_line(workspace.journal, {"did": "flush", "tasks": tasks, "whole": whole, "only": only})
    fsync_file(workspace.journal)
