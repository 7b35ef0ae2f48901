"""The stage of the shards: cut the rows into shards, write every unfinished shard of the plan, and delete parts that no shard needs any more."""

from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from types import TracebackType
from typing import Self

import numpy as np

from packer.assembly.plan import ShardPlan, plan_assembly, write_index
from packer.assembly.rows import open_rows
from packer.assembly.shard import place_shard
from packer.jobs.engines.base import Event
from packer.jobs.plan import Assembly, Unit
from packer.jobs.progress import ProgressListener, Stage
from packer.workspace import Workspace, append_line
from packer.workspace.durable import fsync_folder
from packer.workspace.fresh import AHEAD, ask_each, is_far
from shardspec.entries import Shard
from shardspec.errors import BuildError
from shardspec.layout import INDEX_FOLDER

RunUnits = Callable[[list[Unit], Callable[[Event], None]], None]
"""Runs units until all are done, and passes every event on."""


def cut_into_shards(assemble: Callable[[], Assembly], space: Workspace) -> ShardPlan:
    """Write reports and index, and cut the rows of all tasks into shards. The assembly plan is written last."""
    found = assemble()
    with closing(open_rows(found.rows, space) if found.source is None else found.source) as source:
        assembly = plan_assembly(space, found.rows, source, found.format, found.pieces, found.order, found.first_shard)
        write_index(source, found.order, space.final / INDEX_FOLDER, found.before)
    for (
        folder
    ) in space.part_folders():  # the names of the parts: once there is a plan of the shards, no task runs again
        fsync_folder(folder)
    assembly.save()
    return assembly


def assemble_shards(plan: ShardPlan, run: RunUnits, listener: ProgressListener) -> tuple[Shard, ...]:
    """Write the unfinished shards of an assembly plan, and return all shards in order."""
    workspace, count = plan.workspace, len(plan.sizes)
    root = workspace.shard_folder
    shards: dict[int, Shard] = {}
    plan.staging.mkdir(exist_ok=True)
    placed = ask_each(root, lambda number: place_shard(root, plan.published(number)), range(count))
    for number, shard in enumerate(placed):
        if shard is not None:
            shards[number] = shard
        else:
            workspace.take_away(plan.published(number))
    with _Parts(plan) as parts, Stage(listener, "writing", count, "shards", len(shards)) as stage:
        for number in shards:
            parts.release(number)

        def on_event(event: Event) -> None:
            size = 0
            if event.kind == "done" and event.unit is not None:
                number = event.unit.number
                append_line(workspace.journal, {"did": "shard", "number": number})
                shard = place_shard(root, plan.published(number))
                if shard is None:
                    raise BuildError(
                        f"{plan.published(number)}: expected the files of a finished shard, found others: "
                        "run the same command again to resume"
                    )
                shards[number] = shard
                size = shard.bytes
                parts.release(number)
            stage.advance(int(event.kind == "done"), size=size)

        run([Unit("shard", number) for number in range(count) if number not in shards], on_event)
    fsync_folder(root)
    return tuple(shards[number] for number in range(count))


class _Parts:
    """Knows which shards still need which parts: of a shuffled dataset, every shard needs every part.

    Use as a context manager. Deletions are done by a thread, so that workers need not wait for them: there may be
    thousands before the first shard is handed out. On a network file system, where each takes a while, several do them.
    """

    def __init__(self, plan: ShardPlan) -> None:
        self._workspace = plan.workspace
        self._threads = ThreadPoolExecutor(AHEAD if is_far(plan.workspace.root) else 1, "parts")
        self._deleting: deque[Future[None]] = deque()
        self._needed_by: Counter[int] = Counter()
        self._of_shard: list[range] = []
        self._tasks = len(plan.rows["tasks"]) if plan.rows["kind"] == "parts" else 0
        self._shuffled, self._left = plan.order is not None, len(plan.sizes)
        if self._shuffled or not self._tasks:
            return
        ends = np.cumsum(np.array(plan.rows["tasks"], np.int64))
        for start, stop in zip(plan.cuts[:-1], plan.cuts[1:], strict=True):
            first = int(np.searchsorted(ends, start, side="right"))
            self._of_shard.append(range(first, int(np.searchsorted(ends, stop, side="left")) + 1))
            self._needed_by.update(self._of_shard[-1])
        for task in range(self._tasks):
            if task not in self._needed_by:
                self._delete(task)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._threads.shutdown(cancel_futures=kind is not None)
        if kind is None:
            self._check()

    def release(self, shard: int) -> None:
        """Note that a shard is durable, and delete the parts that no other shard needs."""
        self._left -= 1
        if self._shuffled and not self._left:
            for task in range(self._tasks):
                self._delete(task)
        for task in self._of_shard[shard] if self._of_shard else ():
            self._needed_by[task] -= 1
            if not self._needed_by[task]:
                self._delete(task)

    def _delete(self, task: int) -> None:
        self._deleting.append(self._threads.submit(self._workspace.part(task).unlink, missing_ok=True))
        while self._deleting[0].done() and len(self._deleting) > 1:
            self._deleting.popleft().result()

    def _check(self) -> None:
        """Raise the error of a deletion that failed."""
        while self._deleting:
            self._deleting.popleft().result()
