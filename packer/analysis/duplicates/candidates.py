"""Pairs of rows whose hashes or digests are near, and which must still be checked."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from packer.analysis.duplicates.search import Hashes, near_hashes
from shardspec.columns import IntArray

RowPairs = tuple[IntArray, IntArray]


def equal_rows(values: npt.NDArray[np.void], group: IntArray) -> RowPairs:
    """Pair each row with the first row of another group that has an equal value, if there is one."""
    pairs: list[tuple[int, int]] = []
    for rows in _rows_of(np.unique(values, return_inverse=True)[1]):
        pairs += _partners(rows, rows, group)
    return _as_pairs(pairs)


def near_rows(hashes: Hashes, rows: IntArray, group: IntArray) -> RowPairs:
    """Pair rows whose hashes are near.

    The first hash of one row is compared with all hashes of the other. Rows with an equal hash are compared as one, and
    each row is paired with the first row of another group that is near, so that many equal images do not make pairs of
    each with each.

    Parameters
    ----------
    hashes : (m, k) uint64
    rows : (m,) int64
        The rows that have hashes.
    group : (n,) int64
        Group of every row.
    """
    own = hashes[:, 0]
    distinct, place = np.unique(own, return_inverse=True)
    rows_of = [rows[members] for members in _rows_of(place)]
    pairs: list[tuple[int, int]] = []
    for members in rows_of:
        pairs += _partners(members, members, group)
    # Hashes of a single group can be left out early if they meet another of that group; others get a group of their own.
    groups = np.array([group[m[0]] if (group[m] == group[m[0]]).all() else -1 - at for at, m in enumerate(rows_of)])
    inner = hashes[:, 1:].ravel()
    owner = np.concatenate([np.arange(len(distinct)), np.repeat(place, hashes.shape[1] - 1)])
    is_own = np.arange(len(owner)) < len(distinct)
    ones, others = near_hashes(np.concatenate([distinct, inner]), groups[owner])
    useful = is_own[ones] | is_own[others]
    met = np.unique(np.sort(np.column_stack([owner[ones], owner[others]])[useful], axis=1), axis=0)
    for one, other in met[met[:, 0] != met[:, 1]].tolist():
        pairs += _partners(rows_of[one], rows_of[other], group)
        pairs += _partners(rows_of[other], rows_of[one], group)
    return _as_pairs(pairs)


def _rows_of(place: IntArray) -> list[IntArray]:
    """Return the positions of each number from 0 on."""
    order = np.argsort(place, kind="stable")
    return np.split(order, np.cumsum(np.bincount(place))[:-1]) if len(place) else []


def _partners(rows: IntArray, others: IntArray, group: IntArray) -> list[tuple[int, int]]:
    """Pair each row with the first of the other rows that has another group."""
    first = int(others[0])
    if len(rows) == 1 == len(others):
        return [(int(rows[0]), first)] if group[rows[0]] != group[first] else []
    second = np.flatnonzero(group[others] != group[first])[:1]
    found = [(row, first) for row in rows[group[rows] != group[first]].tolist()]
    if len(second):
        found += [(row, int(others[second[0]])) for row in rows[group[rows] == group[first]].tolist()]
    return found


def _as_pairs(pairs: Iterable[tuple[int, int]]) -> RowPairs:
    """Return distinct pairs in ascending order, the smaller row of each first."""
    found = np.array(list(pairs), np.int64).reshape(-1, 2)
    found = np.unique(np.sort(found, axis=1), axis=0)
    return found[:, 0], found[:, 1]


def united(*several: RowPairs) -> RowPairs:
    """Return the distinct pairs of several lists."""
    return _as_pairs(np.column_stack([np.concatenate([one[at] for one in several]) for at in (0, 1)]).tolist())
