"""The workers of a job, which are reused from one stage to the next."""

from collections.abc import Callable

from packer.jobs.engines.base import Engine, Event
from packer.jobs.plan import JobPlan, Unit
from packer.jobs.schedule import Schedule, describe_lost
from packer.recipe.engines import ENGINES, Team
from packer.recipe.options import BuildOptions
from packer.recipe.resources import count_workers, has_core_to_spare
from packer.workspace import Workspace
from shardspec.registry import resolve

_WITH_MODELS = "faces"
"""The preset whose workers hold models. They end after a stage, so that the next one can use their memory."""


class Workers:
    """The workers of one job, started when there is work for them.

    Parameters
    ----------
    on_message : callable
        Called with lines for the user.
    check : callable
        Called first at every event; raises if the work must stop.
    """

    def __init__(
        self,
        plan: JobPlan,
        space: Workspace,
        options: BuildOptions,
        on_message: Callable[[str], None],
        check: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._space = space
        self._options = options
        self._on_message = on_message
        self._check = check
        self._engine: Engine | None = None
        self._size = 0

    def run(
        self,
        units: list[Unit],
        on_event: Callable[[Event], None],
        *,
        shares_detector: bool = False,
        announced: str = "",
    ) -> None:
        """Run units until all are done. A lost worker is reported in one line.

        The workers of one stage are reused in the next, unless they hold models or more workers are needed.
        """
        if not units:
            return
        engine = self._engine_for(len(units), shares_detector)

        def report(event: Event) -> None:
            self._check()
            if lost := describe_lost(event, self._space, self._plan.tasks):
                self._on_message(lost)
            on_event(event)

        if announced:
            self._on_message(f"{announced} {engine.describe(len(units))}")
        limit_s = self._options.item_timeout if ENGINES[self._options.engine].limits_items else None
        try:
            Schedule(engine, self._space, self._plan.tasks, report, limit_s).run(units)
        except BaseException:
            self.close()
            raise
        if self._plan.settings.preset == _WITH_MODELS:
            self.close()

    def close(self) -> None:
        """End the workers."""
        if self._engine is not None:
            self._engine.close()
        self._engine = None

    def _engine_for(self, units: int, shares_detector: bool) -> Engine:
        """Return the open engine if it has enough workers, or else a new one."""
        workers = self._count_workers(units)
        if self._engine is None or self._size < workers:
            self.close()
            self._engine, self._size = self._open_engine(units, workers, shares_detector), workers
        return self._engine

    def _count_workers(self, units: int) -> int:
        entry, requested = ENGINES[self._options.engine], self._options.workers
        return count_workers(requested, self._plan.settings.preset, units) if entry.many_workers else 1

    def _open_engine(self, units: int, workers: int, shares_detector: bool) -> Engine:
        options = self._options
        # A worker that waits for the detecting process has nothing else to do meanwhile.
        ahead = shares_detector or has_core_to_spare(min(workers, units))
        team = Team(
            workers,
            options.item_timeout,
            ahead,
            shares_detector,
        )
        engine: Engine = resolve("engine", options.engine, ENGINES)(
            self._space, lambda: self._plan.open_work(self._space), team
        )
        return engine
