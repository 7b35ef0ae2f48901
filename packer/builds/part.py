"""A part: the encoded samples of one task, in order. Internal, removed when the shards that need it are durable.

The file is the rows' bytes one after another, each row its fields in the order of the columns; then the index, an int64 array
(rows, columns) of byte lengths and an int32 array (rows, axes of all columns) of shapes; then the JSON footer; then 16 bytes: the footer's offset as
a little-endian uint64 and a mark. It is written once, front to back, under a temporary name, so a long video needs no memory.
"""

import json
import mmap
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.sources.item import ItemReport
from packer.steps.encode import ColumnSpec, EncodedValue
from packer.workspace.durable import fsync_folder
from shardspec.errors import BuildError, SchemaError

_MARK = b"PARTv1\r\n"


class PartWriter:
    """Writes one part. Use as a context manager; without `finish` nothing is left.

    Parameters
    ----------
    path : Path
        Where the part appears, whole, on `finish`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
        self._file = self._temporary.open("xb")
        self.columns: dict[str, ColumnSpec] | None = None
        self._lengths: list[list[int]] = []
        self._shapes: list[list[int]] = []
        self.reports: list[ItemReport] = []

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    def mark(self) -> tuple[int, int]:
        """A place to roll back to."""
        return len(self._lengths), self._file.tell()

    def rollback(self, mark: tuple[int, int]) -> None:
        """Forget every row appended since `mark`."""
        rows, offset = mark
        del self._lengths[rows:], self._shapes[rows:]
        self._file.seek(offset)
        self._file.truncate()
        if not rows:
            self.columns = None

    def append(self, row: Mapping[str, EncodedValue]) -> None:
        """Append one row.

        Raises
        ------
        SchemaError
            Its fields, dtypes or numbers of axes differ from the rows before it.
        """
        names = sorted(row)
        specs = {name: row[name].spec for name in names}
        if self.columns is None:
            self.columns = specs
        elif specs != self.columns:
            raise SchemaError(f"the sample differs from those before it: {describe_difference(self.columns, specs)}")
        for name in names:
            self._file.write(row[name].data)
        self._lengths.append([len(row[name].data) for name in names])
        self._shapes.append([axis for name in names for axis in row[name].shape])

    def extend(self, part: "Part") -> None:
        """Append all rows and reports of another part."""
        if len(part):
            if self.columns is None:
                self.columns = part.columns
            elif self.columns != part.columns:
                raise SchemaError(f"the parts differ: {describe_difference(self.columns, part.columns)}")
        self._file.write(part.row_data())
        self._lengths.extend(part.lengths.tolist())
        self._shapes.extend(part.shapes.tolist())
        self.reports.extend(part.reports())

    def finish(self) -> None:
        """Write the index and footer and move the part into place; if another worker was first, its part stays."""
        columns = self.columns or {}
        lengths = np.array(self._lengths, "<i8").reshape(len(self._lengths), len(columns))
        shapes = np.array(self._shapes, "<i4").reshape(len(self._lengths), sum(spec.ndim for spec in columns.values()))
        self._file.write(bytes(-self._file.tell() % 8))
        index_offset = self._file.tell()
        self._file.write(lengths.tobytes())
        self._file.write(shapes.tobytes())
        footer_offset = self._file.tell()
        footer = {
            "columns": [[name, *spec] for name, spec in columns.items()],
            "rows": len(lengths),
            "index_offset": index_offset,
            "reports": [report.to_json() for report in self.reports],
        }
        self._file.write(json.dumps(footer, separators=(",", ":")).encode())
        self._file.write(footer_offset.to_bytes(8, "little") + _MARK)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if not self.path.exists():
            os.replace(self._temporary, self.path)
        fsync_folder(self.path.parent)


class Part:
    """A finished part, mapped into memory.

    Attributes
    ----------
    columns : dict of str to ColumnSpec
        In the order of the row's bytes. Empty if there are no rows.
    lengths : (rows, columns) int64
        Encoded bytes of each value.
    shapes : (rows, axes) int32
        Shapes of the decoded values, the columns' axes side by side.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self._map[-8:] != _MARK:
            raise BuildError(
                f"{path}: expected a finished part of this build, found something else: remove the .build folder and build again"
            )
        footer_offset = int.from_bytes(self._map[-16:-8], "little")
        footer = json.loads(self._map[footer_offset:-16])
        self._reports: list[dict[str, Any]] = footer["reports"]
        self.columns = {name: ColumnSpec(*spec) for name, *spec in footer["columns"]}
        rows, columns = footer["rows"], len(self.columns)
        axes = sum(spec.ndim for spec in self.columns.values())
        index_offset = footer["index_offset"]
        self.lengths: npt.NDArray[np.int64] = np.frombuffer(self._map, "<i8", rows * columns, index_offset).reshape(
            rows, columns
        )
        shapes_offset = index_offset + self.lengths.nbytes
        self.shapes: npt.NDArray[np.int32] = np.frombuffer(self._map, "<i4", rows * axes, shapes_offset).reshape(
            rows, axes
        )
        ends = np.cumsum(self.lengths.reshape(-1))
        self._starts = (ends - self.lengths.reshape(-1)).reshape(rows, columns)
        self._view = memoryview(self._map)

    def __len__(self) -> int:
        return len(self.lengths)

    def reports(self) -> list[ItemReport]:
        """What became of the task's items, in order."""
        return [ItemReport(**document) for document in self._reports]

    def axes(self, name: str) -> npt.NDArray[np.int32]:
        """Shapes of a column's values, (rows, ndim)."""
        first = 0
        for other, spec in self.columns.items():
            if other == name:
                return self.shapes[:, first : first + spec.ndim]
            first += spec.ndim
        raise KeyError(name)

    def values(self, name: str, rows: Sequence[int] | npt.NDArray[np.int64]) -> list[memoryview]:
        """The encoded bytes of a column in the given rows; valid while the part is referred to."""
        column = list(self.columns).index(name)
        starts, lengths = self._starts[rows, column], self.lengths[rows, column]
        return [
            self._view[start : start + length] for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
        ]

    def row_data(self) -> memoryview:
        """The bytes of all rows."""
        return self._view[: int(self.lengths.sum())]


def describe_difference(expected: Mapping[str, ColumnSpec], found: Mapping[str, ColumnSpec]) -> str:
    """How two sets of columns differ, field by field."""
    lines = []
    for name in sorted({*expected, *found}):
        if name not in found:
            lines.append(f"field {name!r} is missing")
        elif name not in expected:
            lines.append(f"field {name!r} is new")
        elif expected[name] != found[name]:
            e, f = expected[name], found[name]
            lines.append(
                f"field {name!r}: expected {e.kind} {e.dtype} with {e.ndim} axes, found {f.kind} {f.dtype} with {f.ndim} axes"
            )
    return "; ".join(lines)
