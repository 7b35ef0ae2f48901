"""Read the stored rows of packed datasets and pieces."""

import os
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from packer.assembly.inputs import DatasetInput, DatasetReader, PieceInput, RowReader
from packer.assembly.schemas import unite_schemas
from packer.assembly.table import Lengths, RowTable, compact
from packer.workspace import Workspace
from packer.workspace.durable import damaged, publish
from readers.formats.mapping import let_go_of_pages
from shardspec.columns import Columns, IntArray, allocate
from shardspec.manifest import Manifest

BATCH_BYTES = 16 * 10**6
"""Approximate size of a batch of rows in bytes."""

_BATCH_ROWS = 1 << 15
_PASSED_BYTES = 64 * 10**6
"""Approximate number of mapped bytes to read before releasing them, since mapped pages count as memory of the process.
Shards that were not read during the last `_IDLE` releases are closed, because the lengths of their rows take memory."""

_IDLE = 8

_SUM_BYTES = 4
"""Bytes of the CRC-32 in front of the lengths in a scan."""

_AROUND_BYTES = 1 << 16
"""Bytes that the system maps around a single row."""

Check = Literal["digest", "size"]


class PackedRows:
    """Rows of packed datasets and pieces, one after another, with one schema (`packer.assembly.schemas`).

    No image is decoded. Before a shard's first row is read, its digest is compared with the manifest, so that damaged
    data never gets a new digest. If the workspace has a scan of the shard, this comparison has been done already. The
    files of a remote dataset are compared on arrival, but not parts of them (`packer.sources.stores.packed`).
    If another dataset replaces an input meanwhile, its unopened files are missing, so rows of two datasets are never mixed.

    Parameters
    ----------
    config : mapping
        ``inputs`` is a list. The entry of a dataset is ``{"path": folder or URL}``, with ``items_before`` if a number is
        to be added to the item's number in every key, with ``digest``, which the dataset's digest must begin with, and with
        ``"columns": False`` to leave out the fields that are stored in columns. `packer.assembly.inputs.describe_pieces`
        makes the entry of pieces. ``check`` is ``"digest"`` (default), or ``"size"`` if the caller has compared the
        digests of shards. ``shards`` lists the shards that will be read, of all inputs; by default all.
    workspace : Workspace, optional
        The workspace with the scans and pieces.
    manifests : sequence of Manifest, optional
        The manifests of the datasets, if they are loaded already. The caller then makes sure that no other process
        writes to the datasets, or compares the digests later.
    table : RowTable, optional
        The sizes and index fields of the pieces, if the caller has collected them. Other fields of the pieces cannot be
        read then.

    Raises
    ------
    DatasetChangedError
        If a dataset's digest differs from the expected one.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        workspace: Workspace | None = None,
        manifests: Sequence[Manifest] | None = None,
        table: RowTable | None = None,
    ) -> None:
        self._workspace = workspace
        self._digests = config.get("check", "digest") == "digest"
        known: Iterator[Manifest | None] = repeat(None) if manifests is None else iter(manifests)
        self._inputs = [
            PieceInput(entry, workspace, table) if "pieces" in entry else DatasetInput(entry, next(known))
            for entry in config["inputs"]
        ]
        self.schema = unite_schemas([one.schema for one in self._inputs])
        if table is not None:
            table.schema = self.schema
        self._firsts = np.cumsum([0, *(len(one.samples) for one in self._inputs)])
        self._ends = np.cumsum(np.concatenate([one.samples for one in self._inputs]), dtype=np.int64)
        shards = config.get("shards")
        self._read_shards = None if shards is None else frozenset(shards)
        self._varying = tuple(field.name for field in self.schema if not field.is_fixed)
        self._open: OrderedDict[int, RowReader] = OrderedDict()
        self._most_open = max(one.most_open for one in self._inputs)
        self._compared: set[int] = set()
        self._used: dict[int, int] = {}
        self._passed = self._releases = 0

    @classmethod
    def of(
        cls, path: Path | str, *, check: Check = "digest", manifest: Manifest | None = None, digest: str = ""
    ) -> Self:
        """Open the rows of one packed dataset.

        Parameters
        ----------
        path : path or str
            The dataset's folder, or its URL.
        check : {"digest", "size"}
            The property to compare with the manifest before a shard's first row is read.
        manifest : Manifest, optional
            The manifest of the dataset, if it is loaded already.
        digest : str
            Expected beginning of the dataset's digest.
        """
        config = {"inputs": [{"path": str(path), "digest": digest}], "check": check}
        return cls(config, manifests=None if manifest is None else [manifest])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def shards(self) -> int:
        """Number of shards and pieces of all inputs."""
        return len(self._ends)

    @property
    def row_bytes(self) -> int:
        """Approximate size of a row in the files, columns included, in bytes."""
        columns = sum(column.bytes for one in self._inputs for column in one.columns)
        return (columns + sum(self._part_bytes(number) for number in range(self.shards))) // max(1, len(self))

    def sizes(self) -> Mapping[str, Lengths]:
        """Return the encoded size of every value, by field of variable size; 0 in shards that will not be read."""
        found: dict[str, list[Lengths]] = {name: [np.empty(0, np.uint32)] for name in self._varying}
        for first, one in zip(self._firsts.tolist(), self._inputs, strict=False):
            known = one.lengths()
            tables = [known] if known is not None else map(self._lengths_of, range(first, first + len(one.samples)))
            for table in tables:
                for name in self._varying:
                    found[name].append(table[name])
        return {name: compact(np.concatenate(lengths)) for name, lengths in found.items()}

    def _lengths_of(self, number: int) -> Mapping[str, Lengths]:
        return dict(zip(self._varying, map(compact, self._lengths(number).T), strict=True))

    def scan(self, number: int) -> None:
        """Compare a shard's digest with the manifest, and record the lengths of its values in the workspace."""
        assert self._workspace is not None
        path = self._workspace.scan(number)
        lengths = self._lengths(number).astype("<i8").tobytes()
        attempt = self._workspace.attempt(path)
        with attempt.open("xb") as file:
            file.write(zlib.crc32(lengths).to_bytes(_SUM_BYTES, "little") + lengths)
            file.flush()
            os.fsync(file.fileno())
        publish(attempt, path)

    def read(self, rows: IntArray, fields: Sequence[str]) -> Columns:
        """Return the encoded values of rows in the given order."""
        out = allocate(self.schema.select(list(fields)), len(rows))
        shards = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(shards).tolist():
            at = np.flatnonzero(shards == number)
            local = rows[at] - self._start(number)
            ascending = np.argsort(local, kind="stable")  # read each row group or chunk only once
            local = local[ascending]
            self._passed += _touched_bytes(local, self._part_bytes(number), self._samples(number))
            if self._passed > _PASSED_BYTES:
                self._release()
            self._reader(number).read(local, fields, out, at[ascending])
        return out

    def batches(self, fields: Sequence[str], chosen: IntArray | None = None) -> Iterator[Columns]:
        """Yield all rows, or the chosen ones, which ascend, in order and in batches of about `BATCH_BYTES`."""
        for number in range(self.shards):
            start, stop = self._start(number), int(self._ends[number])
            rows = np.arange(start, stop) if chosen is None else chosen[slice(*np.searchsorted(chosen, [start, stop]))]
            for some in self._steps(number, rows, fields):
                yield self.read(some, fields)

    def _steps(self, number: int, rows: IntArray, fields: Sequence[str]) -> Iterator[IntArray]:
        one = self._inputs[self._input(number)]
        columns = sum(column.bytes / max(1, column.samples) for column in one.columns)
        step = batch_rows(self._part_bytes(number) / max(1, self._samples(number)) + columns)
        if one.reads_parts and all(self.schema[name].is_small for name in fields):
            step = _BATCH_ROWS  # each batch takes a request
        for first in range(0, len(rows), step):
            yield rows[first : first + step]

    def close(self) -> None:
        """Close the shards."""
        for reader in self._open.values():
            reader.close()
        for one in self._inputs:
            one.close()
        self._open.clear()
        self._passed = 0

    def _release(self) -> None:
        """Release the mapped pages, and close shards that were not read for a while."""
        let_go_of_pages()
        self._releases, self._passed = self._releases + 1, 0
        for number in [number for number in self._open if self._used[number] < self._releases - _IDLE]:
            self._open.pop(number).close()

    def _start(self, number: int) -> int:
        return int(self._ends[number - 1]) if number else 0

    def _samples(self, number: int) -> int:
        return int(self._ends[number]) - self._start(number)

    def _input(self, number: int) -> int:
        """Return the position of the input of a shard."""
        return int(np.searchsorted(self._firsts, number, side="right")) - 1

    def _part_bytes(self, number: int) -> int:
        place = self._input(number)
        return self._inputs[place].part_bytes(number - int(self._firsts[place]))

    def _scanned(self, number: int) -> bool:
        """Return whether a scan has compared the shard's digest."""
        return self._workspace is not None and self._workspace.scan(number).exists()

    def _lengths(self, number: int) -> npt.NDArray[np.int64]:
        """Return the encoded sizes of a shard's values of variable size, (rows, fields)."""
        if self._scanned(number):
            assert self._workspace is not None
            path = self._workspace.scan(number)
            data = path.read_bytes()
            if zlib.crc32(data[_SUM_BYTES:]).to_bytes(_SUM_BYTES, "little") != data[:_SUM_BYTES]:
                raise damaged(path)
            table = np.frombuffer(data, "<i8", offset=_SUM_BYTES)
            return table.reshape(self._samples(number), len(self._varying))
        table = np.zeros((self._samples(number), len(self._varying)), np.int64)
        if self._read_shards is not None and number not in self._read_shards:
            return table
        reader = self._reader(number)
        assert isinstance(reader, DatasetReader)  # the table has the lengths of pieces
        unknown = []
        for column, name in enumerate(self._varying):
            lengths = reader.lengths(name)
            if lengths is None:
                unknown.append((column, name))
            else:
                table[:, column] = lengths
        start = self._start(number)
        names = [name for _, name in unknown]
        for rows in self._steps(number, np.arange(len(table)), names) if names else ():
            values = self.read(start + rows, names)
            for column, name in unknown:
                table[rows, column] = [len(value) for value in values[name]]
        return table

    def _reader(self, number: int) -> RowReader:
        """Return the reader of a shard. Check and open it at the first call."""
        reader = self._open.pop(number, None)
        if reader is None:
            place = self._input(number)
            compare = self._digests and number not in self._compared and not self._scanned(number)
            part = number - int(self._firsts[place])
            reader = self._inputs[place].open(part, self.schema, compare=compare)
            self._compared.add(number)
            let_go_of_pages()  # the positions of the values may be spread over the whole file
        self._used[number] = self._releases
        self._open[number] = reader
        if len(self._open) > self._most_open:
            self._open.popitem(last=False)[1].close()
        return reader


def read_column(path: Path, manifest: Manifest, name: str) -> Any:
    """Return all values of one field of a packed dataset. The digests of shards are not compared.

    Returns
    -------
    ndarray, (rows, *shape), or list of bytes
        An array for a fixed field, the encoded values for any other.
    """
    field = manifest.schema[name]
    with closing(PackedRows.of(path, check="size", manifest=manifest)) as rows:
        if field.is_fixed:
            return np.concatenate([allocate([field], 0)[name], *(batch[name] for batch in rows.batches([name]))])
        return [bytes(value) for batch in rows.batches([name]) for value in batch[name]]


def _touched_bytes(rows: IntArray, size: int, samples: int) -> int:
    """Estimate how many bytes of a shard's file are mapped when these ascending rows are read."""
    if not (size and len(rows)):
        return 0
    row_bytes = size / max(1, samples)
    span = (int(rows[-1]) - int(rows[0]) + 1) * row_bytes
    return int(min(span, len(rows) * (row_bytes + _AROUND_BYTES)))


def batch_rows(row_bytes: float) -> int:
    """Return the number of rows of a size that take about `BATCH_BYTES`, or fewer if rows are tiny."""
    return max(1, min(_BATCH_ROWS, int(BATCH_BYTES / max(row_bytes, 1e-9))))
