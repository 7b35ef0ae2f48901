"""Superseded rows: rows that shards still store, but that are no rows of the dataset any more."""

import numpy as np

from readers.formats.checks import corrupt
from readers.formats.npy import map_npy
from shardspec.columns import IntArray
from shardspec.entries import Shard
from shardspec.errors import DatasetChangedError, DatasetError
from shardspec.layout import Layout, Stamp
from shardspec.manifest import Manifest
from shardspec.wording import counted

_NONE = np.empty(0, np.int64)
_OPENINGS = 10
"""Attempts to open a dataset that others keep replacing."""


def load_superseded(layout: Layout, manifest: Manifest) -> IntArray:
    """The superseded rows of a dataset, mapped: their numbers among the rows that its shards store, ascending.

    Returns
    -------
    int64 array, (n,)

    Raises
    ------
    DatasetError
        If the file that lists them is not what the manifest says.
    """
    if manifest.superseded is None:
        return _NONE
    path, stored = layout.file(manifest.superseded), sum(shard.stored_samples for shard in manifest.shards)
    rows = map_npy(path, np.dtype("<i8"), (manifest.superseded_samples,))
    if rows[0] < 0 or rows[-1] >= stored or (rows[1:] <= rows[:-1]).any():
        raise corrupt(
            path, f"superseded rows ascending within 0 to {stored - 1}", f"{rows[0]} to {rows[-1]}, or others"
        )
    return rows


def load_whole(layout: Layout, verify: str) -> tuple[Manifest, IntArray, Stamp, dict[str, Stamp]]:
    """A manifest, the superseded rows, the manifest's stamp and the stamps of all parts' files, taken while it was there.

    `verify` is that of `readers.formats.pool.ShardPool`; if it is ``"off"``, no stamps of files are taken.

    Raises
    ------
    DatasetError
        If the dataset cannot be read, a size differs, or other datasets keep replacing it.
    """
    for _ in range(_OPENINGS):
        manifest, stamp = layout.load_stamped()
        wrong, stamps, superseded = None, {}, _NONE
        try:
            stamps = layout.check_sizes(*manifest.parts) if verify != "off" else {}
            if verify == "digest" and manifest.superseded is not None:
                layout.check_digest(manifest.superseded)
            superseded = load_superseded(layout, manifest)
        except DatasetError as error:
            wrong = error
        if layout.stamp_manifest() == stamp:
            if wrong is not None:
                raise wrong
            return manifest, superseded, stamp, stamps
    raise DatasetChangedError(
        f"{layout.root}: expected a dataset that stays, found it replaced by another {_OPENINGS} times: open it later"
    )


def find_superseded(layout: Layout, manifest: Manifest, shard: Shard, superseded: IntArray) -> IntArray:
    """The superseded rows of one shard, numbered within it.

    Raises
    ------
    ShardCorruptError
        If they are not as many as the manifest says.
    """
    start = manifest.stored_starts[shard.name]
    first, last = np.searchsorted(superseded, [start, start + shard.stored_samples]).tolist()
    rows: IntArray = superseded[first:last] - start
    expected = shard.stored_samples - shard.samples
    if len(rows) != expected:
        assert manifest.superseded is not None
        path = layout.file(manifest.superseded)
        raise corrupt(path, f"{counted(expected, 'superseded row')} of {shard.name}", f"{len(rows)}")
    return rows


def rows_before(superseded: IntArray) -> IntArray:
    """How many rows that are not superseded lie before each superseded one.

    Parameters
    ----------
    superseded : int64 array, (m,)
        Numbers among all rows that are stored, ascending.
    """
    before: IntArray = superseded - np.arange(len(superseded))
    return before


def stored_rows(rows: IntArray, before: IntArray) -> IntArray:
    """Where rows are stored, among all rows that are stored.

    Parameters
    ----------
    rows : int64 array, (n,)
        Numbers among the rows that are not superseded, in any order.
    before : int64 array, (m,)
        `rows_before` of the superseded ones.
    """
    # A row with as many or more rows before it as a superseded one lies behind that one.
    return rows + np.searchsorted(before, rows, side="right")
