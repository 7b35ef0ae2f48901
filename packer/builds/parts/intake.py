"""The cut as far as it is known: parts are taken in one after another, also while others are still being made."""

from collections.abc import Callable, Iterable, Sequence

from packer.assembly.plan import ShardPlan
from packer.builds.parts.draft import Draft
from packer.builds.parts.early import EarlyCut
from packer.builds.parts.opened import PartsInOrder
from packer.builds.parts.part import Columns, Part
from packer.builds.parts.rows import ColumnCount
from packer.jobs.plan import Task
from packer.workspace import Workspace

_AT_A_TIME = 4
"""Parts taken in between two events of workers, so that those need not wait: more than come, and no more than a moment."""


class Intake:
    """Takes in the parts of a plan in task order, as soon as they are made; after the last task, little is left.

    Which columns count is known when all parts are. Where they are others than was assumed, the parts are read again.

    Parameters
    ----------
    workspace : Workspace
    tasks : sequence of Task
    draft : callable
        Makes an empty draft, for given columns or those that it assumes itself.
    fits : callable, optional
        See `ColumnCount.choose`.
    early : EarlyCut, optional
    """

    def __init__(
        self,
        workspace: Workspace,
        tasks: Sequence[Task],
        draft: Callable[[Columns | None], Draft],
        fits: Callable[[Columns], bool] | None = None,
        early: EarlyCut | None = None,
    ) -> None:
        self._workspace = workspace
        self._tasks = tasks
        self._make = draft
        self._fits = fits
        self._count = ColumnCount()
        self._parts = PartsInOrder(workspace, len(tasks))
        self._draft = draft(None)
        self._early = early

    def look(self, made: Iterable[int] = ()) -> list[ShardPlan]:
        """Note the tasks whose parts were made meanwhile, and take in some; return the shards that are whole now."""
        for task in made:
            self._parts.add(task)
        for part in self._parts.ready(_AT_A_TIME):
            self._add(part)
        return [] if self._early is None else list(self._early.look(self._draft))

    def finish(self) -> Draft:
        """Take in the rest, once every task is done; the reports are closed."""
        for part in self._parts.rest():
            self._add(part)
        columns = self._count.choose(self._fits)
        if self._draft.columns != columns:
            self.close()
            self._draft = self._make(columns)
            for part, task in zip(PartsInOrder(self._workspace, len(self._tasks)).rest(), self._tasks, strict=True):
                self._draft.add(part, task)
        self._draft.reports.finish()
        return self._draft

    def close(self) -> None:
        """Close the files."""
        self._parts.close()
        self._draft.reports.close()

    def _add(self, part: Part) -> None:
        self._count.add(part)
        self._draft.add(part, self._tasks[len(self._draft.rows)])
