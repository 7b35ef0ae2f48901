"""Pieces in a store, which are opened and read by ranges of an object.

The object of a piece is its file, followed by the values of its index fields, group by group and column by column. So one
request for the end of the object returns everything that the merge needs. Its name says where this end begins:
``part-NNNNNN.<index>-<end of the file>-<size>-<random>``, with the offsets in hexadecimal digits.
"""

import uuid
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.assembly.piece import TAIL, Piece, PieceColumns, RowGroup
from packer.workspace import Workspace
from packer.workspace.remote import RemoteFiles, name_of
from packer.workspace.shared_files import map_threaded
from shardspec.columns import IntArray

_GAP_BYTES = 1 << 16
"""Rows with a smaller gap between them are requested together."""

_SPAN_BYTES = 8 << 20
"""Most bytes of one request. Several are sent at a time."""

_REQUESTS = 4


def put_piece(workspace: Workspace, remote: RemoteFiles, path: Path) -> str:
    """Move a finished piece to the store, and return the name of its object."""
    name = name_of(workspace.root, path)
    attempt = workspace.attempt(path)
    path.replace(attempt)
    piece = Piece(attempt)
    end = attempt.stat().st_size
    with attempt.open("r+b") as file:
        file.seek(end - TAIL.size)
        index = TAIL.unpack(file.read())[0]
        for group in piece.groups:
            for column in _index_columns(group.columns):
                file.writelines(group.values(column, np.arange(len(group))))
        size = file.tell()
    name += f".{index:x}-{end:x}-{size:x}-{uuid.uuid4().hex[:8]}"
    remote.work.put(name, attempt)
    attempt.unlink()
    return name


def _index_columns(columns: PieceColumns) -> Iterator[str]:
    """Yield the columns whose values a merge reads (`packer.assembly.table.RowTable`)."""
    return (name for name, spec in columns.items() if spec.kind == "class" or spec.ndim == 0)


class RemotePiece(Piece):
    """A finished piece in a store. Rows must be loaded before they are read."""

    def __init__(self, remote: RemoteFiles, name: str) -> None:
        index, end, size, _ = name.rpartition(".")[2].split("-")
        first, end_ = int(index, 16), int(end, 16)
        data = remote.read(name, (first, int(size, 16)))
        self._parse(remote.place(name), memoryview(b""), data[: end_ - first], first, end_)
        known, groups = memoryview(data)[end_ - first :], []
        for group in self.groups:
            groups.append(RemoteGroup(group, partial(remote.read, name), known))
            known = known[groups[-1].known_bytes :]
        self.groups = list[RowGroup](groups)


class RemoteGroup(RowGroup):
    """The rows of a piece in a store.

    Parameters
    ----------
    group : RowGroup
        The index of the rows.
    read : callable
        Returns the bytes of the piece between two offsets.
    known : memoryview
        Begins with the values of the index fields, column by column.

    Attributes
    ----------
    known_bytes : int
        Size of these values.
    """

    def __init__(self, group: RowGroup, read: Any, known: memoryview) -> None:
        vars(self).update(vars(group))
        self._read = read
        self._known: dict[str, tuple[memoryview, npt.NDArray[np.int64]]] = {}
        self.known_bytes = 0
        for column, name in enumerate(self.columns):
            if name in _index_columns({name: self.columns[name]}):
                ends = np.cumsum(self.lengths[:, column])
                size = int(ends[-1])
                self._known[name] = known[self.known_bytes : self.known_bytes + size], ends
                self.known_bytes += size

    def load(self, rows: IntArray) -> None:
        """Request the bytes of some rows, ascending, in place of those that were loaded before."""
        starts = self.starts[rows]
        spans = _join_spans(starts, starts + self.lengths[rows].sum(axis=1))
        buffers = list(map_threaded(self._read, spans, min(_REQUESTS, max(1, len(spans)))))
        self._view = _Loaded([start for start, _ in spans], buffers)

    def values(self, name: str, rows: Sequence[int] | npt.NDArray[np.int64]) -> list[memoryview]:
        """Return the encoded bytes of a column in the given rows, which must be loaded unless it is an index field."""
        if name not in self._known:
            return super().values(name, rows)
        view, ends = self._known[name]
        column = list(self.columns).index(name)
        stops = ends[rows]
        found = [view[a:b] for a, b in zip((stops - self.lengths[rows, column]).tolist(), stops.tolist(), strict=True)]
        self._check(found, self.sums[rows, column].tolist())
        return found


class _Loaded:
    """Ranges of an object, from which parts are taken by their offsets in the object."""

    def __init__(self, starts: Sequence[int], buffers: Sequence[bytes]) -> None:
        self._starts = starts
        self._buffers = [memoryview(buffer) for buffer in buffers]

    def __getitem__(self, part: slice) -> memoryview:
        number = bisect_right(self._starts, part.start) - 1
        first = self._starts[number]
        return self._buffers[number][part.start - first : part.stop - first]


def _join_spans(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Join ascending spans with small gaps between them, up to a size."""
    spans: list[tuple[int, int]] = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if spans and start - spans[-1][1] <= _GAP_BYTES and end - spans[-1][0] <= _SPAN_BYTES:
            spans[-1] = spans[-1][0], max(end, spans[-1][1])
        else:
            spans.append((start, end))
    return spans
