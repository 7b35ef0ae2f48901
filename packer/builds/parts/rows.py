"""Row sources for the shards of a build: the rows of its parts, and in an update also those of the dataset."""

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.assembly.packed_rows import PackedRows
from packer.assembly.plan import Lengths, RowSource, compact, open_rows
from packer.builds.parts.part import PartColumns, RowGroup, columns_from_json, columns_to_json, open_part
from packer.workspace import Workspace
from shardspec.codecs.raw import SHAPE_DTYPE
from shardspec.columns import Columns, IntArray, allocate
from shardspec.errors import DatasetError, Problems, SchemaError
from shardspec.layout import Layout
from shardspec.manifest import Manifest
from shardspec.schema import Field, Schema

_OPEN_PARTS = 128
_CODE = np.dtype("<i4")


class _Column:
    """An array that grows in one piece of memory. Many small arrays would leave gaps once they are joined."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._dtype: np.dtype[Any] | None = None

    def extend(self, values: npt.NDArray[Any]) -> None:
        """Append values. If their type differs from the earlier ones', all take the type that holds both."""
        before, self._dtype = self._dtype, np.result_type(values if self._dtype is None else self._dtype, values)
        if before not in (None, self._dtype):
            self._bytes = bytearray(np.frombuffer(self._bytes, before).astype(self._dtype).tobytes())
        self._bytes += values.astype(self._dtype, copy=False).tobytes()

    def array(self) -> npt.NDArray[Any]:
        """Return all values, without a copy."""
        return np.frombuffer(self._bytes, self._dtype)


class RowTable:
    """Table in memory of the lengths of all values and of the index fields, which avoids reading the parts again.

    Once its `schema` is set, the table is a row source (`packer.assembly.plan.RowSource`) for the index fields.

    Parameters
    ----------
    columns : mapping of str to ColumnSpec
        Columns of the rows.

    Attributes
    ----------
    schema : Schema
        The schema of the rows. A table without rows may have any schema.
    """

    def __init__(self, columns: PartColumns) -> None:
        self.schema: Schema
        self._lengths: dict[str, _Column] = {}
        self._values: dict[str, _Column] = {}
        self._codes: dict[str, dict[bytes, int]] = {}
        for name, spec in columns.items():
            if spec.kind == "class":
                self._codes[name] = {}
            if spec.kind == "class" or spec.ndim == 0:
                self._values[name] = _Column()
            else:
                self._lengths[name] = _Column()
        self._places = {name: place for place, name in enumerate(columns)}
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def add(self, group: RowGroup) -> None:
        """Append the rows of a part."""
        for name, lengths in self._lengths.items():
            lengths.extend(compact(group.lengths[:, self._places[name]]))
        for name, values in self._values.items():
            values.extend(self._encode(group, name) if name in self._codes else group.numbers(name))
        self._rows += len(group)

    def _encode(self, group: RowGroup, name: str) -> npt.NDArray[np.int32]:
        """Number the class names of a column in the order of their first occurrence."""
        codes = self._codes[name]
        names = map(bytes, group.values(name, np.arange(len(group))))
        return np.array([codes.setdefault(one, len(codes)) for one in names], _CODE)

    def sizes(self) -> Mapping[str, Lengths]:
        """Return the encoded size of every value, by field of variable size."""
        return {
            field.name: _longer(self._column(self._lengths, field.name, np.uint32), prefix_bytes(field))
            for field in self.schema
            if not field.is_fixed
        }

    def read(self, rows: IntArray, fields: Sequence[str]) -> Columns:
        """Return the values of index fields in the given order."""
        found = {}
        for name in fields:
            field = self.schema[name]
            values = self._column(self._values, name, field.numpy_dtype)[rows]
            if name in self._codes:
                known = _class_numbers(field)
                values = np.array([known[one] for one in self._codes[name]], field.numpy_dtype)[values]
            found[name] = values
        return found

    def _column(self, columns: Mapping[str, _Column], name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return columns[name].array() if self._rows else np.empty(0, dtype)

    def close(self) -> None:
        """Do nothing: no file is open."""


class PartRows:
    """Rows of the parts named in the assembly plan.

    Parameters
    ----------
    config : mapping
        See `describe_rows`.
    workspace : Workspace
        Workspace with the plan's parts.
    """

    def __init__(self, config: Mapping[str, Any], workspace: Workspace) -> None:
        schema = Schema.from_json(config["schema"], Problems())
        if schema is None:
            raise SchemaError("the assembly plan holds no schema")
        self.schema = schema
        self._workspace = workspace
        self._columns = columns_from_json(config["columns"])
        named = [name for name, spec in self._columns.items() if spec.kind == "class"]
        self._numbers = {name: _class_numbers(self.schema[name]) for name in named}
        self._ends = np.cumsum(np.array(config["tasks"], np.int64))
        self._open: OrderedDict[int, RowGroup] = OrderedDict()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def sizes(self) -> Mapping[str, Lengths]:
        """Return the encoded size of every value, by field of variable size."""
        table = RowTable(self._columns)
        table.schema = self.schema
        for task in np.flatnonzero(np.diff(self._ends, prepend=0)).tolist():
            table.add(self._part(task))
        return table.sizes()

    def read(self, rows: IntArray, fields: Sequence[str]) -> Columns:
        """Return the encoded values of rows in the given order."""
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
        """Close the parts."""
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

    def _part(self, task: int) -> RowGroup:
        rows = self._open.pop(task, None) or open_part(self._workspace, task).group(self._columns)
        assert rows is not None
        self._open[task] = rows
        if len(self._open) > _OPEN_PARTS:
            self._open.popitem(last=False)
        return rows


def describe_rows(columns: PartColumns, tasks: Sequence[int], schema: Schema) -> dict[str, Any]:
    """Return the configuration of `PartRows`.

    Parameters
    ----------
    columns : mapping of str to ColumnSpec
        Columns of the rows to use. Rows with other columns are ignored.
    tasks : sequence of int
        Number of rows with these columns in each task's part.
    schema : Schema
        The schema of those rows.
    """
    return {"kind": "parts", "columns": columns_to_json(columns), "schema": schema.to_json(), "tasks": list(tasks)}


class UpdatedRows:
    """All rows of the dataset in the workspace's folder, followed by the new rows of an update.

    The schema is the extended schema of the dataset, so the dataset's values are copied unchanged.

    Parameters
    ----------
    config : mapping
        See `describe_updated`.
    added : RowSource, optional
        The new rows, if they are open already. The caller must then have compared the digests of the old shards.
        Without `added`, as in a worker process, the digest of each old shard is compared before its rows are copied,
        because the build may have been interrupted since the first comparison.
    """

    def __init__(self, config: Mapping[str, Any], workspace: Workspace, added: RowSource | None = None) -> None:
        check = "digest" if added is None else "size"
        base = {"inputs": [{"path": str(workspace.out), "digest": config["base"]}], "columns": False, "check": check}
        self._old = PackedRows(base)
        self._added = open_rows(config["added"], workspace) if added is None else added
        self.schema = self._added.schema

    def __len__(self) -> int:
        return len(self._old) + len(self._added)

    def sizes(self) -> Mapping[str, Lengths]:
        """Return the encoded size of every value, by field of variable size."""
        old, added = self._old.sizes(), self._added.sizes()
        return {name: np.concatenate([old[name], lengths]) for name, lengths in added.items()}

    def read(self, rows: IntArray, fields: Sequence[str]) -> Columns:
        """Return the encoded values of rows in the given order."""
        out, is_old = allocate(self.schema.select(list(fields)), len(rows)), rows < len(self._old)
        sources = ((self._old, 0, np.flatnonzero(is_old)), (self._added, len(self._old), np.flatnonzero(~is_old)))
        for source, first, at in sources:
            if not len(at):
                continue
            for name, values in source.read(rows[at] - first, fields).items():
                if isinstance(out[name], np.ndarray):
                    out[name][at] = values
                else:
                    for place, value in zip(at.tolist(), values, strict=True):
                        out[name][place] = value
        return out

    def close(self) -> None:
        """Close the files."""
        self._old.close()
        self._added.close()


def describe_updated(base: Manifest, added: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of `UpdatedRows`, given the configuration of the new rows."""
    return {"kind": "update", "base": base.digest, "added": dict(added)}


def find_rows(layout: Layout, base: Manifest, samples: IntArray) -> IntArray:
    """Return the rows of some items of a dataset, ascending. They are found by the item number in the samples' keys.

    Digests are not compared, because that would read every shard.

    Parameters
    ----------
    samples : (items,) int64
        Expected number of samples of each item of the dataset; 0 for items whose rows are not needed.

    Raises
    ------
    DatasetError
        If the dataset has another number of samples of these items.
    """
    found = array("q")
    if samples.any():
        row = 0
        with closing(PackedRows.of(layout.root, check="size", manifest=base)) as rows:
            for batch in rows.batches(["key"]):
                for key in batch["key"]:
                    number = bytes(key).partition(b"-")[0]
                    if number.isdigit() and (item := int(number)) < len(samples) and samples[item]:
                        found.append(row)
                    row += 1
    expected = samples.sum()
    if len(found) != expected:
        raise DatasetError(
            place=layout.root,
            expected=f"{expected} samples of the items to replace or drop",
            found=len(found),
            hint="pack it again with --overwrite",
        )
    return np.frombuffer(found, np.int64)


def _longer(lengths: Lengths, more: int) -> Lengths:
    """Add the same number of bytes to each length."""
    return compact(lengths.astype(np.int64) + more) if more else lengths


def _class_numbers(field: Field) -> dict[bytes, int]:
    """Return the numbers of a field's classes by their encoded names."""
    return {name.encode(): number for number, name in enumerate(field.classes or ())}


def prefix_bytes(field: Field) -> int:
    """Return the size of the shape in front of a raw array of varying shape."""
    if field.kind == "bytes" and field.codec.name == "raw" and len(field.shape) > 1:
        return len(field.shape) * SHAPE_DTYPE.itemsize
    return 0
