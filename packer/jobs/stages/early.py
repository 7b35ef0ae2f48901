"""Shards that are written while tasks still run. They count if the plan of all shards has them, as is seen at the end.

Then little is left after the last task, and parts are read while the system still has them in memory. Until then every
part stays, so such shards are written only while the disk has room for all parts and all shards.
"""

import itertools
import shutil
import uuid
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from packer.assembly.plan import ShardPlan, shard_name
from packer.assembly.shard import published_shard
from packer.jobs.engines.base import Event
from packer.jobs.plan import GIVEN_UP, Unit
from packer.workspace import Workspace
from packer.workspace.durable import write_durably
from packer.workspace.fresh import ask_each, wait_for
from packer.workspace.paths import RECORD_NAME
from shardspec.errors import BuildError
from shardspec.manifest import sha256_json

_MARGIN = 1.5
"""So many times the room is asked for that is expected to be needed.

Later items may yield more, and others write, too.
"""

_CLOSED = "closed"
"""A file that says that a call ended while there were such shards, for want of room maybe: the next has none."""


class _Given(NamedTuple):
    """A shard that is being written, or was: its form's key, its number, its encoded bytes."""

    key: str
    first: int
    bytes: int


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
    adopted, written : list of int
        The numbers of the shards that count, and of those among them that this call has written; known once the plan of
        all shards is adopted.
    """

    def __init__(self, space: Workspace, tasks: int, missing: int) -> None:
        self._space = space
        self._tasks = tasks
        self._missing = missing
        self._packed = self._packed_bytes = 0
        self._there = 0
        self._last = ""
        self._offered: deque[ShardPlan] = deque()
        self._given: dict[int, _Given] = {}
        self._done: set[int] = set()
        self._numbers = itertools.count()
        self._closed = (space.early / _CLOSED).exists()
        self.units: deque[Unit] = deque()
        self.adopted: list[int] = []
        self.written: list[int] = []

    def offer(self, plans: Iterable[ShardPlan]) -> None:
        """Have shards written that are whole, as long as there is room; those that it is not there for yet wait."""
        if self._closed:
            return
        for plan in plans:
            named = plan.under(self._key(plan))
            if named.key != self._last:
                self._begin(named.key)
            self._offered.append(named)
        while self._offered and not self._closed:
            plan = self._offered[0]
            there = published_shard(plan.published(0)) is not None
            if not there and not self._has_room():
                return
            self._offered.popleft()  # before it is given: if that fails, none is offered any more
            if there:
                self._there += _size(plan)
            else:
                self._give(plan)

    def note(self, event: Event) -> None:
        """Note that a unit is done."""
        assert event.unit is not None
        number = event.unit.number
        if event.unit.do == "task":
            self._packed += 1
            self._packed_bytes += event.result.get("bytes", 0)
        if event.unit.do != "early" or number not in self._given:
            return
        given = self._given[number]
        if given.key != self._last:
            del self._given[number]
        elif GIVEN_UP not in event.result and event.result.get("name") == shard_name(given.first):
            self._done.add(number)
            self._there += given.bytes
        else:
            self.close()

    def close(self) -> None:
        """Write no more, and remove what was written: its room is needed. The next call begins with none, either."""
        self._closed = True
        self._given.clear()
        self._done.clear()
        self._offered.clear()
        self.units.clear()
        clear_early(self._space)
        with suppress(OSError):  # the next call tries again, then
            self._space.early.mkdir()
            (self._space.early / _CLOSED).touch()

    def adopt(self, plan: ShardPlan) -> ShardPlan:
        """The plan of all shards, with those that were written early and belong to it."""
        if self._closed or not self._base.exists():
            return plan
        early = plan.under(self._key(plan))
        ours = {self._given[number].first for number in self._done if self._given[number].key == early.key}

        def counts(number: int) -> bool:
            if plan.first + number in ours:
                wait_for(early.published(number) / RECORD_NAME)
            return self._counts(early, number)

        there = list(ask_each(self._space.root, counts, range(len(plan.sizes)))) if early.staging.exists() else []
        self.adopted = [number for number, counted in enumerate(there) if counted]
        self.written = [number for number in self.adopted if plan.first + number in ours]
        return early if self.adopted else plan

    def _begin(self, key: str) -> None:
        """Begin with a form of the rows.

        Shards of other forms are void, and a worker that is at one finds no folder.
        """
        self._last, self._there = key, 0
        self._offered.clear()
        self.units.clear()
        for path in sorted(self._space.staging.iterdir()):
            if path.name != key:
                self._space.take_away(path)

    def _give(self, plan: ShardPlan) -> None:
        number = next(self._numbers)
        try:
            plan.staging.mkdir(exist_ok=True)
            self._space.early_plan(number).write_bytes(plan.dumps())
        except OSError:
            self.close()
            return
        self._given[number] = _Given(plan.key, plan.first, _size(plan))
        self.units.append(Unit("early", number))

    def _counts(self, plan: ShardPlan, number: int) -> bool:
        """Return whether a shard was written early."""
        shard = published_shard(plan.published(number))
        if shard is not None and shard.samples != plan.sizes[number].samples:
            raise BuildError(
                f"{plan.published(number)}: expected {plan.sizes[number].samples} samples, found {shard.samples}: "
                "remove the .build folder and build again"
            )
        return shard is not None

    @property
    def _base(self) -> Path:
        return self._space.early / "key"

    @cached_property
    def _key_of_parts(self) -> str:
        """Drawn once for the parts of a plan; it is removed before any of them is (`remove_shards`)."""
        if not self._base.exists():
            clear_early(self._space)
            self._space.early.mkdir()
            write_durably(self._base, uuid.uuid4().hex.encode())
        return self._base.read_text("ascii")

    def _key(self, plan: ShardPlan) -> str:
        """The key of the shards of a form."""
        return sha256_json([self._key_of_parts, plan.form])[:32]

    def _has_room(self) -> bool:
        """Return whether there is room for all parts and all shards at the same time."""
        if not self._packed:
            return False
        a_task = self._packed_bytes / self._packed
        more = a_task * (self._missing - self._packed) + max(0.0, a_task * self._tasks - self._there)
        return shutil.disk_usage(self._space.root).free > _MARGIN * more


def clear_early(space: Workspace, except_of: str = "") -> None:
    """Remove the early shards of a workspace, but for those in a folder that the plan of all shards has now."""
    if space.early.exists():
        space.take_away(space.early)
    for path in sorted(space.staging.iterdir()):
        if path.name != except_of:
            space.take_away(path)


def _size(plan: ShardPlan) -> int:
    return sum(sum(size.field_bytes.values()) for size in plan.sizes)
