"""The cut as far as it is known: parts are taken in one after another, also while others are still being made."""

from array import array
from collections.abc import Callable, Iterable, Sequence

from packer.builds.parts.opened import PartsInOrder
from packer.builds.parts.part import Columns, Part
from packer.builds.parts.rows import ColumnCount, choose_columns, settled_reports
from packer.builds.parts.schema import SchemaSettler
from packer.builds.parts.taken import TakenRows
from packer.builds.reports import Known, ReportWriter
from packer.jobs.plan import Task
from packer.sources.item import AlikeReports, ItemReport
from packer.workspace import Workspace

_AT_A_TIME = 4
"""Parts taken in between two events of workers, so that those need not wait: more than come, and no more than a moment."""


class Draft:
    """What is known of all parts after one look at each, if these are the columns of the rows that count.

    Parameters
    ----------
    settler : SchemaSettler
    reports : ReportWriter
    known : callable
        By what each item of a task is known again.
    columns : mapping of str to ColumnSpec, optional
        By default, the most common ones of the first part that has any.

    Attributes
    ----------
    rows : array of int
        The number of rows that count, for each task.
    taken : TakenRows
    failed : ItemReport or None
        Of the first item that yielded no sample.
    """

    def __init__(
        self,
        settler: SchemaSettler,
        reports: ReportWriter,
        known: Callable[[Task], Iterable[Known | None]],
        columns: Columns | None = None,
    ) -> None:
        self.settler = settler
        self.reports = reports
        self._known = known
        self.columns: Columns = {}
        self.rows = array("q")
        self.taken = TakenRows({})
        self.failed: ItemReport | None = None
        if columns is not None:
            self.begin(columns)

    def begin(self, columns: Columns) -> None:
        """Say which columns the rows have that count."""
        self.columns, self.taken = columns, TakenRows(columns)
        self.settler.begin(columns)

    def add(self, part: Part, task: Task) -> None:
        """Take in the part of a task."""
        if not self.columns and part.groups:
            self.begin(choose_columns([part]))
        self.reports.add(map(self._note, settled_reports(part, self.columns)), self._known(task))
        self.rows.append(self.settler.add(part))
        rows = part.group(self.columns)
        if rows is not None:
            self.taken.add(rows)

    def _note(self, found: AlikeReports) -> AlikeReports:
        if self.failed is None and not found.report.samples and not found.report.empty:
            self.failed = found.report
        return found


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
    """

    def __init__(
        self,
        workspace: Workspace,
        tasks: Sequence[Task],
        draft: Callable[[Columns | None], Draft],
        fits: Callable[[Columns], bool] | None = None,
    ) -> None:
        self._workspace = workspace
        self._tasks = tasks
        self._make = draft
        self._fits = fits
        self._count = ColumnCount()
        self._parts = PartsInOrder(workspace, len(tasks))
        self._draft = draft(None)

    def look(self, made: Iterable[int] = ()) -> None:
        """Take in some of what is there, and note the tasks whose parts were made meanwhile."""
        for task in made:
            self._parts.add(task)
        for part in self._parts.ready(_AT_A_TIME):
            self._add(part)

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
