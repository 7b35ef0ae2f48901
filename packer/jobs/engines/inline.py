"""The inline engine: units run in this process, one at a time."""

from collections import deque
from collections.abc import Callable

from packer.jobs.engines.base import Ended, Event
from packer.jobs.plan import Unit, Verdicts, Work
from packer.jobs.process import one_thread
from packer.recipe.engines import WorkerSettings
from packer.workspace import Workspace
from packer.workspace.machines import check_machine
from shardspec.errors import ShardspecError


class InlineEngine:
    """Runs each unit in `wait`. Items have no time limit, because nothing could end them."""

    def __init__(self, workspace: Workspace, open_work: Callable[[], Work], _team: WorkerSettings) -> None:
        if workspace.plan.exists():
            check_machine(workspace)
        self._work = open_work()
        self._started: deque[tuple[Unit, Verdicts]] = deque()
        self._events: deque[Event] = deque()

    def idle(self) -> int:
        """Return 1, or 0 if a unit waits to run."""
        return 0 if self._started or self._events else 1

    def start(self, unit: Unit, verdicts: Verdicts, fresh: bool, *, alone: bool = False) -> None:
        """Queue the unit for `wait`."""
        self._started.append((unit, verdicts))

    def wait(self) -> Event:
        """Run the queued unit, and return its events one by one, those of its items first."""
        if not self._events and self._started:
            unit, verdicts = self._started.popleft()

            def progress(what: str, item: int, samples: int, reason: str) -> None:
                if what == "end":
                    self._events.append(Event("items", unit, ends=(Ended(item, samples, reason),)))

            try:
                if unit.has_items:
                    self._work.prepare()  # only loaded libraries can be limited to one thread
                with one_thread():
                    result = self._work.run(unit, verdicts, progress)
            except MemoryError as error:  # the item is not rejected: the memory is that of the whole process
                what = str(error) or "memory ran out"
                text = f"{what}: run the same command again to resume, with more memory to spare"
                self._events.append(Event("failed", unit, message=text))
            except ShardspecError as error:
                self._events.append(Event("failed", unit, message=str(error)))
            else:
                self._events.append(Event("done", unit, result=result))
        return self._events.popleft() if self._events else Event("tick")

    def describe(self, units: int) -> str:
        """Return where the units run."""
        return "in this process"

    def close(self) -> None:
        """Close the work."""
        self._work.close()
