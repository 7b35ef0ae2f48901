"""Assign the samples of a dataset to splits: a pure function of groups, strata, ratios and a seed.

`packer split` and ``ds.split`` use the same rule, so a seed has the same result in both.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from shardspec.columns import IntArray
from shardspec.errors import UsageError
from shardspec.splits.groups import NO_GROUP, Groups, count_pairs, in_turn
from shardspec.wording import counted, shorten

MAX_FOLDS = 100
"""Largest number of folds."""

SPLIT_NAMES = frozenset(("train", "training", "val", "valid", "validation", "dev", "eval", "test", "testing"))
"""Usual names of splits."""


def assign_rows(
    rows: int,
    ratios: Mapping[str, float],
    seed: int,
    *,
    groups: Groups | None = None,
    strata: Groups | None = None,
    labels: IntArray | None = None,
    rest: str | None = None,
) -> IntArray:
    """Return the split of each row, as a position in `ratios`.

    Parameters
    ----------
    rows : int
    ratios : dict of str to float
        Each split's share of the samples; they add up to 1.
    seed : int
    groups : Groups, optional
        Rows that stay in one split; by default every row is assigned by itself.
    strata : Groups, optional
        Give every split its share of each stratum: within two samples for single rows, or as closely as whole groups
        allow.
    labels : int array, (rows,), optional
        Class of each row, used with `groups` and without `strata`. Every split gets each class if groups allow.
    rest : str, optional
        Split for all other rows; it may be empty.

    Raises
    ------
    UsageError
        If there are fewer groups, or fewer groups of a stratum, than splits.
    """
    parts = len([name for name in ratios if name != rest])
    if strata is not None:
        ranked = rank_strata(strata)
        check_strata(strata, ranked, groups, parts)
    if groups is None:
        if rows < parts:
            raise UsageError(
                expected="as many samples as splits or more", found=f"{rows} for {parts}", hint="take fewer splits"
            )
        return deal(rows, np.zeros(rows, np.int64) if strata is None else ranked, list(ratios.values()), seed)
    counts = None
    if strata is not None or labels is not None:
        counts = count_strata(groups, ranked if labels is None or strata is not None else labels.astype(np.int64))
    chosen = assign_groups(
        groups.names, groups.sizes().tolist(), ratios, seed, counts, rest, None if strata is None else counts
    )
    places = {name: place for place, name in enumerate(ratios)}
    return np.fromiter(map(places.__getitem__, chosen), np.int64, len(chosen))[groups.of_row]


def fold_ratios(folds: int) -> dict[str, float]:
    """Return equal shares for folds ``fold-0``, ``fold-1``, …; `UsageError` if their number is invalid."""
    if type(folds) is not int or not 2 <= folds <= MAX_FOLDS:
        raise UsageError(option="folds", expected=f"an integer of 2 to {MAX_FOLDS}", found=shorten(folds))
    return {f"fold-{number}": 1 / folds for number in range(folds)}


def assign_groups(
    names: Sequence[str],
    sizes: Sequence[int],
    ratios: Mapping[str, float],
    seed: int,
    classes: Sequence[Collection[int]] | None = None,
    rest: str | None = None,
    strata: Sequence[Mapping[int, int]] | None = None,
) -> list[str]:
    """Return the split of each group.

    Large groups are placed first, each in the split that lacks most samples, so that small groups even out what large
    ones leave. Among groups whose sizes have the same number of binary digits, the order is that of SHA-256 of (seed,
    name), so each seed gives another assignment. No split stays empty. If as many groups of a class are left as splits
    lack the class, these splits get them.

    With `strata`, each group goes to the split that lacks most of the group's strata and of its size, summed as shares
    of the whole dataset's.

    Parameters
    ----------
    names, sizes : sequences of str and int
        Unique names of the groups, in any order, and their numbers of samples.
    ratios, rest : dict of str to float, str
        See `assign_rows`.
    classes : sequence of collections of int, optional
        Distinct classes of each group.
    strata : sequence of dict of int to int, optional
        Samples of each group in each stratum.
    """
    wanted = [name for name in ratios if name != rest]
    if len(names) < len(wanted):
        raise UsageError(
            expected="as many groups as splits or more",
            found=f"{counted(len(names), 'group')} for {counted(len(wanted), 'split')}",
            hint="split by a field with more values",
        )
    total = sum(sizes)
    lacking = {name: ratio * total for name, ratio in ratios.items()}
    empty = set(wanted)
    chosen = [""] * len(names)
    shares = None if strata is None else ClassQuota(strata, sizes, ratios)
    needs = _ClassNeeds(classes or [()] * len(names), wanted)
    order = _draw_order(names, sizes, seed)
    for position, group in enumerate(in_turn(order)):
        must_fill = len(order) - position <= len(empty)
        open_splits = [name for name in ratios if name in empty or not must_fill]
        open_splits = needs.choose(group, open_splits)
        split = max(open_splits, key=lacking.__getitem__) if shares is None else shares.place(group, open_splits)
        empty.discard(split)
        lacking[split] -= sizes[group]
        chosen[group] = split
        needs.place(group, split)
    return chosen


class _ClassNeeds:
    """Splits that lack each class, and the number of groups of each class that are still to be placed."""

    def __init__(self, classes: Sequence[Collection[int]], splits: Iterable[str]) -> None:
        self._classes = classes
        self._left = Counter(label for of in classes for label in of)
        self._lacking = {label: set(splits) for label in self._left}

    def choose(self, group: int, splits: list[str]) -> list[str]:
        """Return the splits that need most of the group's classes now, or all splits if none does."""
        due = [self._lacking[label] for label in self._classes[group] if self._left[label] <= len(self._lacking[label])]
        counts = [sum(split in lacking for lacking in due) for split in splits]
        return [split for split, count in zip(splits, counts, strict=True) if count == max(counts)]

    def place(self, group: int, split: str) -> None:
        """Record the split of a group."""
        for label in self._classes[group]:
            self._left[label] -= 1
            self._lacking[label].discard(split)


def _draw_order(names: Iterable[str], sizes: Sequence[int], seed: int) -> IntArray:
    draws = np.fromiter((draw(seed, name)[:16] for name in names), "S16", len(sizes))
    digits = np.fromiter((-size.bit_length() for size in sizes), np.int8, len(sizes))
    return np.lexsort((draws, digits))


class ClassQuota:
    """Samples that each split lacks, by stratum and in total.

    With equal ratios, the sum of the splits' squared deviations from their shares is at most the average sum for random
    placement.
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
        """Put a group into the split that lacks most of the group's strata, and return the split."""
        has = self._of[group]

        def lacks(split: str) -> float:
            lacking = self._lacking[split]
            return sum((count * lacking[stratum] / self._totals[stratum] for stratum, count in has.items()), 0.0)

        best = max(splits, key=lacks)
        for stratum, count in has.items():
            self._lacking[best][stratum] -= count
        return best


def rank_strata(strata: Groups) -> IntArray:
    """Number each row's stratum by the sorted names. `NO_GROUP` is a stratum too."""
    places = np.empty(len(strata.names) + 1, np.int64)
    places[sorted(range(len(strata.names)), key=strata.names.__getitem__)] = np.arange(len(strata.names))
    places[NO_GROUP] = NO_GROUP
    return places[strata.of_row]


def count_strata(groups: Groups, ranked: IntArray) -> list[dict[int, int]]:
    """Count the samples of each group in each stratum, in ascending order of strata."""
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
    """Raise `UsageError` if a stratum has too few groups, or samples, for every split to get one."""
    units = ranked if groups is None else count_pairs(ranked, groups.of_row)[0]
    found, counts = np.unique(units, return_counts=True)
    few = found[counts < parts]
    if len(few):
        names = sorted(strata.names)
        shown = "no value" if few[0] == NO_GROUP else shorten(names[few[0]])
        what = "sample" if groups is None else "group"
        more = f" (and too few of {len(few) - 1} more)" if len(few) > 1 else ""
        raise UsageError(
            option="stratify",
            expected=f"{parts} {what}s or more with each value, one for each part",
            found=f"{counts[counts < parts][0]} with {shown}{more}",
            hint="take fewer parts, or leave out stratify",
        )


def deal(rows: int, strata: IntArray, shares: Sequence[float], seed: int) -> IntArray:
    """Assign rows in turn, stratum after stratum, each in random order; return the position of each row's split."""
    order = np.lexsort((_draws(seed, rows), strata))
    out = np.empty(rows, np.int64)
    out[order] = _turns(rows, shares)
    return out


def _turns(count: int, shares: Sequence[float]) -> IntArray:
    """Return a sequence of positions in which every prefix meets each share within one turn.

    This is the quota method of Balinski and Young. Among the positions that would not exceed their share, the one whose
    next turn is due first comes next. Any run of turns therefore meets each share within two turns.
    """
    if len(set(shares)) == 1:
        return np.arange(count, dtype=np.int64) % len(shares)
    had = [0] * len(shares)
    places = range(len(shares))
    out = np.empty(count, np.int64)
    for turn in range(count):
        due = [place for place in places if had[place] < shares[place] * (turn + 1)]
        best = min(due or places, key=lambda place: (had[place] + 1) / shares[place])
        had[best] += 1
        out[turn] = best
    return out


def _draws(seed: int, rows: int) -> npt.NDArray[np.uint64]:
    """Draw a number for each row, the same on every machine, with splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    key = int.from_bytes(draw(seed, "rows")[:8], "little")
    state = np.arange(rows, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def draw(seed: int, name: str) -> bytes:
    """Return 32 pseudo-random bytes for a name: SHA-256 of the seed and the name."""
    return hashlib.sha256(f"{seed}/{name}".encode("utf-8", "surrogateescape")).digest()
