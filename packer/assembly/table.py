"""The table of the rows of pieces for a merge: the sizes of all values, the index fields, and the schema."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.assembly.piece import Piece, PieceColumns, RowGroup, prefix_bytes
from packer.assembly.schemas import FieldRules
from shardspec.columns import Columns, IntArray
from shardspec.fields import FIELD_ORDER
from shardspec.schema import Field, Schema
from shardspec.typing.field_types import Shape, common_shape

Lengths = npt.NDArray[np.integer[Any]]
"""Array of encoded sizes in bytes, in the smallest type that holds them (`compact`)."""

_CODE = np.dtype("<i4")


class _GrowingArray:
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
    """Table in memory of the lengths of all values and of the index fields, which avoids reading the pieces again.

    Once its schema is settled, the table reads the index fields like a shard (`readers.formats.shards.ShardReader`).

    Parameters
    ----------
    columns : mapping of str to ColumnSpec
        Columns of the rows to use. Rows with other columns are ignored.
    rules : FieldRules

    Attributes
    ----------
    schema : Schema
        The schema of the rows, set by `settle`. A table without rows may have any schema.
    """

    def __init__(self, columns: PieceColumns, rules: FieldRules) -> None:
        self.schema: Schema
        self.columns = columns
        self._rules = rules
        self._shapes: dict[str, Shape] = {}
        self._lengths: dict[str, _GrowingArray] = {}
        self._values: dict[str, _GrowingArray] = {}
        self._codes: dict[str, dict[bytes, int]] = {}
        for name, spec in columns.items():
            if spec.kind == "class":
                self._codes[name] = {}
            if spec.kind == "class" or spec.ndim == 0:
                self._values[name] = _GrowingArray()
            else:
                self._lengths[name] = _GrowingArray()
        self._places = {name: place for place, name in enumerate(columns)}
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def add(self, piece: Piece) -> int:
        """Append the rows of a piece that have the columns of the table, and return their number."""
        group = piece.group(self.columns)
        if group is not None:
            self.add_rows(group)
        return 0 if group is None else len(group)

    def add_rows(self, group: RowGroup) -> None:
        """Append rows with the columns of the table."""
        # Handle all columns in one call, since there may be as many parts as items.
        low, high = tuple(group.shapes.min(axis=0).tolist()), tuple(group.shapes.max(axis=0).tolist())
        first = 0
        for name, spec in self.columns.items():
            axes = slice(first, first + spec.ndim)
            first += spec.ndim
            known = self._shapes.setdefault(name, low[axes])
            if known != low[axes] or known != high[axes]:
                self._shapes[name] = common_shape((known, low[axes], high[axes]))
        for name, lengths in self._lengths.items():
            lengths.extend(compact(group.lengths[:, self._places[name]]))
        for name, values in self._values.items():
            values.extend(compact(self._encode(group, name) if name in self._codes else group.numbers(name)))
        self._rows += len(group)

    def settle(self) -> Schema:
        """Set and return the schema of all rows."""
        columns = self.columns
        first = [name for name in FIELD_ORDER if name in columns]
        names = first + sorted(set(columns) - set(first))
        self.schema = Schema(tuple(self._settle_field(name) for name in names))
        return self.schema

    def _settle_field(self, name: str) -> Field:
        names = (known.decode() for known in self._codes.get(name, ()))
        return self._rules.make_field(name, self.columns[name], self._shapes[name], names)

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

    def read(self, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        """Copy the values of index fields (`readers.formats.shards.ShardReader.read`)."""
        for name in fields:
            field = self.schema[name]
            values = self._column(self._values, name, field.numpy_dtype)[rows]
            if name in self._codes:
                known = class_numbers(field)
                values = np.array([known[one] for one in self._codes[name]], field.numpy_dtype)[values]
            out[name][at] = values

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _column(self, columns: Mapping[str, _GrowingArray], name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return columns[name].array() if self._rows else np.empty(0, dtype)


def class_numbers(field: Field) -> dict[bytes, int]:
    """Return the numbers of a field's classes by their encoded names."""
    return {name.encode(): number for number, name in enumerate(field.classes or ())}


def compact(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return integers in the smallest type that holds them, and other values as they are."""
    if values.dtype.kind not in "iu" or not values.size:
        return values
    smallest = np.result_type(np.min_scalar_type(values.min()), np.min_scalar_type(values.max()))
    return values.astype(smallest, copy=False) if smallest.itemsize < values.dtype.itemsize else values


def _longer(lengths: Lengths, more: int) -> Lengths:
    """Add the same number of bytes to each length."""
    return compact(lengths.astype(np.int64) + more) if more else lengths
