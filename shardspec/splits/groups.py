"""Groups of samples that have the same value in a field, or share values of several fields."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardspec.columns import IntArray
from shardspec.errors import UsageError
from shardspec.wording import shorten

NO_GROUP = -1


@dataclass(frozen=True)
class Groups:
    """Samples of a dataset, grouped by one field, or by several (`join_groups`).

    Attributes
    ----------
    names : sequence of str
        Value of each group, as text. All differ.
    of_row : int64 array, (rows,)
        Group of each row; `NO_GROUP` if ``<field>_valid`` is false or the text is empty.
    """

    names: Sequence[str]
    of_row: IntArray

    def sizes(self) -> IntArray:
        """Return the number of samples of each group."""
        return np.bincount(self.of_row[self.of_row != NO_GROUP], minlength=len(self.names))

    @property
    def without(self) -> int:
        """Number of samples without a value."""
        return int(np.count_nonzero(self.of_row == NO_GROUP))


def count_pairs(ones: IntArray, others: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return the distinct pairs in two columns of integers ≥ -1, in ascending order, and the count of each pair."""
    width = int(others.max(initial=0)) + 2
    pairs, counts = np.unique(ones.astype(np.int64) * width + others + 1, return_counts=True)
    return pairs // width, pairs % width - 1, counts


def join_groups(several: Sequence[Groups]) -> Groups:
    """Group samples that share a value in any of several fields, directly or through other samples.

    If a person is in two videos, and one of these shows another person too, all samples of both people are one group.
    Otherwise parts could share a video or a person. A joined group has the alphabetically first of its names in the
    first field.

    Parameters
    ----------
    several : sequence of Groups
        Groups by each field, without rows in `NO_GROUP`.
    """
    first = several[0]
    if len(several) == 1:
        return first
    root = array("q", range(sum(len(groups.names) for groups in several)))

    def find(node: int) -> int:
        while root[node] != node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    before = len(first.names)
    for groups in several[1:]:
        ones, others, _ = count_pairs(first.of_row, groups.of_row)
        for one, other in zip(in_turn(ones), in_turn(others), strict=True):
            root[find(before + other)] = find(one)
        before += len(groups.names)
    roots = np.fromiter(map(find, range(len(first.names))), np.int64, len(first.names))
    _, begins, of_group = np.unique(roots, return_index=True, return_inverse=True)
    ranks = np.empty(len(begins), np.int64)
    ranks[np.argsort(begins)] = np.arange(len(begins))
    of_group = ranks[of_group]
    called: list[str] = []
    for number, name in zip(in_turn(of_group), first.names, strict=True):
        if number == len(called):
            called.append(name)
        else:
            called[number] = min(name, called[number])
    return Groups(called, of_group[first.of_row])


def names_of(by: str | Sequence[str]) -> tuple[str, ...]:
    """Return the distinct fields in an option, which is a name or a list of names; `UsageError` otherwise."""
    names = (by,) if isinstance(by, str) else tuple(by) if isinstance(by, Sequence) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise UsageError(option="by", expected="the name of a field, or a list of names", found=shorten(by))
    return tuple(dict.fromkeys(names))


def in_turn(order: IntArray) -> Iterator[int]:
    """Iterate over an array as Python integers, in chunks, because a list takes five times the memory."""
    for start in range(0, len(order), 1024):
        yield from order[start : start + 1024].tolist()
