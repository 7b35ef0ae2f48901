"""Summary of all parts, collected in one pass before the rows are cut into shards."""

from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from packer.builds.growing.earlier import Known
from packer.builds.parts.part import Columns, Part
from packer.builds.parts.rows import choose_columns, settled_reports
from packer.builds.parts.schema import SchemaSettler
from packer.builds.parts.taken import TakenRows
from packer.builds.reports import ReportWriter
from packer.jobs.plan import Task
from packer.steps.report import AlikeReports, ItemReport


class Draft:
    """Summary of all parts, given the columns of the rows that count.

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
        rows_of: Callable[[Task], Callable[[int], Mapping[str, Any]]] = lambda _: lambda _: {},
    ) -> None:
        self.settler = settler
        self.reports = reports
        self._known = known
        self._rows_of = rows_of
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
        self.reports.add(map(self._note, settled_reports(part, self.columns)), self._known(task), self._rows_of(task))
        self.rows.append(self.settler.add(part))
        rows = part.group(self.columns)
        if rows is not None:
            self.taken.add(rows)

    def _note(self, found: AlikeReports) -> AlikeReports:
        if self.failed is None and not found.report.samples and not found.report.empty:
            self.failed = found.report
        return found
