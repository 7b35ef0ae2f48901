"""Read the parts of a build while tasks are still running, and collect the reports, the schema and the row table."""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np

from packer.builds.parts.part import Part, PartColumns, describe_difference, open_part
from packer.builds.parts.rows import RowTable
from packer.builds.reports import ItemIdentity, ReportWriter
from packer.jobs.plan import Task
from packer.steps.encode import LOSSLESS_CODEC, ColumnSpec
from packer.steps.report import ItemReport
from packer.workspace import Workspace
from packer.workspace.shared_files import map_files
from shardspec.errors import SchemaError
from shardspec.fields import FIELD_ORDER
from shardspec.schema import Field, NamedConfig, Schema
from shardspec.typing.field_types import FieldType, Shape, common_shape
from shardspec.wording import LISTED

_AT_A_TIME = 4
"""Number of parts to read between two events of workers. More than this would keep the workers waiting."""


class SchemaSettler:
    """Derives the schema from the parts, one after another. The varying axes are known only after the last part.

    Parameters
    ----------
    image_codec : NamedConfig
    classes : dict of str to list of str
        Class names by field.
    layouts : dict of int to str
        The point layout of a ``landmarks`` field, by its number of points.
    declared : dict of str to FieldType, optional
        Declared fields, with their codecs and varying axes.
    """

    def __init__(
        self,
        image_codec: NamedConfig,
        classes: Mapping[str, list[str]],
        layouts: Mapping[int, str],
        declared: Mapping[str, FieldType] | None = None,
    ) -> None:
        self._columns: PartColumns = {}
        self._image_codec = image_codec
        self._classes = classes
        self._layouts = layouts
        self._declared = declared or {}
        self._class_names: dict[str, set[bytes]] = {}
        self._shapes: dict[str, Shape] = {}

    def begin(self, columns: PartColumns) -> None:
        """Set the columns of the rows to use."""
        self._columns = columns
        self._class_names = {name: set() for name in columns if columns[name].kind == "class"}

    def add(self, part: Part) -> int:
        """Add one part, and return the number of its rows that have the chosen columns."""
        rows = part.group(self._columns)
        if rows is None:
            return 0
        # Handle all columns in one call, since there may be as many parts as items.
        low, high = tuple(rows.shapes.min(axis=0).tolist()), tuple(rows.shapes.max(axis=0).tolist())
        first = 0
        for name, spec in rows.columns.items():
            axes = slice(first, first + spec.ndim)
            first += spec.ndim
            known = self._shapes.setdefault(name, low[axes])
            if known != low[axes] or known != high[axes]:
                self._shapes[name] = common_shape((known, low[axes], high[axes]))
        for name, names in self._class_names.items():
            names.update(map(bytes, rows.values(name, np.arange(len(rows)))))
        return len(rows)

    def settle(self) -> Schema:
        """Return the schema of all parts that were added."""
        columns = self._columns
        first = [name for name in FIELD_ORDER if name in columns]
        names = first + sorted(set(columns) - set(first))
        return Schema(tuple(self._field(name, columns[name], self._shapes[name]) for name in names))

    def settle_into(self, schema: Schema) -> Schema:
        """Return the schema of a dataset extended by the rows. Only the sizes of images may become variable.

        Raises
        ------
        SchemaError
            If the rows do not fit into the dataset.
        """
        found = self.settle() if self._columns else schema
        wrong = [f"field {name!r} is missing" for name in schema.names if name not in found]
        wrong += [f"field {name!r} is new" for name in found.names if name not in schema]
        fields = []
        for field in schema:
            fitted = _fit(field, found[field.name]) if field.name in found else None
            if fitted is None and field.name in found:
                wrong.append(f"field {field.name!r}: expected {_describe(field)}, found {_describe(found[field.name])}")
            fields.append(fitted or field)
        if wrong:
            raise SchemaError("; ".join(wrong[:LISTED]) + (f"; and {len(wrong) - LISTED} more" * (len(wrong) > LISTED)))
        return Schema(tuple(fields))

    def fits(self, columns: PartColumns, schema: Schema) -> bool:
        """Return whether rows with these columns may fit into a schema, apart from their shapes."""
        if columns.keys() != set(schema.names):
            return False
        return all(self.fits_field(spec, schema[name]) for name, spec in columns.items())

    def fits_field(self, spec: ColumnSpec, field: Field) -> bool:
        """Return whether values of a column may fit into a field, apart from their shapes."""
        if len(field.shape) != spec.ndim:
            return False
        own = self._field(field.name, spec, field.shape)
        return (own.kind, own.dtype, own.codec) == (field.kind, field.dtype, field.codec)

    def _field(self, name: str, spec: ColumnSpec, shape: Shape) -> Field:
        declared = self._declared.get(name, FieldType("image", codec=self._image_codec))
        shape = declared.shape if declared.settled else shape
        if spec.kind == "image":
            kind = FieldType("image", codec=declared.codec or self._image_codec)
        elif spec.kind == "lossless":
            kind = FieldType("image", codec=LOSSLESS_CODEC)
        else:
            kind = FieldType(spec.kind, spec.dtype)
        classes: Sequence[str] | None = self._classes.get(name)
        if spec.kind == "class":
            classes = sorted(value.decode() for value in self._class_names[name])
        layout = self._layouts.get(shape[0] or 0) if name == "landmarks" and len(shape) == 2 else None
        return kind.to_field(name, shape, classes, layout)


def _fit(field: Field, found: Field) -> Field | None:
    """Return a dataset's field extended to hold further values, or None if it cannot hold them."""
    if field.dtype != found.dtype or field.codec != found.codec or len(field.shape) != len(found.shape):
        return None
    if (field.classes is None) != (found.classes is None) or field.layout != found.layout:
        return None
    field = replace(field, classes=found.classes)
    if all(axis in (None, new) for axis, new in zip(field.shape, found.shape, strict=True)):
        return field
    if field.codec.name == "raw":  # raw values are stored differently if their shape varies
        return None
    return replace(field, shape=common_shape((field.shape, found.shape)))


def _describe(field: Field) -> str:
    shape = " x ".join("?" if axis is None else str(axis) for axis in field.shape) or "one value"
    names = "" if field.classes is None else ", class names"
    return f"{field.kind} {field.dtype} of {shape} ({field.codec.name}{names})"


class ColumnCount:
    """Counts how many items have samples with which columns, and chooses the most common columns.

    All parts are counted, so neither the order of the items nor the number of workers affects the choice.
    """

    def __init__(self) -> None:
        self._items: Counter[tuple[tuple[str, ColumnSpec], ...]] = Counter()

    def add(self, part: Part) -> None:
        """Count the items of the next part, in task order."""
        kinds = [tuple(group.columns.items()) for group in part.groups]
        self._items.update(kinds[item.group] for item in part.items if item.group is not None)

    def choose(self, fits: Callable[[PartColumns], bool] | None = None) -> PartColumns:
        """Return the most common columns, or an empty dict if no item yielded a sample. In a tie, the first ones win.

        Parameters
        ----------
        fits : callable, optional
            Returns whether columns fit the dataset that is updated. Columns that fit take precedence.
        """
        ranked = [dict(columns) for columns, _ in self._items.most_common()]  # in a tie, the first one comes first
        fitting = (columns for columns in ranked if fits is None or fits(columns))
        return next(fitting, ranked[0] if ranked else {})


def settled_reports(part: Part, columns: PartColumns) -> Iterator[ItemReport]:
    """Yield the reports of a part's items. Items whose samples have other columns become rejects."""
    for item in part.items:
        report = item.to_report()
        if item.group is not None and part.groups[item.group].columns != columns:
            reason = (
                "expected the same fields as in most items, found others: "
                f"{describe_difference(columns, part.groups[item.group].columns)}"
            )
            report = ItemReport(report.name, frames=report.frames, faces=report.faces, step="encode", reason=reason)
        yield report


class PartsSummary:
    """Collects the reports, schema, lengths and index values of all parts. Only rows with the given columns are used.

    Parameters
    ----------
    settler : SchemaSettler
    reports : ReportWriter
    identities : callable
        Returns the identities of a task's items.
    columns : mapping of str to ColumnSpec, optional
        By default, the most common columns of the first part that has rows.
    rows_of : callable
        Called with a task. Returns a function that maps an item's position in the task to its row in the source.

    Attributes
    ----------
    rows : array of int
        The number of used rows of each task.
    table : RowTable
    failed : ItemReport or None
        Report of the first item that yielded no sample.
    """

    def __init__(
        self,
        settler: SchemaSettler,
        reports: ReportWriter,
        identities: Callable[[Task], Iterable[ItemIdentity | None]],
        columns: PartColumns | None = None,
        rows_of: Callable[[Task], Callable[[int], Mapping[str, Any]]] = lambda _: lambda _: {},
    ) -> None:
        self.settler = settler
        self.reports = reports
        self._identities = identities
        self._rows_of = rows_of
        self.columns: PartColumns = {}
        self.rows = array("q")
        self.table = RowTable({})
        self.failed: ItemReport | None = None
        if columns is not None:
            self._set_columns(columns)

    def _set_columns(self, columns: PartColumns) -> None:
        self.columns, self.table = columns, RowTable(columns)
        self.settler.begin(columns)

    def add(self, part: Part, task: Task) -> None:
        """Add the part of the next task."""
        if not self.columns and part.groups:
            count = ColumnCount()
            count.add(part)
            self._set_columns(count.choose())
        reports = list(settled_reports(part, self.columns))
        if self.failed is None:
            self.failed = next((report for report in reports if not report.samples and not report.empty), None)
        self.reports.add(reports, self._identities(task), self._rows_of(task))
        self.rows.append(self.settler.add(part))
        rows = part.group(self.columns)
        if rows is not None:
            self.table.add(rows)


class PartsReader:
    """Reads the parts of a plan in task order as soon as they are finished, so that little work remains at the end.

    The most common columns are known only when all parts are finished. If they differ from those assumed at first, all
    parts are read again.

    Parameters
    ----------
    workspace : Workspace
    tasks : sequence of Task
    make_summary : callable
        Makes an empty summary for the given columns. None chooses the columns by the first part.
    fits : callable, optional
        See `ColumnCount.choose`.
    """

    def __init__(
        self,
        workspace: Workspace,
        tasks: Sequence[Task],
        make_summary: Callable[[PartColumns | None], PartsSummary],
        fits: Callable[[PartColumns], bool] | None = None,
    ) -> None:
        self._workspace = workspace
        self._tasks = tasks
        self._make_summary = make_summary
        self._fits = fits
        self._count = ColumnCount()
        self._summary = make_summary(None)
        self._finished: set[int] = set()
        self._next = 0

    def read(self, finished: Iterable[int] = ()) -> None:
        """Record further finished tasks, and read a few parts."""
        self._finished.update(finished)
        tasks = list(takewhile(self._finished.__contains__, range(self._next, self._next + _AT_A_TIME)))
        for part in self._open(tasks) if tasks else ():
            self._finished.discard(self._next)
            self._add(part)

    def finish(self) -> PartsSummary:
        """Read the remaining parts and finish the reports. Call it after the last task."""
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
        return map_files(self._workspace.root, partial(open_part, self._workspace), tasks)

    def _add(self, part: Part) -> None:
        self._count.add(part)
        self._summary.add(part, self._tasks[self._next])
        self._next += 1
