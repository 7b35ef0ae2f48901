"""Shards that are written while tasks still run. They count if the plan of all shards has them, as is seen at the end.

Then little is left after the last task, and parts are read while the system still has them in memory. Until then every
part stays, so such shards are written only where there is room for two copies of the samples.
"""

import shutil
import uuid
from collections import deque
from collections.abc import Iterable

from packer.assembly.plan import ShardPlan
from packer.assembly.shard import published_shard
from packer.jobs.engines.base import Event
from packer.jobs.plan import Unit
from packer.workspace import Workspace, append_line
from packer.workspace.durable import write_durably
from packer.workspace.fresh import ask_each, wait_for
from packer.workspace.paths import RECORD_NAME
from shardspec.errors import BuildError
from shardspec.manifest import sha256_json

GIVEN_UP = "given_up"
"""Key of the result of a unit whose shard could not be written; the last stage tries again, and reports why."""

_MARGIN = 1.5
"""So many times the room is asked for that parts and shards are expected to need: later items may yield more."""


class EarlyShards:
    """The early shards of a build.

    Those of a form of the rows have a folder of their own. What is cut from the same parts in the same form is the same,
    so a shard counts that lies in the folder of the form that all rows have in the end, even one of an earlier call.

    Parameters
    ----------
    space : Workspace
    tasks, missing : int
        The number of tasks of the plan, and of those that are yet to be done.

    Attributes
    ----------
    units : deque of Unit
        What is to be done before any further task; the schedule takes units from it.
    written : set of int
        The numbers of the shards that this call has written and that count, once the plan of all shards is adopted.
    """

    def __init__(self, space: Workspace, tasks: int, missing: int) -> None:
        self._space = space
        self._tasks = tasks
        self._missing = missing
        self._packed = self._packed_bytes = self._bytes = 0
        self._given: dict[int, ShardPlan] = {}
        self._done: set[int] = set()
        self._closed = False
        self.units: deque[Unit] = deque()
        self.written: set[int] = set()

    def offer(self, plans: Iterable[ShardPlan]) -> None:
        """Have shards written that are whole, as long as there is room."""
        for found in plans:
            plan = found.under(self._key(found))
            if published_shard(plan.published(0)) is not None:
                self._bytes += _size(plan)
            elif not self._closed and self._has_room():
                number = len(self._given)
                plan.staging.mkdir(exist_ok=True)
                self._space.early_plan(number).write_bytes(plan.dumps())
                self._given[number] = plan
                self._bytes += _size(plan)
                self.units.append(Unit("early", number))

    def note(self, event: Event) -> None:
        """Note that a unit is done."""
        assert event.unit is not None
        if event.unit.do == "task":
            self._packed += 1
            self._packed_bytes += event.result.get("bytes", 0)
        if event.unit.do != "early":
            return
        if GIVEN_UP in event.result:
            self._closed = True
            del self._given[event.unit.number]
        else:
            self._done.add(event.unit.number)
            append_line(self._space.journal, {"did": "shard", "number": self._given[event.unit.number].first})
        if self._closed and self._done == self._given.keys():  # their room is needed
            self._clear()

    def adopt(self, plan: ShardPlan) -> ShardPlan:
        """The plan of all shards, with those that were written early and belong to it."""
        if not self._space.early.exists():
            return plan
        early = plan.under(self._key(plan))
        ours = {self._given[number].first for number in self._done if self._given[number].key == early.key}

        def counts(number: int) -> bool:
            if plan.first + number in ours:
                wait_for(early.published(number) / RECORD_NAME)
            return self._counts(early, number)

        there = list(ask_each(self._space.root, counts, range(len(plan.sizes)))) if early.staging.exists() else []
        self.written = {number for number, counted in enumerate(there) if counted and plan.first + number in ours}
        return early if any(there) else plan

    def tidy(self, plan: ShardPlan) -> None:
        """Remove what does not belong to the plan of all shards, once that is saved."""
        if self._space.early.exists():
            self._clear(except_of=plan.key)

    def _counts(self, plan: ShardPlan, number: int) -> bool:
        """Whether a shard was written early."""
        shard = published_shard(plan.published(number))
        if shard is not None and shard.samples != plan.sizes[number].samples:
            raise BuildError(
                f"{plan.published(number)}: expected {plan.sizes[number].samples} samples, found {shard.samples}: "
                "remove the .build folder and build again"
            )
        return shard is not None

    def _key(self, plan: ShardPlan) -> str:
        """The key of the shards of a form. As long as the parts are the same, so is its first half."""
        base = self._space.early / "key"
        if not base.exists():
            self._clear()
            self._space.early.mkdir()
            write_durably(base, uuid.uuid4().hex.encode())
        return sha256_json([base.read_text("ascii"), plan.form])[:32]

    def _has_room(self) -> bool:
        """Whether there is room for all parts and all shards at the same time."""
        if not self._packed:
            return False
        a_task = self._packed_bytes / self._packed
        more = a_task * (self._missing - self._packed) + max(0.0, a_task * self._tasks - self._bytes)
        return shutil.disk_usage(self._space.root).free > _MARGIN * more

    def _clear(self, except_of: str = "") -> None:
        """Remove the early shards, but for those of a form."""
        if self._space.early.exists():
            self._space.take_away(self._space.early)
        for path in sorted(self._space.staging.iterdir()):
            if path.name != except_of:
                self._space.take_away(path)


def _size(plan: ShardPlan) -> int:
    return sum(sum(size.field_bytes.values()) for size in plan.sizes)
