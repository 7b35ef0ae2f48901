"""The simulation of a build on a cluster, by discrete events; `benchmarks.cluster_model` says what it is for."""

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from packer.assembly.plan import SHARD_BYTES
from packer.builds.planning.plan import TASK_BYTES, TASK_ITEMS
from packer.cluster.phase import BATCH_S, PAUSE_S
from packer.workspace.fresh import AHEAD
from packer.workspace.sharing.array import block_size, count_blocks

WAYS = ("srun", "array")
CORES = 64

_MOST_TASK_ITEMS, _TASKS = 512, 256
"""As `packer.builds.planning.plan` has them: the most items in a task, and the share of the items that a task has."""

_NAMES_A_LISTING = 1000
"""Names that a file system returns with one operation."""


@dataclass(frozen=True)
class Shared:
    """A shared file system, by assumption.

    Attributes
    ----------
    latency_s : float
        What one metadata operation takes, its way there and back included, beyond what it takes on a local disk.
    operations_per_s : float
        Metadata operations that the server does in all.
    bytes_per_s : float
        What all nodes together read and write.
    node_bytes_per_s : float
        What one node reads and writes.
    """

    latency_s: float = 0.5e-3
    operations_per_s: float = 20_000.0
    bytes_per_s: float = 10e9
    node_bytes_per_s: float = 2.5e9


LOCAL = Shared(0.0, math.inf, math.inf, math.inf)
"""A disk of the node itself, whose operations are in what was measured."""


@dataclass(frozen=True)
class Build:
    """A build, as far as its time depends on it.

    Attributes
    ----------
    items : int
    item_s : float
        Seconds of a core for one item.
    spread : float
        The standard deviation of that, relative to it.
    source_bytes, part_bytes, rows : float
        Of one item: bytes read, bytes of its part, samples.
    weight : int
        What a byte of an item counts when the planner cuts tasks.
    start_s : float
        Seconds of a core from the start of a worker until it is ready.
    workers : int
        On each node.
    shard_bytes : int
    task_items : int
        Items in a task; 0 for as many as the planner takes.
    """

    items: int
    item_s: float
    spread: float
    source_bytes: float
    part_bytes: float
    rows: float
    weight: int
    start_s: float
    workers: int = CORES
    shard_bytes: int = SHARD_BYTES
    task_items: int = 0

    @property
    def items_a_task(self) -> int:
        """Items in a task of equal items, as the planner cuts them."""
        by_bytes = int(TASK_BYTES // max(1.0, self.source_bytes * self.weight))
        by_room = min(max(TASK_ITEMS, self.items // _TASKS), _MOST_TASK_ITEMS) // (
            1 if self.weight == 1 else TASK_ITEMS
        )
        return self.task_items or max(1, min(by_room, by_bytes))

    def tasks(self) -> list[int]:
        """The items of each task."""
        whole, rest = divmod(self.items, self.items_a_task)
        return [self.items_a_task] * whole + [rest] * (rest > 0)


@dataclass(frozen=True)
class Cluster:
    """Where a build runs.

    Attributes
    ----------
    nodes : int
    shared : Shared
    steps_per_s : float
        Steps that Slurm's controller starts in a second.
    cores : float
        Cores of all nodes together, if they share them, as nodes on one host do.
    """

    nodes: int
    shared: Shared = Shared()
    steps_per_s: float = math.inf
    cores: float = math.inf


class Parts:
    """What the parts of a build cost, as `cluster_parts` has measured it.

    Parameters
    ----------
    found : mapping
        The ``parts`` of its document.
    without : str
        A part that costs nothing.
    """

    def __init__(self, found: Mapping[str, Any], without: str = "") -> None:
        self._found = found
        self.without = without

    def of(self, name: str, limit: str) -> float:
        """A figure, by name; 0 if what it belongs to is left out."""
        return 0.0 if limit == self.without else float(self._found[name])

    def coordinator_s(self, workers: int) -> float:
        """Seconds of a coordinator for one task, from the messages of a worker to the next task."""
        if self.without == "coordinator":
            return 0.0
        counts, seconds = zip(*((c["workers"], c["task_s"]) for c in self._found["coordinator"]), strict=True)
        if workers <= counts[-1]:
            return float(np.interp(workers, counts, seconds))
        slope = (seconds[-1] - seconds[-2]) / (counts[-1] - counts[-2])
        return float(seconds[-1] + slope * (workers - counts[-1]))


class Server:
    """Serves requests one after another, in the order in which they come."""

    def __init__(self) -> None:
        self._free_s = 0.0

    def use(self, now_s: float, took_s: float) -> float:
        """When a request that takes so long and comes now is served."""
        self._free_s = max(self._free_s, now_s) + took_s
        return self._free_s


class Pool:
    """Serves so many units a second in all. Requests may be made in any order, also for later times.

    Time is cut into slots, each of which serves as many units as fit into it; a request takes what is free from the
    slot on in which it comes.
    """

    SLOT_S = 0.01

    def __init__(self, units_per_s: float) -> None:
        self._slot = units_per_s * self.SLOT_S
        self._left: dict[int, float] = {}
        self._next: dict[int, int] = {}

    def use(self, now_s: float, units: float) -> float:
        """When a request for so many units is served that comes now."""
        if math.isinf(self._slot) or not units:
            return now_s
        slot = self._free(int(now_s / self.SLOT_S))
        while units > (left := self._left.get(slot, self._slot)):
            units -= left
            self._left[slot] = 0.0
            self._next[slot] = slot + 1
            slot = self._free(slot + 1)
        self._left[slot] = left - units
        return (
            max(now_s, (slot + 1 - self._left[slot] / self._slot) * self.SLOT_S)
            if left < self._slot
            else (max(now_s, slot * self.SLOT_S) + units / self._slot * self.SLOT_S)
        )

    def _free(self, slot: int) -> int:
        """The first slot from one on that has something left."""
        passed = []
        while slot in self._next:
            passed.append(slot)
            slot = self._next[slot]
        for one in passed:
            self._next[one] = slot
        return slot


class FileSystem:
    """The shared file system under load.

    Parameters
    ----------
    cluster : Cluster
    without : str
        A part that costs nothing: ``"metadata"``, ``"bandwidth"``.
    """

    def __init__(self, cluster: Cluster, without: str = "") -> None:
        shared = cluster.shared
        self._latency_s = 0.0 if without == "metadata" else shared.latency_s
        self._server = Pool(math.inf if without == "metadata" else shared.operations_per_s)
        fast = without == "bandwidth"
        self._disks = Pool(math.inf if fast else shared.bytes_per_s)
        self._nodes = [Pool(math.inf if fast else shared.node_bytes_per_s) for _ in range(cluster.nodes)]
        self.operations = 0.0

    def operate(self, now_s: float, operations: float, ahead: int = 1) -> float:
        """When so many operations are done, so many of them at a time."""
        self.operations += operations
        served_s, waited_s = self._server.use(now_s, operations), operations * self._latency_s / ahead
        # One after another, each is asked for when the one before is answered; of many at a time, some are always served.
        return served_s + waited_s if ahead == 1 else max(served_s, now_s + waited_s)

    def move(self, now_s: float, node: int, size: float) -> float:
        """When a node has read or written so many bytes."""
        return max(self._disks.use(now_s, size), self._nodes[node].use(now_s, size))


class Handed(NamedTuple):
    """A unit that a worker is given, and when; without one, when to ask again, or never (infinity)."""

    unit: int | None
    at_s: float


class Early(NamedTuple):
    """The shards that are written while tasks still run, as units behind the tasks (`packer.jobs.stages.early`).

    Attributes
    ----------
    needs : sequence of int
        For each shard, the task that has to be done, and all before it.
    shard_s, operations : float
        Seconds of the coordinator for one of them, and operations of the file system.
    """

    needs: Sequence[int]
    shard_s: float
    operations: float


class Central:
    """One coordinator: it hears that a unit is done, and gives the next one out.

    Parameters
    ----------
    units : int
    unit_s : float
        Seconds of the coordinator for one unit.
    operations : float
        Of the file system, for one unit.
    files : FileSystem
    taken_operations : float
        Of the file system, for what is made of a unit; threads ask for them, and nothing waits.
    early : Early, optional
    """

    def __init__(
        self,
        units: int,
        unit_s: float,
        operations: float,
        files: FileSystem,
        taken_operations: float = 0.0,
        early: Early | None = None,
    ) -> None:
        self._left = deque(range(units))
        self._server = Server()
        self._unit_s, self._operations, self._files = unit_s, operations, files
        self._taken_operations = taken_operations
        self._early = early or Early((), 0.0, 0.0)
        self._done, self._prefix, self._cut = bytearray(units), 0, 0
        self._whole: deque[int] = deque()

    def next(self, now_s: float, node: int, done: int | None) -> Handed:
        """What a worker does next that is ready, or has done a unit."""
        at_s = self._server.use(now_s, self._unit_s)
        if done is not None and done < len(self._done):
            if self._operations:
                at_s = self._server.use(now_s, self._files.operate(at_s, self._operations) - at_s)
            if self._taken_operations:
                self._files.operate(at_s, self._taken_operations, AHEAD)
            at_s = self._take_in(done, at_s)
        if self._whole:
            return Handed(self._whole.popleft(), at_s)
        return Handed(self._left.popleft(), at_s) if self._left else Handed(None, math.inf)

    def _take_in(self, done: int, now_s: float) -> float:
        """Take in a task, and offer the shards that are whole with it; returns when that is done."""
        early, self._done[done] = self._early, 1
        while self._prefix < len(self._done) and self._done[self._prefix]:
            self._prefix += 1
        while self._cut < len(early.needs) and early.needs[self._cut] < self._prefix:
            self._whole.append(len(self._done) + self._cut)
            self._cut += 1
            offered_s = self._files.operate(self._server.use(now_s, early.shard_s), early.operations)
            now_s = self._server.use(now_s, offered_s - now_s)
        return now_s


class Agents:
    """An agent on each node, which claims blocks of units for its workers (`packer.cluster.phase`).

    Parameters
    ----------
    nodes, workers : int
    units, block : int
        How many there are, and how many a claim is to.
    mean_s : float
        What a unit takes, which an agent learns from the first that is done.
    unit_s : float
        Seconds of an agent for one unit.
    operations : float
        Of the file system, for one unit.
    claim_s : float
        Seconds of an agent for one claim.
    claim_operations, agent_operations : float
        Of the file system, for one claim to a block, and for a look at the record of one agent.
    files : FileSystem
    """

    def __init__(
        self,
        nodes: int,
        workers: int,
        units: int,
        block: int,
        mean_s: float,
        unit_s: float,
        operations: float,
        claim_s: float,
        claim_operations: float,
        agent_operations: float,
        files: FileSystem,
    ) -> None:
        self._nodes, self._workers, self._block = nodes, workers, block
        self._blocks = deque(range(first, min(first + block, units)) for first in range(0, units, block))
        self._all = len(self._blocks)
        self._unit_s, self._operations = unit_s, operations
        self._claim_s, self._claim_operations, self._agent_operations = claim_s, claim_operations, agent_operations
        self._files = files
        self._agents = [Server() for _ in range(nodes)]
        self._local: list[deque[int]] = [deque() for _ in range(nodes)]
        self._idle = [workers] * nodes
        self._mean_s = mean_s
        self._known = [False] * nodes

    def next(self, now_s: float, node: int, done: int | None) -> Handed:
        """What a worker does next that is ready, or has done a unit."""
        agent, local = self._agents[node], self._local[node]
        at_s = agent.use(now_s, self._unit_s)
        if done is not None:
            self._idle[node] += 1
            self._known[node] = True
            if self._operations:
                at_s = agent.use(now_s, self._files.operate(at_s, self._operations) - at_s)
        if not local and self._blocks:
            at_s = agent.use(now_s, self._claim(at_s, node) - at_s)
        if not local:
            return Handed(None, math.inf)
        self._idle[node] -= 1
        return Handed(local.popleft(), at_s)

    def _claim(self, now_s: float, node: int) -> float:
        """Claim as many blocks as an agent does; returns when it has."""
        enough = float(max(1, self._idle[node]))
        if self._known[node] and self._mean_s:
            fair = len(self._blocks) * self._block / (2 * self._nodes)
            enough = max(enough, min(self._workers * BATCH_S / self._mean_s, fair))
        count = min(len(self._blocks), math.ceil(enough / self._block))
        names = 2 * (self._all - len(self._blocks))
        looks = 2 + names / _NAMES_A_LISTING + self._nodes * self._agent_operations
        done_s = self._files.operate(now_s, looks + count * self._claim_operations) + self._claim_s * count
        for _ in range(count):
            self._local[node].extend(self._blocks.popleft())
        return done_s


class Stage(NamedTuple):
    """What a stage of units took: until the last was done, how many were, and how busy all workers were."""

    end_s: float
    done: int
    worked_s: float


def run_units(
    feed: Central | Agents,
    ready_s: Sequence[Sequence[float]],
    unit_s: Sequence[float],
    read: Callable[[int], float],
    write: Callable[[int], float],
    operations: Callable[[int], tuple[float, float]],
    files: FileSystem,
    publish_s: float,
    optional: int = 0,
) -> Stage:
    """Simulate a stage.

    Parameters
    ----------
    feed : Central or Agents
        Gives units out.
    ready_s : by node, by worker
        When the worker is ready.
    unit_s : by unit
        Seconds of a core.
    read, write : callable
        Bytes of a unit.
    operations : callable
        Operations of the file system before a unit's work, and after it.
    publish_s : float
        Seconds for publishing what a unit has made, on a local disk.
    optional : int
        So many of the last units may be left undone.
    """
    queue: list[tuple[float, int, str, int, int]] = []
    number = 0
    for node, workers in enumerate(ready_s):
        for at_s in workers:
            queue.append((at_s, number, "free", node, -1))
            number += 1
    heapq.heapify(queue)
    done, count, worked_s, end_s = bytearray(len(unit_s)), 0, 0.0, 0.0
    while queue:
        now_s, _, what, node, unit = heapq.heappop(queue)
        number += 1
        if what in ("free", "done"):
            if what == "done":
                done[unit] += 1
                count += 1
                end_s = max(end_s, now_s)
            handed = feed.next(now_s, node, unit if what == "done" else None)
            if handed.unit is not None:
                heapq.heappush(queue, (handed.at_s, number, "begin", node, handed.unit))
        elif what == "begin":
            opened_s = files.operate(now_s, operations(unit)[0])
            # The source is read while it is worked on.
            ready = max(opened_s + unit_s[unit], files.move(opened_s, node, read(unit)))
            worked_s += unit_s[unit]
            heapq.heappush(queue, (ready, number, "publish", node, unit))
        else:
            moved_s = files.move(now_s, node, write(unit)) + publish_s
            heapq.heappush(queue, (files.operate(moved_s, operations(unit)[1]), number, "done", node, unit))
    if done.count(1) != count or any(times != 1 for times in done[: len(unit_s) - optional]):
        raise AssertionError(f"units done once: {done.count(1)} of {len(done)}")
    return Stage(end_s, count, worked_s)


LIMITS = ("start", "plan", "coordinator", "metadata", "bandwidth", "cut", "shards")
"""Parts of which one may be left out. If no part gains anything by that, the number of units is the limit."""


def simulate(
    build: Build,
    cluster: Cluster,
    way: str,
    found: Mapping[str, Any],
    without: str = "",
) -> dict[str, float]:
    """The seconds of a build, by stage.

    Parameters
    ----------
    build : Build
    cluster : Cluster
    way : {"srun", "array"}
        One coordinator with workers on all nodes, or an agent on each node.
    found : mapping
        The measured parts.
    without : str
        The part that is to cost nothing, one of `LIMITS`; empty for none.

    Returns
    -------
    dict of str to float
        ``plan_s``, ``tasks_s``, ``cut_s``, ``shards_s``, ``commit_s``, and ``s``, their sum; ``tasks`` and ``shards``
        that were done, ``operations`` of the file system, and ``worked_s``, the seconds that workers computed.
    """
    parts, files = Parts(found, without), FileSystem(cluster, without)
    tasks = build.tasks()
    seconds: dict[str, float] = {}

    def stage(name: str, begin_s: float, end_s: float) -> float:
        seconds[name] = end_s - begin_s
        return end_s

    planned_s = parts.of("agent_start_s", "start") + build.items * parts.of("plan_item_s", "plan")
    listed = build.items * parts.of("list_item_operations", "plan")
    # Threads ask for the files ahead of what is worked on, here and in the cut.
    planned_s = max(planned_s, files.operate(0.0, listed, AHEAD))
    now_s = stage("plan_s", 0.0, planned_s)
    before = files.operate(now_s, 2 + len(tasks) * parts.of("look_task_operations", "metadata"))
    drawn = _drawn(build, tasks)
    whole = build.items * build.part_bytes
    shards = max(1, math.ceil(whole / build.shard_bytes))
    of_shard = _Shard.of(build, parts, shards)
    early = Early(
        _needs(build, tasks, shards) if way == "srun" and without != "shards" else (),
        parts.of("early_shard_s", "coordinator"),
        parts.of("early_shard_operations", "coordinator"),
    )
    feed = _feed(
        way,
        len(tasks),
        block_size(len(tasks)),
        build.item_s * build.items_a_task,
        build.workers,
        cluster,
        parts,
        files,
        parts.of("coordinator_task_operations", "coordinator"),
        # A coordinator takes parts in for the cut as they are made; an agent opens them all after the last task.
        parts.of("take_part_s", "coordinator")
        + build.items_a_task * build.rows * parts.of("take_row_s", "coordinator"),
        parts.of("cut_part_operations", "cut"),
        early,
    )
    size = [float(count) for count in tasks]
    count = len(tasks)
    of_task = (parts.of("task_begin_operations", "metadata"), parts.of("task_end_operations", "metadata"))
    of_item = parts.of("source_operations", "metadata")
    done = run_units(
        feed,
        _ready(before, build.start_s, build.workers, cluster, way, parts),
        [*drawn, *[of_shard.seconds] * len(early.needs)],
        lambda unit: size[unit] * build.source_bytes if unit < count else of_shard.size,
        lambda unit: size[unit] * build.part_bytes if unit < count else of_shard.size,
        lambda unit: (of_task[0] + of_item * size[unit], of_task[1]) if unit < count else of_shard.operations,
        files,
        parts.of("publish_s", "metadata"),
        len(early.needs),
    )
    now_s = stage("tasks_s", now_s, done.end_s)
    seconds |= {"tasks": count, "early": done.done - count, "worked_s": done.worked_s}
    rows = build.items * build.rows
    cut_s = len(tasks) * parts.of("cut_part_s", "cut") + rows * parts.of("cut_row_s", "cut")
    cut_operations = 0.0
    if way == "array":
        cut_s += len(tasks) * parts.of("take_part_s", "cut") + rows * parts.of("take_row_s", "cut")
        cut_operations = len(tasks) * parts.of("cut_part_operations", "cut")
    cut_s += parts.of("cut_s", "cut") + (PAUSE_S / 2 if way == "array" and without != "cut" else 0.0)
    now_s = stage("cut_s", now_s, max(now_s + cut_s, files.operate(now_s, cut_operations, AHEAD)))
    deletions = len(tasks) * parts.of("delete_part_operations", "shards")
    written_s = _write_shards(build, cluster, way, parts, files, of_shard, shards - (done.done - count), now_s)
    if way == "srun":  # the coordinator deletes parts while shards are written, and the finishing job of an array later
        written_s = max(written_s, files.operate(now_s, deletions, AHEAD))
    placed = (done.done - count) * parts.of("coordinator_shard_operations", "shards")
    now_s = stage("shards_s", now_s, max(written_s, files.operate(now_s, placed, AHEAD)))
    commit_s = parts.of("commit_s", "shards") + shards * parts.of("commit_shard_s", "shards")
    commit_operations = shards * parts.of("commit_shard_operations", "shards")
    if way == "array":  # the claims, and their ends, are removed one after another
        commit_operations += 2 * count_blocks(len(tasks))
    committed_s = files.operate(now_s + commit_s, commit_operations, AHEAD)
    stage("commit_s", now_s, committed_s if way == "srun" else files.operate(committed_s, deletions, AHEAD))
    seconds["s"] = sum(seconds[name] for name in ("plan_s", "tasks_s", "cut_s", "shards_s", "commit_s"))
    return {**seconds, "shards": shards, "operations": files.operations}


def _ready(
    now_s: float, start_s: float, workers: int, cluster: Cluster, way: str, parts: Parts, agent: bool = True
) -> list[list[float]]:
    """When each worker of each node is ready."""
    if parts.without == "start":
        return [[now_s] * workers for _ in range(cluster.nodes)]
    crowd = max(1.0, cluster.nodes * workers / cluster.cores)  # cores that several share
    start_s *= crowd
    if way == "array":
        begin_s = now_s + (parts.of("agent_start_s", "start") if agent else 0.0)
        return [[begin_s + start_s] * workers for _ in range(cluster.nodes)]
    start_s += parts.of("launch_s", "start") * crowd
    return [[now_s + (1 + node) / cluster.steps_per_s + start_s] * workers for node in range(cluster.nodes)]


def _feed(
    way: str,
    units: int,
    block: int,
    mean_s: float,
    workers: int,
    cluster: Cluster,
    parts: Parts,
    files: FileSystem,
    operations: float,
    take_s: float = 0.0,
    taken_operations: float = 0.0,
    early: Early | None = None,
) -> Central | Agents:
    if way == "srun":
        unit_s = parts.coordinator_s(cluster.nodes * workers) + take_s
        return Central(units, unit_s, operations, files, taken_operations, early)
    return Agents(
        cluster.nodes,
        workers,
        units,
        block,
        mean_s,
        parts.coordinator_s(workers),
        operations,
        parts.of("claim_s", "coordinator"),
        parts.of("claim_operations", "coordinator"),
        parts.of("agent_look_operations", "coordinator"),
        files,
    )


class _Shard(NamedTuple):
    """What one shard takes: seconds of a core, bytes read and written, operations before and after."""

    seconds: float
    size: float
    operations: tuple[float, float]

    @classmethod
    def of(cls, build: Build, parts: Parts, shards: int) -> "_Shard":
        """One of so many shards of a build."""
        size = build.items * build.part_bytes / shards
        seconds = parts.of("shard_s", "shards") + size * parts.of("shard_byte_s", "shards")
        before = len(build.tasks()) / shards * parts.of("shard_part_operations", "shards")
        return cls(seconds, size, (before, parts.of("shard_operations", "shards")))


def _needs(build: Build, tasks: Sequence[int], shards: int) -> list[int]:
    """The task with the first row behind each shard but the last."""
    ends = np.cumsum(tasks)
    rows = np.arange(1, shards) * (build.items / shards)
    return [int(task) for task in np.searchsorted(ends, rows, side="right")]


def _write_shards(
    build: Build, cluster: Cluster, way: str, parts: Parts, files: FileSystem, of: _Shard, shards: int, now_s: float
) -> float:
    """When the shards are written that were not before."""
    if not shards:
        return now_s
    workers = min(build.workers, math.ceil(shards / cluster.nodes)) if way == "srun" else min(build.workers, shards)
    noted = parts.of("coordinator_shard_operations", "shards")
    done = run_units(
        _feed(way, shards, 1, of.seconds, workers, cluster, parts, files, noted),
        _ready(now_s, parts.of("shard_start_s", "start"), workers, cluster, way, parts, agent=False),
        [of.seconds] * shards,
        lambda _: of.size,
        lambda _: of.size,
        lambda _: of.operations,
        files,
        parts.of("publish_s", "shards"),
    )
    return done.end_s


def _drawn(build: Build, tasks: Iterable[int]) -> list[float]:
    """The seconds of a core that each task takes."""
    counts = np.array(list(tasks), np.float64)
    if not build.spread:
        return list(counts * build.item_s)
    spread = build.spread / np.sqrt(counts)
    sigma = np.sqrt(np.log1p(spread**2))
    factors = np.random.default_rng(0).lognormal(-(sigma**2) / 2, sigma)
    return list(counts * build.item_s * factors)


def possible(build: Build, cluster: Cluster, alone_s: float) -> float:
    """The share of linear that no design can exceed on a cluster.

    Its cores compute; each source is asked for, opened and closed, and read once; each sample is written once; and all
    of that goes on at the same time.

    Parameters
    ----------
    alone_s : float
        Seconds of the build on one node.
    """
    shared = cluster.shared
    computed_s = build.items * build.item_s / (cluster.nodes * build.workers)
    moved = build.items * (build.source_bytes + build.part_bytes)
    moved_s = moved / min(shared.bytes_per_s, cluster.nodes * shared.node_bytes_per_s)
    asked_s = 3 * build.items / shared.operations_per_s
    return min(1.0, alone_s / cluster.nodes / max(computed_s, moved_s, asked_s))


OF_TASKS = ("start", "coordinator", "metadata", "bandwidth")
"""What may limit the stage of the tasks."""


def limit(
    build: Build,
    cluster: Cluster,
    way: str,
    found: Mapping[str, Any],
    alone: Mapping[str, float],
    here: Mapping[str, float],
) -> str:
    """What keeps a build from being linear.

    It is the stage that takes the longest beyond its share of its time on one node, ``"plan"``, ``"cut"`` or
    ``"shards"``. If that is the stage of the tasks, it is the part without which the tasks would be done the soonest, or
    ``"units"``, their number, if that gains nothing.

    Parameters
    ----------
    alone, here : mapping
        What `simulate` says for one node, and for the nodes of the cluster.
    """
    beyond = {
        name: here[f"{name}_s"] - alone[f"{name}_s"] / cluster.nodes for name in ("plan", "tasks", "cut", "shards")
    }
    if (stage := max(beyond, key=lambda one: beyond[one])) != "tasks":
        return stage
    times = {name: simulate(build, cluster, way, found, name)["tasks_s"] for name in OF_TASKS}
    name = min(times, key=lambda one: times[one])
    return name if times[name] < 0.99 * here["tasks_s"] else "units"
