"""Strata, of which every split gets its share."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from shardspec.columns import IntArray
from shardspec.errors import UsageError
from shardspec.splits.groups import NO_GROUP, Groups, count_pairs, in_turn
from shardspec.wording import shorten


class Shares:
    """Shortage of each split by stratum and in total, as shares of the whole dataset.

    With equal ratios, the splits' distances from their shares, squared and summed, end no larger than they are on
    average if each group is placed at random.
    """

    def __init__(self, strata: Sequence[Mapping[int, int]], sizes: Sequence[int], ratios: Mapping[str, float]) -> None:
        totals: Counter[int | None] = Counter({None: sum(sizes)})
        for has in strata:
            totals.update(has)
        shared: dict[tuple[Any, ...], Mapping[int | None, int]] = {}
        self._of = [
            shared.setdefault((size, *has.items()), dict([(None, size), *has.items()]))
            for has, size in zip(strata, sizes, strict=True)
        ]
        self._totals = totals
        self._lacking = {
            name: {stratum: ratio * total for stratum, total in totals.items()} for name, ratio in ratios.items()
        }

    def place(self, group: int, splits: Sequence[str]) -> str:
        """Put a group into the split, among some, that lacks most of what it has."""
        has = self._of[group]

        def lacks(split: str) -> float:
            lacking = self._lacking[split]
            return sum((count * lacking[stratum] / self._totals[stratum] for stratum, count in has.items()), 0.0)

        best = max(splits, key=lacks)
        for stratum, count in has.items():
            self._lacking[best][stratum] -= count
        return best


def rank_strata(strata: Groups) -> IntArray:
    """Each row's stratum, numbered by the names in alphabetical order; `NO_GROUP` is a stratum, too."""
    places = np.empty(len(strata.names) + 1, np.int64)
    places[sorted(range(len(strata.names)), key=strata.names.__getitem__)] = np.arange(len(strata.names))
    places[NO_GROUP] = NO_GROUP
    return places[strata.of_row]


def count_strata(groups: Groups, ranked: IntArray) -> list[dict[int, int]]:
    """The samples that each group has of each stratum, the strata ascending."""
    none: dict[int, int] = {}
    out = [none] * len(groups.names)
    shared: dict[tuple[tuple[int, int], ...], dict[int, int]] = {}
    if len(ranked):
        found = count_pairs(groups.of_row, ranked)
        for group, triples in groupby(zip(*map(in_turn, found), strict=True), itemgetter(0)):
            has = {stratum: count for _, stratum, count in triples}
            out[group] = shared.setdefault(tuple(has.items()), has)
    return out


def check_strata(strata: Groups, ranked: IntArray, groups: Groups | None, parts: int) -> None:
    """Refuse strata that have too few groups, or samples, for every split to get one."""
    units = ranked if groups is None else count_pairs(ranked, groups.of_row)[0]
    found, counts = np.unique(units, return_counts=True)
    few = found[counts < parts]
    if len(few):
        names = sorted(strata.names)
        shown = "no value" if few[0] == NO_GROUP else shorten(names[few[0]])
        what = "sample" if groups is None else "group"
        more = f" (and too few of {len(few) - 1} more)" if len(few) > 1 else ""
        raise UsageError(
            f"stratify: expected {parts} {what}s or more with each value, one for each part, "
            f"found {counts[counts < parts][0]} with {shown}{more}: take fewer parts, or leave out stratify"
        )
