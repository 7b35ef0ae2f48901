"""Which workers of a build are started before it is planned."""

from pathlib import Path

from packer.jobs.engines.standby_workers import StandbyWorkers
from packer.recipe import Recipe
from packer.recipe.options import BuildOptions
from packer.recipe.resources import count_workers
from packer.steps.chain import STEPS
from packer.steps.plain import keeps_pictures
from shardspec.layout import Layout

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

    `close` ends those that nobody took.

    Parameters
    ----------
    workers : StandbyWorkers, optional
        One worker may have been started already.
    """

    def __init__(self, workers: StandbyWorkers | None = None) -> None:
        self.workers = workers or StandbyWorkers()
        self._begun = False
        self._most = 0

    def begin(self, out: Path, recipe: Recipe, options: BuildOptions) -> None:
        """Start the first worker, unless it was; end it if this build has no use for it.

        Parameters
        ----------
        out : Path
            The dataset's folder, absolute.
        recipe : Recipe
        options : BuildOptions
        """
        if not self._begun:
            self._begun = True
            self._most = _most(out, recipe, options)
            if self._most:
                self.workers.have_imported(_imports(recipe))
                self.workers.start(1)
            else:
                self.close()

    def count(self, tasks: int) -> None:
        """Note that there are so many tasks at least."""
        if tasks > 1 and self._most:
            self.workers.start(self._most)

    def close(self) -> None:
        """End those that nobody took."""
        self.workers.close()


def _most(out: Path, recipe: Recipe, options: BuildOptions) -> int:
    """The number of workers that a new build of pictures needs as soon as it is planned, at most.

    Others hold models, or are started by an engine of many hosts; and a dataset may turn out to be finished.
    """
    if (
        options.engine != _OWN_WORKERS
        or not _WITH_MODELS.isdisjoint(step.use for step in recipe.chain)
        or options.grows
        or Layout(out).manifest.exists()
    ):
        return 0
    return min(count_workers(options.workers, recipe.preset, _MOST), _MOST)


def _imports(recipe: Recipe) -> list[str]:
    """The modules that nearly every item of a recipe needs."""
    own = [STEPS[step.use].target.partition(":")[0] for step in recipe.chain if step.use in STEPS]
    return [_WORK, *own, *([] if keeps_pictures(recipe) else _OF_PIXELS)]
