"""The Ray engine: actors on the nodes of a Ray cluster, each of which runs units with the processes engine of its node.

A node gets one actor, or one for each GPU, or one for each fraction of a GPU. An actor receives units and reports events.
It is never restarted by Ray, which knows nothing of items. This process looks for nodes without an actor instead, so that
nodes that join while a build runs get work, too, and a lost actor is replaced if its node still exists.
"""

import logging
import os
import queue
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from packer.jobs.child import AnswerQueue
from packer.jobs.engines.base import TICK_S, Event
from packer.jobs.engines.processes import ProcessesEngine
from packer.jobs.plan import Tasks, Unit, Verdicts, Work
from packer.jobs.process import inherited_environment
from packer.jobs.worker import open_remote
from packer.recipe.engines import ClusterSettings, WorkerSettings, check_reachable
from packer.sources.item import read_items
from packer.workspace import Workspace
from packer.workspace.machines import enter_plan
from packer.workspace.scratch import TemporaryFiles
from packer.workspace.shared_files import host, wait_for
from shardspec.errors import BuildError, ShardspecError, UsageError
from shardspec.layout import BUILD_FOLDER, is_url
from shardspec.wording import LONG, counted, shorten

# Ray reports each use to its makers unless this is set before it is imported.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_END_S = 5.0
_LOOK_S = 2.0
"""Seconds between two looks for nodes."""

_SETTINGS_ADVICE = " (nodes have the environment of the command, but not its files, such as ~/.aws/config)"
_AGAIN_S = 3.0
"""Seconds before an actor is started again on a node that has lost one."""

_ATTEMPTS = 5
"""Number of consecutive actors that a node may lose, without a finished unit, before it is given up."""

_SILENT_S = 10.0
"""Seconds after which an actor is reported that has not started."""

_SEEN_S = 10.0
"""Seconds after which a node that does not see the workspace is refused."""

_PATIENCE_S = 900.0
"""Seconds to wait for a node if there is none: it takes minutes until a cloud has started one."""

_TOKEN_REFUSED = "InvalidAuthToken"  # noqa: S105 -- part of a message
"""Part of the text of an error, since Ray hides the error's type in another error."""

_OF_NODE = ("CUDA_VISIBLE_DEVICES", "RAY_", "TMPDIR")
"""Prefixes of environment variables that workers inherit from their node. All others come from this process."""


class Place(NamedTuple):
    """A place for an actor: a node, and a number among the actors of the node."""

    node: str
    slot: int


class Share(NamedTuple):
    """The share of a node's resources for an actor."""

    workers: int
    cores: int


def share_node(room: ClusterSettings, cores: int, memory: int | None, gpus: float) -> list[Share]:
    """Share the resources of a node among its actors.

    There is one actor, or as many as GPUs, or fractions of GPUs, allow. Actors without a worker are left out.

    Parameters
    ----------
    cores : int
    memory : int or None
        Bytes; None if unknown.
    gpus : float
    """
    fitting = cores if memory is None else min(cores, memory // room.worker_bytes)
    actors = int(gpus / room.gpus) if room.gpus else 1
    workers = room.per_node or (actors if room.one_per_gpu else max(1, fitting))
    shares = [(workers + number) // actors for number in range(actors) if cores]
    return [Share(count, max(1, min(cores // actors, count))) for count in shares if count]


def limit_shares(shares: Mapping[Place, Share], left: int | None) -> dict[Place, Share]:
    """Spread at most `left` workers (None for no limit) over the actors. Actors without a worker are left out."""
    counts = dict.fromkeys(shares, 0)
    left = sum(share.workers for share in shares.values()) if left is None else left
    while left and (open_ := [place for place, share in shares.items() if counts[place] < share.workers]):
        for place in open_[:left]:
            counts[place] += 1
        left -= len(open_[:left])
    return {place: Share(n, min(n, shares[place].cores)) for place, n in counts.items() if n}


class RayEngine:
    """Runs units on the nodes of a Ray cluster.

    Raises
    ------
    BuildError
        If there is no cluster at the address.
    """

    def __init__(self, workspace: Workspace, _open_work: Callable[[], Work], team: WorkerSettings) -> None:
        assert team.cluster is not None
        self._workspace = workspace
        self._team = team
        self._room = team.cluster
        self._answers = AnswerQueue()
        self._events: deque[Event] = deque()
        self._actors: dict[Place, _Actor] = {}
        self._attempts: Counter[Place] = Counter()
        self._due_s: dict[Place, float] = {}
        self._refused: dict[Place, str] = {}
        self._losses: Counter[Unit] = Counter()
        self._looked_s = -_LOOK_S
        self._alone_s = time.monotonic()
        self._connected = not ray.is_initialized()
        if self._connected:
            _connect(self._room.address)

    def idle(self) -> int:
        """Return the number of workers without a unit."""
        return sum(actor.idle for actor in self._actors.values())

    def start(self, unit: Unit, verdicts: Verdicts, fresh: bool, *, alone: bool = False) -> None:
        """Send a unit to the node with the most idle workers. With `alone`, no other node has a unit."""
        actor = max(self._actors.values(), key=lambda actor: actor.idle)
        actor.running.add(unit)
        actor.outbox.append((unit, dict(verdicts), fresh, alone))

    def wait(self) -> Event:
        """Return the next event."""
        until_s = time.monotonic() + TICK_S
        while not self._events:
            self._look_for_nodes()
            for actor in self._actors.values():
                actor.flush()
            try:
                actor, answer = self._answers.get(timeout=max(0.0, until_s - time.monotonic()))
            except queue.Empty:
                return Event("tick", frames=sum(actor.frames for actor in self._actors.values()))
            self._take(actor, answer)
        return self._events.popleft()

    def describe(self, units: int) -> str:
        """Return where this many units run."""
        return "on a Ray cluster"

    def close(self) -> None:
        """End all workers and actors, and disconnect from the cluster."""
        if ends := [actor.handle.close.remote() for actor in self._actors.values()]:
            ray.wait(ends, num_returns=len(ends), timeout=_END_S)
        for actor in self._actors.values():
            actor.kill()
        self._actors.clear()
        if self._connected:
            ray.shutdown()

    def _look_for_nodes(self) -> None:
        """Start actors on nodes without one, and report when there is no node to work on."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        found = {place: share for node in ray.nodes() for place, share in self._places(node).items()}
        new = {
            place: share
            for place, share in found.items()
            if place not in self._actors and place not in self._refused and self._due_s.get(place, 0.0) <= now_s
        }
        in_all, taken = self._room.in_all, sum(actor.share.workers for actor in self._actors.values())
        for place, share in limit_shares(new, None if in_all is None else max(0, in_all - taken)).items():
            self._actors[place] = _Actor(place, share, self._workspace, self._team, self._answers.put)
            self._actors[place].ask()
        for actor in self._actors.values():
            if actor.is_late(now_s):
                self._note(f"{actor} have not started yet: they may wait for resources that others use")
        self._look_for_end(now_s, found)

    def _look_for_end(self, now_s: float, found: Mapping[Place, Share]) -> None:
        """Give up if every node has been given up, or if there has been none for a long time."""
        if any(place not in self._refused for place in found):
            self._alone_s = now_s
        elif found:
            why = next(why for place, why in self._refused.items() if place in found)
            self._events.append(Event("failed", message=f"no node can do the work: {why}"))
        elif now_s - self._alone_s > _PATIENCE_S:
            self._events.append(Event("failed", message=f"no node has joined the Ray cluster for {_PATIENCE_S:g} s"))
        elif self._alone_s + _LOOK_S <= now_s < self._alone_s + 2 * _LOOK_S:
            what = "a GPU and a core" if self._room.gpus else "a core"
            self._note(f"no node of the Ray cluster has {what}: waiting up to {_PATIENCE_S:g} s for one to join")

    def _places(self, node: Mapping[str, Any]) -> dict[Place, Share]:
        """Return the places for actors on a node."""
        has = node["Resources"]
        if not node["Alive"]:
            return {}
        memory = has.get("memory")
        shares = share_node(
            self._room, int(has.get("CPU", 0)), None if memory is None else int(memory), has.get("GPU", 0)
        )
        name = f"{node['NodeManagerAddress']} {node['NodeID']}"
        return {Place(name, slot): share for slot, share in enumerate(shares)}

    def _take(self, actor: "_Actor", answer: Any) -> None:
        """Take an actor's answer. Ignore those of actors that were lost."""
        if actor is not self._actors.get(actor.place):
            return
        try:
            actor.begun, events, actor.frames = answer.result()
        except ray.exceptions.RayError as error:
            self._lose(actor, error)
            return
        for event in events:
            if event.kind == "failed" and event.unit is None:
                self._refuse(actor, event.message)
                return
            if event.unit is not None and event.kind not in ("items", "failed"):
                actor.running.discard(event.unit)
            if event.kind == "done":
                self._attempts[actor.place] = 0
            if event.kind == "failed":
                event = replace(event, message=f"{event.message} (on {actor.place.node.partition(' ')[0]})")
            self._events.append(event)
        actor.ask()

    def _lose(self, actor: "_Actor", error: Exception) -> None:
        """Have the units of a lost actor run again. A unit that is lost again and again is treated like one that kills."""
        place = actor.place
        self._drop(actor)
        self._attempts[place] += 1
        self._due_s[place] = time.monotonic() + _AGAIN_S
        follows = "their work is repeated"
        if self._attempts[place] >= _ATTEMPTS:
            self._refused[place] = f"{actor} were lost {_ATTEMPTS} times ({_last_line(error)})"
            follows = "other nodes continue their work"
        self._note(f"{actor} were lost ({_last_line(error)}): {follows}")
        for unit in actor.running:
            self._losses[unit] += 1
            kind: Any = "again" if self._losses[unit] == 1 else "died"
            self._events.append(Event(kind, unit, message=f"{actor} were lost"))

    def _refuse(self, actor: "_Actor", why: str) -> None:
        """Give up a place whose workers cannot do the work, for example because other libraries are installed."""
        self._drop(actor)
        self._refused[actor.place] = why
        self._note(f"{actor} cannot do the work: {why}")
        self._events.extend(Event("again", unit) for unit in actor.running)

    def _drop(self, actor: "_Actor") -> None:
        del self._actors[actor.place]
        actor.kill()

    def _note(self, text: str) -> None:
        self._events.append(Event("note", message=text))


class _Actor:
    """An actor, as this process knows it.

    Attributes
    ----------
    handle : ray.actor.ActorHandle
    running : set of Unit
    outbox : list
        Units that are to be sent.
    begun : bool
        Whether the actor has answered. It receives no units before.
    frames : int
        See `Event`.
    """

    def __init__(
        self,
        place: Place,
        share: Share,
        workspace: Workspace,
        team: WorkerSettings,
        put: Callable[[tuple[Any, Any]], None],
    ) -> None:
        assert team.cluster is not None
        self.place = place
        self.share = share
        self.running: set[Unit] = set()
        self.outbox: list[tuple[Any, ...]] = []
        self.begun = False
        self.frames = 0
        self._put = put
        self._began_s: float | None = time.monotonic()
        environment = inherited_environment()
        ahead = team.shares_detector or share.cores >= 2 * share.workers
        own = replace(team, workers=share.workers, decodes_ahead=ahead, cluster=None)
        node = place.node.partition(" ")[2]
        self.handle = _WORKERS.options(
            num_cpus=share.cores,
            num_gpus=team.cluster.gpus,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=3,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            runtime_env={"env_vars": {"PYTHONPATH": environment["PYTHONPATH"]}},
        ).remote(_place_of(workspace), workspace.key, own, environment)

    def __str__(self) -> str:
        return f"the {counted(self.share.workers, 'worker')} on node {self.place.node.partition(' ')[0]}"

    @property
    def idle(self) -> int:
        """Number of workers without a unit."""
        return self.share.workers - len(self.running) if self.begun else 0

    def ask(self) -> None:
        """Ask for events. The answer is put into the engine's queue."""
        future = self.handle.take.remote().future()
        future.add_done_callback(lambda done: self._put((self, done)))

    def flush(self) -> None:
        """Send the units of the outbox."""
        if self.outbox:
            self.handle.start.remote(self.outbox)
            self.outbox = []

    def is_late(self, now_s: float) -> bool:
        """Return once whether the actor has not started for a while."""
        if self._began_s is None or self.begun or now_s - self._began_s < _SILENT_S:
            return False
        self._began_s = None
        return True

    def kill(self) -> None:
        """End the actor at once. Its workers end with it."""
        with suppress(ray.exceptions.RayError):
            ray.kill(self.handle, no_restart=True)


class NodeWorkers:
    """Actor that runs units with the processes engine of its node. A thread of its own drives the engine.

    Parameters
    ----------
    place : str or tuple of str
        Root of a workspace that all nodes see, or the URLs of one in a store (`packer.workspace.remote.RemoteFiles`).
    key : str
        See `packer.workspace.Workspace`.
    team : WorkerSettings
    environment : mapping
        Environment of the coordinating process.
    """

    def __init__(
        self, place: str | tuple[str, str], key: str, team: WorkerSettings, environment: Mapping[str, str]
    ) -> None:
        os.environ.update((name, value) for name, value in environment.items() if not name.startswith(_OF_NODE))
        sys.path[:] = environment["PYTHONPATH"].split(os.pathsep)  # Ray's own would hide libraries from the workers
        self._scratch = TemporaryFiles()
        self._place, self._key, self._team = place, key, team
        self._owner = ray.get_runtime_context().get_actor_id()[:16]
        self._units: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._events: list[Event] = []
        self._frames, self._begun, self._over = 0, False, False
        self._engine: ProcessesEngine | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def start(self, units: Iterable[tuple[Any, ...]]) -> None:
        """Queue units for the engine, each with the other arguments of its `start`."""
        for unit in units:
            self._units.put(unit)
        self._wake()

    def take(self) -> tuple[bool, list[Event], int]:
        """Wait for a while for new events.

        Returns
        -------
        begun : bool
            Whether the node can do the work, as far as is known.
        events : list of Event
        frames : int
            See `Event`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._events, TICK_S)
            events, self._events = self._events, []
            return self._begun, events, self._frames

    def close(self) -> None:
        """End the workers."""
        self._over = True
        self._wake()
        self._thread.join(_END_S)

    def _wake(self) -> None:
        if self._engine is not None:
            self._engine.wake()

    def _open(self) -> Workspace:
        if isinstance(self._place, str):
            space = Workspace(Path(self._place), self._key)
        else:
            root = self._scratch.path / BUILD_FOLDER
            space = Workspace(root, self._key, remote=open_remote(*self._place))
        return space.of_owner(self._owner)

    def _run(self) -> None:
        try:
            space = self._open()
            _check_node(space)
            self._engine = engine = ProcessesEngine(space, None, self._team)
            self._begun = True
            while not self._over:
                while not self._units.empty():
                    unit, verdicts, fresh, alone = self._units.get()
                    engine.start(unit, verdicts, fresh, alone=alone)
                event = engine.wait()
                if event.kind == "tick":
                    self._frames = event.frames
                else:
                    self._report(event)
        except Exception as error:  # otherwise the coordinating process would wait for ever
            what = "" if isinstance(error, ShardspecError | OSError) else f"{type(error).__name__}: "
            advice = _SETTINGS_ADVICE if isinstance(error, UsageError) else ""
            self._report(Event("failed", message=f"{what}{error}{advice}"))
        finally:
            if self._engine is not None:
                self._engine.close()
            self._scratch.close()

    def _report(self, event: Event) -> None:
        with self._changed:
            self._events.append(event)
            self._changed.notify()


_WORKERS = ray.remote(NodeWorkers)


def _check_node(space: Workspace) -> None:
    """Check that this node sees workspace and input, and can make the bytes of the plan.

    Raises
    ------
    BuildError
        If it does not.
    """
    if space.remote is None:
        try:
            wait_for(space.root, _SEEN_S)
        except BuildError as error:
            raise BuildError(
                place=f"host {host()}",
                expected=f"the folder {space.root}, in which the build works",
                found="none",
                hint="choose a folder on a disk that all nodes mount, or a URL",
            ) from error
    else:
        for path in (space.items, space.plan):
            space.remote.fetch(space.root, path)
        space.parts.mkdir(parents=True, exist_ok=True)
    space, document = enter_plan(space)
    tasks = Tasks.from_json(document.get("tasks", []))
    if space.remote is not None:
        space.create_results(len(tasks))
    paths = [one["path"] for one in document.get("rows", {}).get("inputs", ())]
    for task in () if paths else tasks[:1]:
        paths += [item.path for item in islice(read_items(space.items, *task), 1) if item.path]
    for path in paths:
        if not is_url(path) and not os.path.exists(path):  # noqa: PTH110 -- may be any text
            raise BuildError(
                place=f"host {host()}",
                expected=f"the input, which has {shorten(path, LONG)}",
                found="no such file",
                hint="mount the input on all nodes at the same path, read it from a URL, or use another engine",
            )
    space.logs.mkdir(parents=True, exist_ok=True)


def _place_of(workspace: Workspace) -> str | tuple[str, str]:
    return str(workspace.root) if workspace.remote is None else workspace.remote.urls


def _last_line(error: Exception) -> str:
    """Return the end of an error's text, where Ray names the cause."""
    return shorten(str(error).strip().rpartition("\n")[2].strip(), LONG)


def _connect(address: str | None) -> None:
    """Connect this process to a cluster.

    Raises
    ------
    BuildError
        If there is none.
    """
    check_reachable(address)
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        raise BuildError(_describe_failure(error)) from None


def _describe_failure(error: Exception) -> str:
    """Return the reason why this process could not connect, and what to do."""
    if _TOKEN_REFUSED in f"{error} {error.__cause__}":
        return (
            "the Ray cluster asks for a token: set RAY_AUTH_MODE=token, and set RAY_AUTH_TOKEN unless "
            "~/.ray/auth_token holds the cluster's token"
        )
    return f"expected a Ray cluster, found none ({shorten(str(error))}): begin with `ray start --head`"
