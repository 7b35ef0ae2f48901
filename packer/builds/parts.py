"""The rows of a build's parts, in task order, with the schema settled over the rows with the most common columns."""

import os
import tempfile
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from packer.assembly.rows import Lengths, LengthTable
from packer.builds.part import Columns as PartColumns
from packer.builds.part import Part, RowGroup, describe_difference, from_json, to_json
from packer.recipe.fields import FieldType
from packer.sources.item import ItemReport
from packer.steps.encode import LOSSLESS_CODEC, ColumnSpec
from packer.workspace import Workspace
from packer.workspace.durable import writing
from packer.workspace.spool import temporary_file
from readers.formats.machine import file_system_of, is_network_file_system
from shardspec.columns import Columns, IntArray
from shardspec.errors import SchemaError
from shardspec.fields import FIELD_ORDER
from shardspec.problems import Problems
from shardspec.schema import Field, NamedConfig, Schema
from shardspec.wording import LISTED

_OPEN_PARTS = 128
_SHAPE_DTYPE = np.dtype("<u4")


_AHEAD = 32
"""Parts opened at a time on a network file system, where it takes as long as some answers of its server."""

_KEPT_BYTES = 8 * 10**6
"""So much of the outlines stays in memory, so that those of a small build are read once; the others are in a file."""


class OpenedParts(Iterable[Part]):
    """The finished parts of a plan for the cut, which reads them again and again, without most values of their rows.

    Each part is opened once, when they are iterated over for the first time: on a shared file system, that takes longer
    than all else.

    Parameters
    ----------
    workspace : Workspace
        That of the plan whose parts these are.
    tasks : int
        Number of tasks.
    ahead : bool, optional
        Whether many are opened at a time; by default, if they lie on a network file system.
    """

    def __init__(self, workspace: Workspace, tasks: int, *, ahead: bool | None = None) -> None:
        self._workspace = workspace
        self._tasks = tasks
        self._ahead = is_network_file_system(file_system_of(workspace.root)[1]) if ahead is None else ahead
        self._kept: list[Part] = []
        self._kept_bytes = 0
        self._places: list[tuple[int, int, int]] = []
        self._file: Any = None

    def __iter__(self) -> Iterator[Part]:
        yield from (self[task] for task in range(len(self)))
        for part, missing in self._open(range(len(self), self._tasks)):
            self._keep(part, missing)
            yield self[len(self) - 1]

    def __len__(self) -> int:
        """The number of parts opened so far."""
        return len(self._kept) + len(self._places)

    def __getitem__(self, task: int) -> Part:
        """A part that was opened before."""
        if task < len(self._kept):
            return self._kept[task]
        offset, size, missing = self._places[task - len(self._kept)]
        self._file.seek(offset)
        return Part.from_outline(self._file.read(size), missing)

    def _open(self, tasks: Sequence[int]) -> Iterator[tuple[bytes, int]]:
        """The outlines of some parts, in order."""
        if not self._ahead:
            yield from map(self._outline, tasks)
            return
        with ThreadPoolExecutor(_AHEAD, "parts") as threads:
            waiting: deque[Future[tuple[bytes, int]]] = deque()
            try:
                for task in tasks:
                    waiting.append(threads.submit(self._outline, task))
                    if len(waiting) == 2 * _AHEAD:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def _outline(self, task: int) -> tuple[bytes, int]:
        path = self._workspace.part(task)
        try:
            part = Part(path, fetched=self._ahead)
        except FileNotFoundError:
            part = Part(self._workspace.promised(path), fetched=self._ahead)
        return part.outline()

    def _keep(self, outline: bytes, missing: int) -> None:
        if not self._places and self._kept_bytes + len(outline) <= _KEPT_BYTES:
            self._kept.append(Part.from_outline(outline, missing))
            self._kept_bytes += len(outline)
            return
        with writing(Path(tempfile.gettempdir())):
            if self._file is None:
                self._file = temporary_file(self)
            offset = self._file.seek(0, os.SEEK_END)
            self._file.write(outline)
        self._places.append((offset, len(outline), missing))


class PartRows:
    """Rows of the parts named in the assembly plan.

    Parameters
    ----------
    config : mapping
        See `describe_rows`.
    workspace : Workspace
        That of the plan whose parts these are.
    parts : OpenedParts, optional
        What was opened of them before, to read no other values than theirs.
    """

    def __init__(self, config: Mapping[str, Any], workspace: Workspace, parts: OpenedParts | None = None) -> None:
        self._parts = parts
        schema = Schema.from_json(config["schema"], Problems())
        if schema is None:
            raise SchemaError("the assembly plan holds no schema")
        self.schema = schema
        self._workspace = workspace
        self._columns = from_json(config["columns"])
        named = [name for name, spec in self._columns.items() if spec.kind == "class"]
        self._numbers = {name: _class_numbers(self.schema[name]) for name in named}
        self._ends = np.cumsum(np.array(config["tasks"], np.int64))
        self._open: OrderedDict[int, RowGroup] = OrderedDict()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def sizes(self) -> Mapping[str, Lengths]:
        """Encoded bytes of every value of the fields that are not fixed."""
        varying = [field for field in self.schema if not field.is_fixed]
        table = LengthTable([field.name for field in varying], len(self))
        for task in self._tasks_with_rows():
            part = self._part(task)
            names = list(part.columns)
            table.append([part.lengths[:, names.index(field.name)] + _prefix_bytes(field) for field in varying])
        return table.columns

    def read(self, rows: IntArray, fields: Sequence[str]) -> Columns:
        """The encoded values of some rows."""
        out: dict[str, Any] = {name: [b""] * len(rows) for name in fields}
        tasks = np.searchsorted(self._ends, rows, side="right")
        for task in np.unique(tasks).tolist():
            part = self._part(task)
            places = np.flatnonzero(tasks == task)
            local = rows[places] - (int(self._ends[task - 1]) if task else 0)
            for name in fields:
                values: list[Any] = part.values(name, local)
                if _prefix_bytes(self.schema[name]):
                    shapes = part.axes(name)[local].astype(_SHAPE_DTYPE)
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

    def _tasks_with_rows(self) -> list[int]:
        return np.flatnonzero(np.diff(self._ends, prepend=0)).tolist()

    def _part(self, task: int) -> RowGroup:
        rows = self._open.pop(task, None) or self._open_part(task).group(self._columns)
        assert rows is not None
        self._open[task] = rows
        if len(self._open) > _OPEN_PARTS:
            self._open.popitem(last=False)
        return rows

    def _open_part(self, task: int) -> Part:
        return Part(self._workspace.promised(self._workspace.part(task))) if self._parts is None else self._parts[task]


def choose_columns(parts: Iterable[Part], fits: Callable[[PartColumns], bool] | None = None) -> PartColumns:
    """The columns that most items' samples have, in a tie those that come first; none if no item yielded a sample.

    All parts are counted, so neither the place of an item nor the number of workers decides.

    Parameters
    ----------
    parts : iterable of Part
    fits : callable, optional
        Whether columns fit a dataset that the samples are added to. Of those that do, the most common are chosen; if
        none do, the most common of all.
    """
    items: Counter[tuple[tuple[str, ColumnSpec], ...]] = Counter()
    for part in parts:
        kinds = [tuple(group.columns.items()) for group in part.groups]
        items.update(kinds[number] for number in part.group_of if number is not None)
    ranked = [dict(columns) for columns, _ in items.most_common()]  # in a tie, the first one met
    fitting = (columns for columns in ranked if fits is None or fits(columns))
    return next(fitting, ranked[0] if ranked else {})


def settled_reports(part: Part, columns: PartColumns) -> Iterator[ItemReport]:
    """What became of a part's items; those whose samples have other columns become rejects."""
    for report, number in zip(part.reports(), part.group_of, strict=True):
        if number is None or part.groups[number].columns == columns:
            yield report
            continue
        reason = (
            "expected the fields that the samples of most items have, found others: "
            f"{describe_difference(columns, part.groups[number].columns)}"
        )
        yield ItemReport(report.name, frames=report.frames, faces=report.faces, step="encode", reason=reason)


def describe_rows(columns: PartColumns, tasks: Sequence[int], schema: Schema) -> dict[str, Any]:
    """The configuration of `PartRows`.

    Parameters
    ----------
    columns : mapping of str to ColumnSpec
        From `choose_columns`.
    tasks : sequence of int
        Number of rows with these columns in each task's part.
    schema : Schema
        The schema settled over those rows.
    """
    return {"kind": "parts", "columns": to_json(columns), "tasks": list(tasks), "schema": schema.to_json()}


class SchemaSettler:
    """Settles the schema over the parts, one after another; only at the end is it known which axes vary.

    Parameters
    ----------
    image_codec : NamedConfig
    classes : dict of str to list of str
        Class names by field.
    layouts : dict of int to str
        The point layout of a ``landmarks`` field by its number of points.
    declared : dict of str to FieldType, optional
        The fields that were declared: their codecs, and the axes that are to vary even if they do not.
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
        self._shapes: dict[str, list[int | None]] = {}

    def begin(self, columns: PartColumns) -> None:
        """Say which columns the rows have that count."""
        self._columns = columns
        self._class_names = {name: set() for name in columns if columns[name].kind == "class"}

    def add(self, part: Part) -> int:
        """Take in one part and return how many of its rows count."""
        rows = part.group(self._columns)
        if rows is None:
            return 0
        for name in rows.columns:
            axes = rows.axes(name)
            low, high = axes.min(axis=0).tolist(), axes.max(axis=0).tolist()
            known = self._shapes.setdefault(name, list(low))
            self._shapes[name] = [k if k == a == b else None for k, a, b in zip(known, low, high, strict=True)]
        for name, names in self._class_names.items():
            names.update(map(bytes, rows.values(name, np.arange(len(rows)))))
        return len(rows)

    def settle(self) -> Schema:
        """The schema over everything that was added."""
        columns = self._columns
        first = [name for name in FIELD_ORDER if name in columns]
        names = first + sorted(set(columns) - set(first))
        return Schema(tuple(self._field(name, columns[name], tuple(self._shapes[name])) for name in names))

    def settle_into(self, schema: Schema) -> Schema:
        """The schema of a dataset that the rows are added to: its own, in which pictures may get varying sizes.

        Raises
        ------
        SchemaError
            If the rows do not fit into it.
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
        """Whether rows with these columns may fit into a schema; their shapes are not looked at."""
        if columns.keys() != set(schema.names):
            return False
        return all(self.fits_field(spec, schema[name]) for name, spec in columns.items())

    def fits_field(self, spec: ColumnSpec, field: Field) -> bool:
        """Whether values of a column may fit into a field; their shapes are not looked at."""
        if len(field.shape) != spec.ndim:
            return False
        own = self._field(field.name, spec, field.shape)
        return (own.kind, own.dtype, own.codec) == (field.kind, field.dtype, field.codec)

    def _field(self, name: str, spec: ColumnSpec, shape: tuple[int | None, ...]) -> Field:
        declared = self._declared.get(name)
        if declared is not None and declared.settled:
            shape = declared.shape
        varying = [axis is None for axis in shape]
        if spec.kind in ("text", "json"):
            return Field(name, "text", "|u1", (None,), NamedConfig("json" if spec.kind == "json" else "utf8"))
        if spec.kind == "blob":
            return Field(name, "bytes", "|u1", (None,))
        if spec.kind == "class":
            names = sorted(value.decode() for value in self._class_names[name])
            return Field(name, "fixed", "<i8", (), classes=tuple(names))
        codec = declared.codec if declared is not None and declared.codec is not None else self._image_codec
        if spec.kind == "image" and codec.name != "raw":
            return Field(name, "bytes", "|u1", shape, codec)
        if spec.kind == "lossless":
            return Field(name, "bytes", "|u1", shape, LOSSLESS_CODEC)
        if not any(varying):
            classes = self._classes.get(name)
            layout = self._layouts.get(shape[0] or 0) if name == "landmarks" and len(shape) == 2 else None
            return Field(
                name, "fixed", spec.dtype, shape, classes=None if classes is None else tuple(classes), layout=layout
            )
        if not any(varying[1:]):
            return Field(name, "ragged", spec.dtype, shape)
        return Field(name, "bytes", spec.dtype, shape)


def _fit(field: Field, found: Field) -> Field | None:
    """A dataset's field that takes further values, too; None if it cannot."""
    if field.dtype != found.dtype or field.codec != found.codec or len(field.shape) != len(found.shape):
        return None
    if (field.classes is None) != (found.classes is None) or field.layout != found.layout:
        return None
    field = replace(field, classes=found.classes)
    if all(axis in (None, new) for axis, new in zip(field.shape, found.shape, strict=True)):
        return field
    if field.codec.name == "raw":  # the shape decides how the values are stored
        return None
    shape = tuple(a if a == b else None for a, b in zip(field.shape, found.shape, strict=True))
    return replace(field, shape=shape)


def _describe(field: Field) -> str:
    shape = " x ".join("?" if axis is None else str(axis) for axis in field.shape) or "one value"
    names = "" if field.classes is None else ", class names"
    return f"{field.kind} {field.dtype} of {shape} ({field.codec.name}{names})"


def _class_numbers(field: Field) -> dict[bytes, int]:
    """The numbers of a field's classes by their encoded names."""
    return {name.encode(): number for number, name in enumerate(field.classes or ())}


def _prefix_bytes(field: Field) -> int:
    """Bytes of the shape that precedes a raw array of varying shape."""
    if field.kind == "bytes" and field.codec.name == "raw" and len(field.shape) > 1:
        return len(field.shape) * _SHAPE_DTYPE.itemsize
    return 0
