"""Groups of samples: those that have one value in a field, or share values of several."""

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
    """The groups of a dataset: its samples by their values in one field, or in several (`join_groups`).

    Attributes
    ----------
    names : sequence of str
        Each group's value, as text. They differ.
    of_row : (rows,) int64
        Each row's group; `NO_GROUP` if the row has no value: ``<field>_valid`` is false, or the text is empty.
    """

    names: Sequence[str]
    of_row: IntArray

    def sizes(self) -> IntArray:
        """Samples of each group."""
        return np.bincount(self.of_row[self.of_row != NO_GROUP], minlength=len(self.names))

    @property
    def without(self) -> int:
        """Samples without a value."""
        return int(np.count_nonzero(self.of_row == NO_GROUP))


def count_pairs(ones: IntArray, others: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """The different pairs of two columns of numbers from -1 on, in ascending order: both numbers, and how often."""
    width = int(others.max(initial=0)) + 2
    pairs, counts = np.unique(ones.astype(np.int64) * width + others + 1, return_counts=True)
    return pairs // width, pairs % width - 1, counts


def join_groups(several: Sequence[Groups]) -> Groups:
    """The groups of samples that share a value in any of several fields, directly or through other samples.

    If a person is in two videos, and one of these shows another person too, all samples of both persons are one group:
    only so do parts share neither a video nor a person. A joined group is called by the first, in alphabetical order,
    of its names in the first field.

    Parameters
    ----------
    several : sequence of Groups
        The groups by each field; every row has a value in each.
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
    """The fields that an option names, one or several, each once.

    Raises
    ------
    UsageError
        If it names none.
    """
    names = (by,) if isinstance(by, str) else tuple(by) if isinstance(by, Sequence) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise UsageError(f"by: expected the name of a field, or a list of names, found {shorten(by)}")
    return tuple(dict.fromkeys(names))


def in_turn(order: IntArray) -> Iterator[int]:
    """The groups of an order, some made at a time: Python's numbers take five times the memory."""
    for start in range(0, len(order), 1024):
        yield from order[start : start + 1024].tolist()
