"""Summary of a build's parts, read while tasks still run: everything that cutting the rows into shards needs."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

from packer.builds.parts.part import Columns, Part, open_part
from packer.builds.parts.rows import ColumnCount, RowTable, choose_columns, settled_reports
from packer.builds.parts.schema import SchemaSettler
from packer.builds.reports import ReportWriter
from packer.builds.update.base_reports import ItemIdentity
from packer.jobs.plan import Task
from packer.steps.report import AlikeReports, ItemReport
from packer.workspace import Workspace
from packer.workspace.shared_files import is_on_network, map_threaded

_AT_A_TIME = 4
"""Parts read between two events of workers: more than are made meanwhile, and few enough not to keep workers waiting."""


class PartsSummary:
    """Reports, schema, lengths and index values of all parts, given the columns of the rows that count.

    Parameters
    ----------
    settler : SchemaSettler
    reports : ReportWriter
    known : callable
        By what each item of a task is known again.
    columns : mapping of str to ColumnSpec, optional
        By default, the most common ones of the first part that has any.
    rows_of : callable
        Returns, for a task, what returns the columns of an item by its place in the task.

    Attributes
    ----------
    rows : array of int
        The number of rows that count, for each task.
    table : RowTable
    failed : ItemReport or None
        Of the first item that yielded no sample.
    """

    def __init__(
        self,
        settler: SchemaSettler,
        reports: ReportWriter,
        known: Callable[[Task], Iterable[ItemIdentity | None]],
        columns: Columns | None = None,
        rows_of: Callable[[Task], Callable[[int], Mapping[str, Any]]] = lambda _: lambda _: {},
    ) -> None:
        self.settler = settler
        self.reports = reports
        self._known = known
        self._rows_of = rows_of
        self.columns: Columns = {}
        self.rows = array("q")
        self.table = RowTable({})
        self.failed: ItemReport | None = None
        if columns is not None:
            self._set_columns(columns)

    def _set_columns(self, columns: Columns) -> None:
        self.columns, self.table = columns, RowTable(columns)
        self.settler.begin(columns)

    def add(self, part: Part, task: Task) -> None:
        """Add the part of a task."""
        if not self.columns and part.groups:
            self._set_columns(choose_columns([part]))
        self.reports.add(map(self._note, settled_reports(part, self.columns)), self._known(task), self._rows_of(task))
        self.rows.append(self.settler.add(part))
        rows = part.group(self.columns)
        if rows is not None:
            self.table.add(rows)

    def _note(self, found: AlikeReports) -> AlikeReports:
        if self.failed is None and not found.report.samples and not found.report.empty:
            self.failed = found.report
        return found


class PartsReader:
    """Reads the parts of a plan in task order as soon as they are made, so that little is left after the last task.

    The columns that count are known only when all parts are. If they differ from those assumed before, all parts are
    read again.

    Parameters
    ----------
    workspace : Workspace
    tasks : sequence of Task
    make_summary : callable
        Makes an empty summary for given columns, or for None.
    fits : callable, optional
        See `ColumnCount.choose`.
    """

    def __init__(
        self,
        workspace: Workspace,
        tasks: Sequence[Task],
        make_summary: Callable[[Columns | None], PartsSummary],
        fits: Callable[[Columns], bool] | None = None,
    ) -> None:
        self._workspace = workspace
        self._tasks = tasks
        self._make_summary = make_summary
        self._fits = fits
        self._far = is_on_network(workspace.root)
        self._count = ColumnCount()
        self._summary = make_summary(None)
        self._made: set[int] = set()
        self._next = 0

    def read(self, made: Iterable[int] = ()) -> None:
        """Note the tasks whose parts are new, and read some parts."""
        self._made.update(made)
        for part in self._open(takewhile(self._made.__contains__, range(self._next, self._next + _AT_A_TIME))):
            self._made.discard(self._next)
            self._add(part)

    def finish(self) -> PartsSummary:
        """Read the rest, once every task is done, and close the reports."""
        for part in self._open(range(self._next, len(self._tasks))):
            self._add(part)
        columns = self._count.choose(self._fits)
        if self._summary.columns != columns:
            self.close()
            self._summary = self._make_summary(columns)
            for part, task in zip(self._open(range(len(self._tasks))), self._tasks, strict=True):
                self._summary.add(part, task)
        self._summary.reports.finish()
        return self._summary

    def close(self) -> None:
        """Close the files."""
        self._summary.reports.close()

    def _open(self, tasks: Iterable[int]) -> Iterator[Part]:
        opening = partial(open_part, self._workspace, fetched=self._far)
        return map_threaded(opening, tasks) if self._far else map(opening, tasks)

    def _add(self, part: Part) -> None:
        self._count.add(part)
        self._summary.add(part, self._tasks[self._next])
        self._next += 1
