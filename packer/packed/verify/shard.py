"""The deep part of ``packer verify``: every value of a shard, and the keys of all."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.assembly.rows import batch_rows
from packer.packed.verify.values import ValueChecks
from readers.formats.base import ShardReader, open_shard
from shardspec.columns import Columns, allocate
from shardspec.entries import Shard
from shardspec.errors import DatasetError
from shardspec.layout import Layout
from shardspec.manifest import Manifest

FAULTS_LISTED = 20
"""Values of one field that are listed for one shard; the rest are counted."""

_KEY_BYTES = 16
_KEY = np.dtype((np.void, _KEY_BYTES))


def check_shard(
    layout: Layout, manifest: Manifest, shard: Shard, start: int, index: Mapping[str, npt.NDArray[Any]]
) -> tuple[list[str], npt.NDArray[Any]]:
    """Decode and check every value of one shard.

    Parameters
    ----------
    start : int
        The dataset's number of the shard's first row.
    index : dict of str to ndarray
        The index of scalar fields, for the whole dataset.

    Returns
    -------
    problems : list of str
    keys : ndarray, (rows,)
        A digest of each sample's key, as far as the shard could be read.
    """
    path = layout.shard(shard, manifest.format)
    faults: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    keys = np.zeros(shard.samples, _KEY)
    rows_read = 0
    checks = ValueChecks(manifest.schema)
    reader: ShardReader | None = None
    try:
        reader = open_shard(layout, manifest, shard)
        step = batch_rows(shard)
        for first in range(0, shard.samples, step):
            stop = min(first + step, shard.samples)
            columns = _read(reader, manifest, first, stop)
            if "key" in columns:
                keys[first:stop] = np.array([_digest(key) for key in columns["key"]], _KEY)
            rows_read = stop
            found = [*checks.faults(columns), *_index_faults(columns, index, start + first)]
            for row, field, message in found:
                counts[field] += 1
                if counts[field] <= FAULTS_LISTED:
                    place = f"{path}, row {first + row}{_name_key(columns, row)}"
                    faults.setdefault(field, []).append(f"{place}, field {field!r}: {message}")
    except DatasetError as error:
        faults.setdefault("", []).append(str(error))
    except Exception as error:  # a library's own complaint about a shard that only looks right
        faults.setdefault("", []).append(
            f"{path}: expected rows that can be read, found {type(error).__name__}: {error}"
        )
    finally:
        if reader is not None:
            reader.close()
    more = [
        f"{path}, field {field!r}: and {count - FAULTS_LISTED} more"
        for field, count in counts.items()
        if count > FAULTS_LISTED
    ]
    return [text for texts in faults.values() for text in texts] + more, keys[:rows_read]


def check_keys(shards: Sequence[tuple[Shard, int, npt.NDArray[Any]]], layout: Layout, manifest: Manifest) -> list[str]:
    """Every key that more than one sample has.

    Parameters
    ----------
    shards : sequence of (Shard, int, ndarray)
        Each shard, the dataset's number of its first row, and the digests of its keys.
    """
    if not shards:
        return []
    digests = np.concatenate([keys for _, _, keys in shards])
    rows = np.concatenate([start + np.arange(len(keys)) for _, start, keys in shards])
    words = digests.view(np.uint64).reshape(-1, 2)
    order = np.lexsort((words[:, 1], words[:, 0]))
    words = words[order]
    twins = np.flatnonzero((words[1:] == words[:-1]).all(axis=1))
    texts = [
        f"{layout.root}: expected every key once, found {_key_of(layout, manifest, int(rows[order[twin]]))} in rows "
        f"{rows[order[twin]]} and {rows[order[twin + 1]]}"
        for twin in twins[:FAULTS_LISTED].tolist()
    ]
    if len(twins) > FAULTS_LISTED:
        texts.append(f"{layout.root}: and {len(twins) - FAULTS_LISTED} more keys that are there twice")
    return texts


def _read(reader: ShardReader, manifest: Manifest, first: int, stop: int) -> Columns:
    out = allocate(manifest.schema, stop - first)
    reader.read(np.arange(first, stop), manifest.schema.names, out, np.arange(stop - first))
    return out


def _index_faults(columns: Columns, index: Mapping[str, npt.NDArray[Any]], start: int) -> list[tuple[int, str, str]]:
    """Rows whose scalar is another in the index, bit for bit."""
    faults = []
    for name, values in index.items():
        here = columns[name]
        there = np.ascontiguousarray(values[start : start + len(here)])
        if there.dtype != here.dtype or there.tobytes() == here.tobytes():
            continue
        bits = np.dtype((np.void, here.dtype.itemsize))
        for row in np.flatnonzero(there.view(bits) != here.view(bits)).tolist():
            faults.append((row, name, f"expected what the index has, {there[row]}, found {here[row]}"))
    return faults


def _name_key(columns: Columns, row: int) -> str:
    return f" (key {bytes(columns['key'][row]).decode(errors='replace')!r})" if "key" in columns else ""


def _key_of(layout: Layout, manifest: Manifest, row: int) -> str:
    for shard in manifest.shards:
        if row < shard.samples:
            reader = open_shard(layout, manifest, shard)
            out: Columns = {"key": [b""]}
            reader.read(np.array([row]), ["key"], out, np.zeros(1, np.int64))
            key = bytes(out["key"][0]).decode(errors="replace")
            reader.close()
            return repr(key)
        row -= shard.samples
    return "?"


def _digest(key: Any) -> bytes:
    return hashlib.blake2b(key, digest_size=_KEY_BYTES).digest()
