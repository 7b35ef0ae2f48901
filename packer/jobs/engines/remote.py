"""The engines over several hosts: the same workers and the same messages, started by a launcher."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice, zip_longest
from typing import Any

from packer.jobs.child import Answers
from packer.jobs.engines.base import Event
from packer.jobs.engines.processes import ProcessesEngine, in_words
from packer.jobs.engines.worker import Worker
from packer.jobs.launchers.base import Launcher, Link, Node, Probe
from packer.jobs.plan import Unit, Verdicts
from packer.recipe.engines import Team
from packer.workspace import Workspace
from packer.workspace.machines import OWNER, PLAN
from shardspec.errors import BuildError
from shardspec.wording import counted, list_some

_START_LIMIT_S = 300.0
"""A worker that is not ready by then is given up, and its node is asked whether it is well."""

_SETTLE_S = 3.0
"""If all workers of a node die at once, it may be about to go down: it is asked a second time after so long."""

_ASK_AGAIN_S = 10.0
"""How often a lost node is asked whether it is back."""


class _RemoteWorker(Worker):
    """A worker on another host. The thread that reads its messages sets all that they tell."""

    def __init__(self, place: int, serial: int, started_s: float, answers: Answers) -> None:
        super().__init__(place, serial)
        self.ready = False
        self.started_s = started_s
        self.link: Link
        self.death: str | None = None
        self._at: tuple[int | None, int] = (None, 0)
        self._answers = answers

    def take(self, message: dict[str, Any]) -> None:
        """Note a message, or pass it on to the engine."""
        if message["event"] == "at":
            self._at = message["item"], message["frames"]
        elif message["event"] == "ended":
            self._at, self.death = (message["item"], 0), message["message"]
        else:
            self._answers.put((self, message))

    @property
    def item(self) -> int | None:
        """The item that was under way when the host last told, after its report of the death, exactly."""
        return self._at[0]

    @property
    def frames(self) -> int:
        """See `Worker`."""
        return self._at[1]

    def send(self, request: Mapping[str, Any]) -> None:
        """See `Worker`."""
        self.link.send(request)

    def end(self) -> None:
        """See `Worker`."""
        self.link.end()

    def has_ended(self) -> bool:
        """See `Worker`."""
        return self.link.has_ended()

    def describe_death(self) -> str:
        """See `Worker`."""
        return self.link.describe_end() if self.death is None else self.death


class _Health:
    """What is known about a node: it is asked whenever a worker on it has died, and used again once it has answered."""

    def __init__(self, node: Node, lost: bool) -> None:
        self.node = node
        self.lost = lost
        self.dead: list[tuple[_RemoteWorker, str]] = []
        self.probe: Probe | None = None
        self.ask_at_s: float | None = _ASK_AGAIN_S if self.lost else None
        self.asked_twice = False

    @property
    def is_well(self) -> bool:
        return not self.lost and not self.dead


class RemoteEngine(ProcessesEngine):
    """Runs units in workers on several hosts.

    When a worker dies, its node is asked first whether it is well. If it is, the death counts as on one host: by the
    report of the process that hosted the worker, or without one as a death while no item was known to be under way. If
    it is not, the node is lost: everything that ran there runs again elsewhere, and nothing is blamed.

    Parameters
    ----------
    workspace : Workspace
    launcher : Launcher
    team : Team
    """

    def __init__(self, workspace: Workspace, launcher: Launcher, team: Team) -> None:
        self._launcher = launcher
        self._health = [_Health(node, not node.is_well or node.name in team.lost) for node in launcher.nodes]
        if all(health.lost for health in self._health):
            launcher.close()
            raise BuildError(f"no node answers ({list_some([node.name for node in launcher.nodes])}): {launcher.again}")
        self._node_of = list(islice(_spread(sorted(self._health, key=lambda health: health.lost)), team.workers))
        self._postponed: deque[tuple[Unit, Verdicts, bool, bool]] = deque()
        super().__init__(workspace, None, replace(team, workers=len(self._node_of)))

    def describe(self, units: int) -> str:
        """Where this many units are done, in words."""
        used = self._node_of[:units]
        return f"{in_words(len(used))} on {counted(len({id(health) for health in used}), 'node')}"

    def start(self, unit: Unit, verdicts: Verdicts, fresh: bool, *, alone: bool = False) -> None:
        """See `Engine`. While no node is known to be well, the unit waits."""
        if self._count_free():
            super().start(unit, verdicts, fresh, alone=alone)
        else:
            self._postponed.append((unit, verdicts, fresh, alone))

    def close(self) -> None:
        """See `Engine`."""
        for health in self._health:
            if health.probe is not None:
                health.probe.close()
        super().close()
        self._launcher.close()

    def _end_workers(self) -> None:
        """End all workers, all at once."""
        for worker in self._workers:
            if isinstance(worker, _RemoteWorker):
                worker.link.ask_to_end()
        super()._end_workers()

    def _can_be_used(self, place: int) -> bool:
        return self._node_of[place].is_well

    def _start_worker(self, place: int) -> Worker:
        node = self._node_of[place].node
        worker = _RemoteWorker(place, next(self._serials), self._clock.now_s(), self._answers)
        worker.log = self._workspace.logs / f"worker-{place:03d}.log"
        ahead = self._team.decodes_ahead or node.cores >= 2 * node.places
        command = ["packer.jobs.worker", str(self._workspace.root), "{place}", str(int(ahead))]
        variables = {PLAN: self._workspace.key, OWNER: self._workspace.owner}
        worker.link = self._launcher.start(node, command, worker.log.stem, variables, worker.take)
        return worker

    def _bury(self, worker: Worker) -> None:
        """Keep a death until it is known whether the worker's node is well."""
        assert isinstance(worker, _RemoteWorker)
        message = worker.describe_death()
        worker.end()
        self._vacate(worker)
        health = self._node_of[worker.place]
        health.dead.append((worker, message))
        if health.probe is None and health.ask_at_s is None:
            health.ask_at_s = self._clock.now_s()

    def _look_around(self) -> None:
        now_s = self._clock.now_s()
        for worker in self._workers:
            if isinstance(worker, _RemoteWorker) and not worker.ready and now_s - worker.started_s > _START_LIMIT_S:
                worker.death = f"the worker was not ready after {_START_LIMIT_S:g} s"
                self._bury(worker)
        for health in self._health:
            self._look_at_node(health, now_s)
        while self._postponed and self._count_free():
            unit, verdicts, fresh, alone = self._postponed.popleft()
            super().start(unit, verdicts, fresh, alone=alone)

    def _look_at_node(self, health: _Health, now_s: float) -> None:
        if health.ask_at_s is not None and now_s >= health.ask_at_s:
            health.ask_at_s, health.probe = None, self._launcher.probe(health.node)
        if health.probe is None or (answered := health.probe.answered()) is None:
            return
        health.probe = None
        self._waiting = None
        if not answered:
            self._lose_node(health)
            health.ask_at_s = now_s + _ASK_AGAIN_S
        elif health.lost:
            health.lost = False
            self._team.lost.discard(health.node.name)
            self._events.append(Event("node", message=f"node {health.node.name} is back"))
        elif not health.asked_twice and len(health.dead) > 1 and not any(self._on(health)):
            health.ask_at_s, health.asked_twice = now_s + _SETTLE_S, True
        else:
            self._judge(health)

    def _judge(self, health: _Health) -> None:
        """Report the deaths on a node that is well."""
        dead, health.dead, health.asked_twice = health.dead, [], False
        for worker, message in dead:
            if not worker.ready and self._failed_start("worker processes do", message, worker):
                return
            item = None if worker.death is None else worker.item
            self._events.append(Event("died", worker.unit, item, message=message))

    def _lose_node(self, health: _Health) -> None:
        """Give back all that ran on a node, and do not use it until it is back."""
        ours = [worker for worker, _ in health.dead]
        for worker in list(self._on(health)):
            worker.link.end(wait=False)
            self._vacate(worker)
            ours.append(worker)
        health.dead, health.asked_twice = [], False
        units = [worker.unit for worker in ours if worker.unit is not None]
        if not health.lost:
            health.lost = True
            self._team.lost.add(health.node.name)
            back = f": what {counted(len(units), 'worker')} did there is done again" if units else ""
            self._events.append(Event("node", message=f"node {health.node.name} is lost{back}"))
        for unit in units:
            self._events.append(Event("again", unit))
        if all(other.lost for other in self._node_of):
            names = list_some(sorted({other.node.name for other in self._node_of}))
            self._events.append(Event("failed", message=f"all nodes are lost ({names}): {self._launcher.again}"))

    def _on(self, health: _Health) -> Iterator[_RemoteWorker]:
        """The workers on a node."""
        for worker in self._workers:
            if isinstance(worker, _RemoteWorker) and self._node_of[worker.place] is health:
                yield worker


def _spread(nodes: list[_Health]) -> Iterator[_Health]:
    """The places of all nodes, in turn, so that few workers are on many nodes."""
    rounds = zip_longest(*([health] * health.node.places for health in nodes))
    return (health for health in chain.from_iterable(rounds) if health is not None)
