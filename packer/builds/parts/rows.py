"""The rows of a build's parts, in task order, and which of them count: those with the most common columns."""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.assembly.rows import Lengths, LengthTable
from packer.builds.parts.part import Columns as PartColumns
from packer.builds.parts.part import Part, RowGroup, describe_difference, from_json, is_index_value, open_part, to_json
from packer.steps.encode import ColumnSpec
from packer.steps.report import AlikeReports, ItemReport
from packer.workspace import Workspace
from packer.workspace.spool import NumberSpool
from shardspec.codecs.raw import SHAPE_DTYPE
from shardspec.columns import Columns, IntArray
from shardspec.errors import SchemaError
from shardspec.problems import Problems
from shardspec.schema import Field, Schema

_OPEN_PARTS = 128
_UINT32_MAX = np.iinfo(np.uint32).max
_CODE = np.dtype("<i4")


class RowTable:
    """Lengths of the values of all rows, and the values of index fields, so that the parts need not be read again.

    The values are in temporary files. Lengths that are all the same are stored once.

    Parameters
    ----------
    columns : mapping of str to ColumnSpec
        Those of the rows.

    Attributes
    ----------
    rows : int
        The number of rows.
    """

    def __init__(self, columns: PartColumns) -> None:
        self._columns = columns
        self._lengths = {name: _Lengths() for name, spec in columns.items() if spec.kind != "class"}
        self._index = {
            name: NumberSpool(_dtype(columns, name)) for name, spec in columns.items() if is_index_value(spec)
        }
        self._codes: dict[str, dict[bytes, int]] = {name: {} for name, spec in columns.items() if spec.kind == "class"}
        self._places = list(columns)
        self.rows = 0

    def add(self, group: RowGroup) -> None:
        """Append the rows of a part."""
        low, high = group.lengths.min(axis=0).tolist(), group.lengths.max(axis=0).tolist()
        for place, name in enumerate(self._places):
            if name in self._lengths:
                self._lengths[name].add(group.lengths[:, place], low[place], high[place])
            if name in self._index:
                found = self._encode(group, name) if name in self._codes else group.numbers(name)
                self._index[name].add(found.tobytes())
        self.rows += len(group)

    def _encode(self, group: RowGroup, name: str) -> npt.NDArray[np.int32]:
        """The codes of the names of classes in a column."""
        codes = self._codes[name]
        names = map(bytes, group.values(name, np.arange(len(group))))
        return np.array([codes.setdefault(one, len(codes)) for one in names], _CODE)

    def lengths(self, name: str) -> Lengths:
        """Return the encoded bytes of a column's values, (rows,); not for columns of class names."""
        return self._lengths[name].all(self.rows)

    def classes(self, name: str) -> list[bytes]:
        """The names of classes in a column, in the order in which they came."""
        return list(self._codes[name])

    def values(self, name: str, rows: IntArray) -> npt.NDArray[Any]:
        """The values of an index column in some rows; for names of classes, their places in `classes`."""
        return self._index[name].read(rows)


class _Lengths:
    """Lengths, of which one is kept as long as all are the same."""

    def __init__(self) -> None:
        self._same: int | None = None
        self._rows = 0
        self._all: array[int] | None = None

    def add(self, lengths: npt.NDArray[np.int64], low: int, high: int) -> None:
        """Append lengths, the shortest and the longest of which are known."""
        if self._all is None:
            self._same = low if self._same is None else self._same
            if low == high == self._same:
                self._rows += len(lengths)
                return
            self._all = array("I" if self._same <= _UINT32_MAX else "q", [self._same]) * self._rows
        if high > _UINT32_MAX and self._all.typecode == "I":
            self._all = array("q", self._all)
        self._all.frombytes(lengths.astype(f"u{self._all.itemsize}").tobytes())

    def all(self, rows: int) -> Lengths:
        """All of them."""
        if self._all is not None:
            whole = np.asarray(self._all)
            return whole.view(np.uint32) if self._all.typecode == "I" else whole.view(np.int64)
        same = self._same or 0
        return np.full(rows, same, np.uint32) if same <= _UINT32_MAX else np.full(rows, same, np.int64)


def _dtype(columns: PartColumns, name: str) -> np.dtype[Any]:
    return _CODE if columns[name].kind == "class" else np.dtype(columns[name].dtype)


class PartRows:
    """Rows of the parts named in the assembly plan.

    Parameters
    ----------
    config : mapping
        See `describe_rows`.
    workspace : Workspace
        That of the plan whose parts these are.
    table : RowTable, optional
        The lengths and index values of these rows. With a table, only values of index fields can be read.
    """

    def __init__(self, config: Mapping[str, Any], workspace: Workspace, table: RowTable | None = None) -> None:
        schema = Schema.from_json(config["schema"], Problems())
        if schema is None:
            raise SchemaError("the assembly plan holds no schema")
        self.schema = schema
        self._workspace = workspace
        self._columns = from_json(config["columns"])
        named = [name for name, spec in self._columns.items() if spec.kind == "class"]
        self._numbers = {name: _class_numbers(self.schema[name]) for name in named}
        self._ends = np.cumsum(np.array(config["tasks"], np.int64))
        self._table = table if len(self) else None  # without rows, the schema is that of other rows
        self._open: OrderedDict[int, RowGroup] = OrderedDict()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def sizes(self) -> Mapping[str, Lengths]:
        """Encoded bytes of every value of the fields that are not fixed."""
        varying = [field for field in self.schema if not field.is_fixed]
        if self._table is not None:
            return {field.name: longer(self._table.lengths(field.name), prefix_bytes(field)) for field in varying}
        table = LengthTable([field.name for field in varying], len(self))
        for task in self._tasks_with_rows():
            part = self._part(task)
            names = list(part.columns)
            table.append([part.lengths[:, names.index(field.name)] + prefix_bytes(field) for field in varying])
        return table.columns

    def read(self, rows: IntArray, fields: Sequence[str]) -> Columns:
        """The encoded values of some rows."""
        if self._table is not None:
            return {name: self._table_column(self._table, name, rows) for name in fields}
        out: dict[str, Any] = {name: [b""] * len(rows) for name in fields}
        tasks = np.searchsorted(self._ends, rows, side="right")
        for task in np.unique(tasks).tolist():
            part = self._part(task)
            places = np.flatnonzero(tasks == task)
            local = rows[places] - (int(self._ends[task - 1]) if task else 0)
            for name in fields:
                values: list[Any] = part.values(name, local)
                if prefix_bytes(self.schema[name]):
                    shapes = part.axes(name)[local].astype(SHAPE_DTYPE)
                    values = [shape.tobytes() + bytes(value) for shape, value in zip(shapes, values, strict=True)]
                for place, value in zip(places.tolist(), values, strict=True):
                    out[name][place] = value
        return {name: self._column(name, values) for name, values in out.items()}

    def close(self) -> None:
        """Forget the parts."""
        self._open.clear()

    def _column(self, name: str, values: list[Any]) -> Any:
        field = self.schema[name]
        if not field.is_fixed:
            return values
        if name in self._numbers:
            numbers = self._numbers[name]
            return np.array([numbers[bytes(value)] for value in values], field.numpy_dtype)
        array = np.frombuffer(b"".join(values), field.numpy_dtype)
        return array.reshape(len(values), *field.fixed_shape)

    def _table_column(self, table: RowTable, name: str, rows: IntArray) -> Any:
        values = table.values(name, rows)
        if name in self._numbers:
            numbers = [self._numbers[name][one] for one in table.classes(name)]
            return np.array(numbers, self.schema[name].numpy_dtype)[values]
        return values

    def _tasks_with_rows(self) -> list[int]:
        return np.flatnonzero(np.diff(self._ends, prepend=0)).tolist()

    def _part(self, task: int) -> RowGroup:
        rows = self._open.pop(task, None) or open_part(self._workspace, task).group(self._columns)
        assert rows is not None
        self._open[task] = rows
        if len(self._open) > _OPEN_PARTS:
            self._open.popitem(last=False)
        return rows


class ColumnCount:
    """Counts which columns the samples of items have.

    All parts are counted, so neither the place of an item nor the number of workers decides which are chosen.
    """

    def __init__(self) -> None:
        self._items: Counter[tuple[tuple[str, ColumnSpec], ...]] = Counter()

    def add(self, part: Part) -> None:
        """Count the items of a part, which follows those that were added before."""
        kinds = [tuple(group.columns.items()) for group in part.groups]
        for run in part.runs:
            if run.group is not None:
                self._items[kinds[run.group]] += len(run.names)

    def choose(self, fits: Callable[[PartColumns], bool] | None = None) -> PartColumns:
        """The columns that most items' samples have, in a tie those that come first; none if no item yielded a sample.

        Parameters
        ----------
        fits : callable, optional
            Whether columns fit a dataset that the samples are added to. Of those that do, the most common are chosen;
            if none do, the most common of all.
        """
        ranked = [dict(columns) for columns, _ in self._items.most_common()]  # in a tie, the first one met
        fitting = (columns for columns in ranked if fits is None or fits(columns))
        return next(fitting, ranked[0] if ranked else {})


def choose_columns(parts: Iterable[Part]) -> PartColumns:
    """The columns that most items' samples have (`ColumnCount`)."""
    count = ColumnCount()
    for part in parts:
        count.add(part)
    return count.choose()


def settled_reports(part: Part, columns: PartColumns) -> Iterator[AlikeReports]:
    """Yield the reports of a part's items. Items whose samples have other columns become rejects."""
    for run in part.runs:
        report = run.to_report()
        if run.group is not None and part.groups[run.group].columns != columns:
            reason = (
                "expected the fields that the samples of most items have, found others: "
                f"{describe_difference(columns, part.groups[run.group].columns)}"
            )
            report = ItemReport(report.name, frames=report.frames, faces=report.faces, step="encode", reason=reason)
        yield AlikeReports(run.names, report)


def describe_rows(columns: PartColumns, tasks: Sequence[int], schema: Schema) -> dict[str, Any]:
    """The configuration of `PartRows`.

    Parameters
    ----------
    columns : mapping of str to ColumnSpec
        From `ColumnCount`.
    tasks : sequence of int
        Number of rows with these columns in each task's part.
    schema : Schema
        The schema settled over those rows.
    """
    return {"kind": "parts", "columns": to_json(columns), "schema": schema.to_json(), "tasks": list(tasks)}


def longer(lengths: Lengths, more: int) -> Lengths:
    """Lengths of values with so many more bytes each."""
    if not more:
        return lengths
    longer = lengths.astype(np.int64) + more
    return longer if longer.max(initial=0) > np.iinfo(np.uint32).max else longer.astype(np.uint32)


def _class_numbers(field: Field) -> dict[bytes, int]:
    """The numbers of a field's classes by their encoded names."""
    return {name.encode(): number for number, name in enumerate(field.classes or ())}


def prefix_bytes(field: Field) -> int:
    """Bytes of the shape that precedes a raw array of varying shape."""
    if field.kind == "bytes" and field.codec.name == "raw" and len(field.shape) > 1:
        return len(field.shape) * SHAPE_DTYPE.itemsize
    return 0
