"""The deep part of ``packer verify``: every value of a shard, and the keys of all."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.assembly.packed_rows import batch_rows
from packer.packed.verify.values import Fault, ValueChecks
from packer.workspace.hashing import DIGEST_BYTES, digest
from readers.formats.shards import ShardReader, open_shard
from shardspec.columns import Columns, allocate
from shardspec.entries import Column, Shard
from shardspec.errors import DatasetError
from shardspec.layout import Layout
from shardspec.manifest import Manifest

FAULTS_LISTED = 20
"""How many values of one field are listed for one shard; the rest are counted."""

_KEY = np.dtype((np.void, DIGEST_BYTES))


class ShardWalk:
    """A shard's rows, read batch by batch, and what is wrong with their values.

    Parameters
    ----------
    layout : Layout
    manifest : Manifest
    shard : Shard or Column

    Attributes
    ----------
    schema : Schema
        The fields that lie there.

    Raises
    ------
    DatasetError
        If the shard cannot be opened.
    """

    def __init__(self, layout: Layout, manifest: Manifest, shard: Shard | Column) -> None:
        self.schema = manifest.shard_schema if isinstance(shard, Shard) else manifest.schema.select([shard.field])
        self._shard = (layout, manifest, shard)
        self._reader = open_shard(*self._shard)
        self._unchecked: ShardReader | None = None
        self._checks = ValueChecks(self.schema)

    def batches(self) -> Iterator[range]:
        """The numbers of all rows, in ranges that suit one `read`."""
        shard = self._shard[2]
        step = batch_rows(shard)
        for first in range(0, shard.samples, step):
            yield range(first, min(first + step, shard.samples))

    def read(self, rows: range, fields: Sequence[str] | None = None) -> Columns:
        """The encoded values of some rows, for all fields unless some are named."""
        return self._read(self._reader, rows, self.schema.names if fields is None else fields)

    def faults(self, columns: Columns) -> Iterator[Fault]:
        """Yield the faults of the values of a batch, whose rows are numbered from 0."""
        return self._checks.faults(columns)

    def key(self, row: int) -> str | None:
        """The key of a row; None if it cannot be read. Ignores the format's checksums: they cover more than the key."""
        if "key" not in self.schema:
            return None
        try:
            if self._unchecked is None:
                self._unchecked = open_shard(*self._shard, checksums=False)
            (key,) = keys_in(self._read(self._unchecked, range(row, row + 1), ["key"]))
        except DatasetError:
            return None
        return key

    def close(self) -> None:
        """Close the shard."""
        self._reader.close()
        if self._unchecked is not None:
            self._unchecked.close()

    def _read(self, reader: ShardReader, rows: range, fields: Sequence[str]) -> Columns:
        out = allocate(self.schema.select(list(fields)), len(rows))
        reader.read(np.arange(rows.start, rows.stop), fields, out, np.arange(len(rows)))
        return out


def keys_in(columns: Columns) -> list[str]:
    """The keys of a batch, as text; empty if it has none."""
    return [bytes(key).decode(errors="replace") for key in columns.get("key", ())]


def check_shard(
    layout: Layout, manifest: Manifest, shard: Shard | Column, start: int, index: Mapping[str, npt.NDArray[Any]]
) -> tuple[list[str], npt.NDArray[Any]]:
    """Decode and check every value of one shard, or of one column.

    Parameters
    ----------
    start : int
        The row in the dataset of the shard's first row.
    index : dict of str to ndarray
        The index of scalar fields, for the whole dataset.

    Returns
    -------
    problems : list of str
    keys : ndarray, (rows,)
        A digest of each sample's key, up to where the shard could be read.
    """
    path = layout.shard(shard, manifest.format)
    faults: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    digests = np.zeros(shard.samples, _KEY)
    rows_read = 0
    try:
        with closing(ShardWalk(layout, manifest, shard)) as walk:
            for rows in walk.batches():
                columns = walk.read(rows)
                keys = keys_in(columns)
                if keys:
                    digests[rows.start : rows.stop] = np.array([digest(key) for key in columns["key"]], _KEY)
                rows_read = rows.stop
                found = [*walk.faults(columns), *_index_faults(columns, index, start + rows.start)]
                for row, field, message in found:
                    counts[field] += 1
                    if counts[field] <= FAULTS_LISTED:
                        place = f"{path}, row {rows[row]}{f' (key {keys[row]!r})' if keys else ''}"
                        faults.setdefault(field, []).append(f"{place}, field {field!r}: {message}")
    except DatasetError as error:
        faults.setdefault("", []).append(str(error))
    more = [
        f"{path}, field {field!r}: and {count - FAULTS_LISTED} more"
        for field, count in counts.items()
        if count > FAULTS_LISTED
    ]
    return [text for texts in faults.values() for text in texts] + more, digests[:rows_read]


def check_keys(shards: Sequence[tuple[Shard, int, npt.NDArray[Any]]], layout: Layout, manifest: Manifest) -> list[str]:
    """Report every key that more than one sample has.

    Parameters
    ----------
    shards : sequence of (Shard, int, ndarray)
        Each shard, the row in the dataset of its first row, and the digests of its keys.
    """
    if not shards:
        return []
    digests = np.concatenate([keys for _, _, keys in shards])
    rows = np.concatenate([start + np.arange(len(keys)) for _, start, keys in shards])
    words = digests.view(np.uint64).reshape(-1, 2)
    order = np.lexsort((words[:, 1], words[:, 0]))
    words = words[order]
    twins = np.flatnonzero((words[1:] == words[:-1]).all(axis=1))

    def key_of(row: int) -> str:
        shard, start = next((shard, start) for shard, start, keys in shards if row < start + len(keys))
        with closing(ShardWalk(layout, manifest, shard)) as walk:
            return repr(walk.key(row - start))

    texts = [
        f"{layout.root}: expected every key once, found {key_of(int(rows[order[twin]]))} in rows "
        f"{rows[order[twin]]} and {rows[order[twin + 1]]}"
        for twin in twins[:FAULTS_LISTED].tolist()
    ]
    if len(twins) > FAULTS_LISTED:
        texts.append(f"{layout.root}: and {len(twins) - FAULTS_LISTED} more keys that are there twice")
    return texts


def _index_faults(columns: Columns, index: Mapping[str, npt.NDArray[Any]], start: int) -> list[Fault]:
    """Rows whose scalar differs from the index in any bit."""
    faults = []
    for name, values in index.items():
        here = columns[name]
        there = np.ascontiguousarray(values[start : start + len(here)])
        if there.dtype != here.dtype or there.tobytes() == here.tobytes():
            continue
        bits = np.dtype((np.void, here.dtype.itemsize))
        for row in np.flatnonzero(there.view(bits) != here.view(bits)).tolist():
            faults.append(Fault(row, name, f"expected what the index has, {there[row]}, found {here[row]}"))
    return faults
