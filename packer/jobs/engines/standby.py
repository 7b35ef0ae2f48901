"""The workers of a build that are started before it is planned, or even before the rest of the command is imported."""

from pathlib import Path
from types import TracebackType
from typing import Self

from packer.jobs.child import StandbyWorkers
from packer.jobs.engines.worker import worker_command
from packer.recipe import Recipe
from packer.recipe.options import BuildOptions
from packer.recipe.resources import count_workers
from packer.steps.chain import STEPS
from packer.steps.plain import keeps_pictures
from packer.workspace import Workspace
from shardspec.layout import BUILD_FOLDER, Layout

_OWN_WORKERS = "processes"
"""The engine whose workers may be started before there is a plan."""

_WITH_MODELS = frozenset({"detect", "faces"})
"""The steps whose workers load models, or share a process that does."""

_WORK, _OF_PIXELS = "packer.builds.work", ("packer.steps.scale", "packer.vision.encode")
"""Modules of all workers, and of those that make pictures anew."""

_MOST = 2
"""So many are started at most: more would only wait for a core that the plan needs."""


class Standby:
    """Starts the first worker of a build at once, and the second when there is more than one task.

    Use as a context manager, which ends those that nobody took.

    Attributes
    ----------
    workers : StandbyWorkers
    """

    def __init__(self) -> None:
        self.workers = StandbyWorkers()
        self._begun = False
        self._imports: list[str] = []
        self._waiting: list[list[str]] = []

    def begin(self, out: Path, recipe: Recipe, options: BuildOptions) -> None:
        """Start the first worker, unless it was.

        Parameters
        ----------
        out : Path
            The dataset's folder, absolute.
        recipe : Recipe
        options : BuildOptions
        """
        if not self._begun:
            self._begun = True
            self._imports, self._waiting = _imports(recipe), _commands(out, recipe, options)
            self._start(1)

    def count(self, tasks: int) -> None:
        """Note that there are so many tasks at least."""
        if tasks > 1:
            self._start(_MOST)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.workers.__exit__(kind, error, trace)

    def _start(self, count: int) -> None:
        commands, self._waiting = self._waiting[:count], self._waiting[count:]
        if commands:
            self.workers.start(commands, self._imports)


def _commands(out: Path, recipe: Recipe, options: BuildOptions) -> list[list[str]]:
    """The commands of the workers that a new build of pictures needs as soon as it is planned.

    Others hold models, or are started by an engine of many hosts; and a dataset may turn out to be finished.
    """
    if (
        options.engine != _OWN_WORKERS
        or not _WITH_MODELS.isdisjoint(step.use for step in recipe.chain)
        or options.grows
        or Layout(out).manifest.exists()
    ):
        return []
    workers = min(count_workers(options.workers, recipe.preset, _MOST), _MOST)
    return [worker_command(Workspace(out / BUILD_FOLDER), place) for place in range(workers)]


def _imports(recipe: Recipe) -> list[str]:
    """The modules that nearly every item of a recipe needs."""
    own = [STEPS[step.use].target.partition(":")[0] for step in recipe.chain if step.use in STEPS]
    return [_WORK, *own, *([] if keeps_pictures(recipe) else _OF_PIXELS)]
