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


def count_columns(part: Part) -> Counter[tuple[tuple[str, ColumnSpec], ...]]:
    """Return the number of the part's items that have samples with the same columns, by columns."""
    kinds = [tuple(group.columns.items()) for group in part.groups]
    return Counter(kinds[item.group] for item in part.items if item.group is not None)


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


class PartsReader:
    """Reads the parts of a plan in task order as soon as they are finished, so that little work remains at the end.

    It collects reports, schema, lengths and index values of the rows with the most common columns. These are known only
    when all parts are finished. If they differ from those of the first part with rows, all parts are read again.

    Parameters
    ----------
    make_settler, make_reports : callable
        Make the settler and the report writer for a pass over the parts.
    identities : callable
        Returns the identities of a task's items.
    rows_of : callable
        Called with a task. Returns a function that maps an item's position in the task to its row in the source.
    fits : callable, optional
        Returns whether columns fit the dataset that is updated. Columns that fit take precedence.

    Attributes
    ----------
    rows : array of int
        The number of used rows of each task.
    failed : ItemReport or None
        Report of the first item that yielded no sample.
    """

    def __init__(
        self,
        workspace: Workspace,
        tasks: Sequence[Task],
        make_settler: Callable[[], SchemaSettler],
        make_reports: Callable[[], ReportWriter],
        identities: Callable[[Task], Iterable[ItemIdentity]],
        rows_of: Callable[[Task], Callable[[int], Mapping[str, Any]]],
        fits: Callable[[PartColumns], bool] | None,
    ) -> None:
        self._workspace = workspace
        self._tasks = tasks
        self._make_settler, self._make_reports = make_settler, make_reports
        self._identities, self._rows_of = identities, rows_of
        self._fits = fits
        self._count = Counter[tuple[tuple[str, ColumnSpec], ...]]()
        self._finished: set[int] = set()
        self._begin({})

    def _begin(self, columns: PartColumns) -> None:
        """Start a pass over the parts."""
        self.columns, self.settler, self.reports = columns, self._make_settler(), self._make_reports()
        self.settler.begin(columns)
        self.rows, self.table = array("q"), RowTable(columns)
        self.failed: ItemReport | None = None

    def read(self, finished: Iterable[int] = ()) -> None:
        """Record further finished tasks, and read a few parts."""
        self._finished.update(finished)
        first = len(self.rows)
        tasks = list(takewhile(self._finished.__contains__, range(first, first + _AT_A_TIME)))
        for part in self._open(tasks) if tasks else ():
            self._add(part)
        self._finished.difference_update(tasks)

    def finish(self) -> None:
        """Read the remaining parts and finish the reports. Call it after the last task."""
        for part in self._open(range(len(self.rows), len(self._tasks))):
            self._add(part)
        columns = self._choose_columns()
        if self.columns != columns:
            self.close()
            self._begin(columns)
            for part in self._open(range(len(self._tasks))):
                self._take_rows(part)
        self.reports.finish()

    def close(self) -> None:
        """Close the files."""
        self.reports.close()

    def _open(self, tasks: Iterable[int]) -> Iterator[Part]:
        return map_files(self._workspace.root, partial(open_part, self._workspace), tasks)

    def _add(self, part: Part) -> None:
        self._count.update(count_columns(part))
        if not self.columns and part.groups:
            self.columns = dict(count_columns(part).most_common(1)[0][0])
            self.settler.begin(self.columns)
            self.table = RowTable(self.columns)
        self._take_rows(part)

    def _take_rows(self, part: Part) -> None:
        """Collect what the part of the next task has about rows with the chosen columns."""
        task = self._tasks[len(self.rows)]
        reports = list(settled_reports(part, self.columns))
        if self.failed is None:
            self.failed = next((report for report in reports if not report.samples and not report.empty), None)
        self.reports.add(reports, self._identities(task), self._rows_of(task))
        self.rows.append(self.settler.add(part))
        rows = part.group(self.columns)
        if rows is not None:
            self.table.add(rows)

    def _choose_columns(self) -> PartColumns:
        """Return the most common columns, in a tie the first; an empty dict if no item yielded a sample.

        All parts are counted, so neither the order of the items nor the number of workers affects the choice.
        """
        ranked = [dict(columns) for columns, _ in self._count.most_common()]
        return next((one for one in ranked if self._fits is None or self._fits(one)), ranked[0] if ranked else {})
