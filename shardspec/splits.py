"""Which sample goes into which split of a dataset: a pure function of groups, strata, ratios and a seed.

The pack stage and the readers both split datasets. Both use this one rule, so a seed gives the same assignment in both.
"""

import hashlib
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from shardspec.columns import IntArray
from shardspec.errors import UsageError
from shardspec.wording import counted, shorten

NO_GROUP = -1
MAX_FOLDS = 100
"""Most folds of a dataset."""

SPLIT_NAMES = frozenset(("train", "training", "val", "valid", "validation", "dev", "eval", "test", "testing"))
"""Usual names of splits."""

_FEW_GROUPS = 200
"""So many groups are exchanged in pairs, if the ratios are missed."""
_MOVES = 64
"""Most groups that are moved, after the exchange of classes, to bring the sizes back to the ratios."""
_NEAR = 64
"""Groups on either side of a size that are considered when a group of about that size is sought."""


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
        for one, other in zip(_in_turn(ones), _in_turn(others), strict=True):
            root[find(before + other)] = find(one)
        before += len(groups.names)
    roots = np.fromiter(map(find, range(len(first.names))), np.int64, len(first.names))
    _, begins, of_group = np.unique(roots, return_index=True, return_inverse=True)
    ranks = np.empty(len(begins), np.int64)
    ranks[np.argsort(begins)] = np.arange(len(begins))
    of_group = ranks[of_group]
    called: list[str] = []
    for number, name in zip(_in_turn(of_group), first.names, strict=True):
        if number == len(called):
            called.append(name)
        else:
            called[number] = min(name, called[number])
    return Groups(called, of_group[first.of_row])


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
    """The split of each row, as a place in `ratios`.

    Parameters
    ----------
    rows : int
    ratios : dict of str to float
        Each split's share of the samples; they add up to 1.
    seed : int
    groups : Groups, optional
        What must stay in one split; by default each row may go anywhere.
    strata : Groups, optional
        Every split gets its share of each of these, as closely as whole groups allow; single rows within two samples.
    labels : int array, (rows,), optional
        With `groups` and without `strata`: each row's class. No split is to lack one.
    rest : str, optional
        The split for everything left out; it may be empty.

    Raises
    ------
    UsageError
        If there are fewer groups, or fewer groups of a stratum, than splits.
    """
    parts = len([name for name in ratios if name != rest])
    if strata is not None:
        ranked = _rank_strata(strata)
        _check_strata(strata, ranked, groups, parts)
    if groups is None:
        if rows < parts:
            raise UsageError(f"expected as many samples as splits or more, found {rows} for {parts}: take fewer splits")
        return _deal(rows, np.zeros(rows, np.int64) if strata is None else ranked, list(ratios.values()), seed)
    counts = classes = None
    if strata is not None:
        counts = _count_strata(groups, ranked)
        classes = [tuple(of) for of in counts]
    elif labels is not None:
        classes = classes_of_groups(groups.of_row, labels, len(groups.names))
    chosen = assign_groups(groups.names, groups.sizes().tolist(), ratios, seed, classes, rest, counts)
    places = {name: place for place, name in enumerate(ratios)}
    return np.array([places[name] for name in chosen], np.int64)[groups.of_row]


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


def fold_ratios(folds: int) -> dict[str, float]:
    """Equal shares for folds called ``fold-0`` and so on.

    Raises
    ------
    UsageError
        If the number of folds is invalid.
    """
    if type(folds) is not int or not 2 <= folds <= MAX_FOLDS:
        raise UsageError(f"folds: expected an integer of 2 to {MAX_FOLDS}, found {shorten(folds)}")
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
    """The split of each group.

    Large groups go first, each to the split that lacks most samples; so the small ones even out what the large ones
    leave, and the ratios are met as closely as whole groups allow, far closer than by a hash of each group alone. Among
    groups whose sizes have the same number of binary digits the order is that of SHA-256 of (seed, name): another seed
    gives another split. No split stays empty. Where few groups leave the ratios missed by more than a tenth of the
    samples, groups of two splits change places as long as that brings both nearer. A split that then lacks a class gets
    a group that has it, in exchange for one of similar size. That group comes from a split that keeps all its classes
    without it, if there is one.

    With `strata`, each group goes to the split that lacks most of what the group has, summed over its strata and its
    size, each as a share of the whole dataset's.

    Parameters
    ----------
    names : sequence of str
        Unique names. Their order does not matter.
    sizes : sequence of int
        Samples of each group.
    ratios : dict of str to float
        Each split's share of the samples; they add up to 1.
    classes : sequence of collections of int, optional
        The classes that each group has samples of.
    rest : str, optional
        The split for everything left out; it may be empty and may lack classes.
    strata : sequence of dict of int to int, optional
        The samples that each group has of each stratum.

    Returns
    -------
    list of str
        A key of `ratios` for each group.

    Raises
    ------
    UsageError
        If there are fewer groups than splits.
    """
    wanted = [name for name in ratios if name != rest]
    if len(names) < len(wanted):
        raise UsageError(
            f"expected as many groups as splits or more, found {counted(len(names), 'group')} for "
            f"{counted(len(wanted), 'split')}: split by a field with more values"
        )
    total = sum(sizes)
    lacking = {name: ratio * total for name, ratio in ratios.items()}
    empty = set(wanted)
    chosen = [""] * len(names)
    shares = None if strata is None else _Shares(strata, sizes, ratios)
    order = _draw_order(names, sizes, seed)
    for position, group in enumerate(_in_turn(order)):
        must_fill = len(order) - position <= len(empty)
        open_splits = [name for name in ratios if name in empty or not must_fill]
        split = max(open_splits, key=lacking.__getitem__) if shares is None else shares.place(group, open_splits)
        empty.discard(split)
        lacking[split] -= sizes[group]
        chosen[group] = split
    if strata is None and len(order) <= _FEW_GROUPS:
        _exchange(order.tolist(), sizes, lacking, chosen)
    if classes is not None:
        _Splits(order, sizes, classes, wanted, lacking, chosen).share_classes()
    return chosen


def _draw_order(names: Iterable[str], sizes: Sequence[int], seed: int) -> IntArray:
    """The order of groups, as `assign_groups` says."""
    drawn = bytearray()
    for name in names:
        drawn += _draw(seed, name)[:16]
    draws = np.frombuffer(drawn, ">u8").reshape(-1, 2)
    digits = np.fromiter((-size.bit_length() for size in sizes), np.int64, len(sizes))
    return np.lexsort((draws[:, 1], draws[:, 0], digits))


def _in_turn(order: IntArray) -> Iterator[int]:
    """The groups of an order, some made at a time: Python's numbers take five times the memory."""
    for start in range(0, len(order), 1024):
        yield from order[start : start + 1024].tolist()


def _exchange(order: Sequence[int], sizes: Sequence[int], lacking: dict[str, float], chosen: list[str]) -> None:
    """Exchange pairs of groups between splits, the best pair first, while the ratios are missed by more than a tenth.

    Many groups miss them by so much only where one is huge, which no exchange would mend: these are not tried.
    """
    slack = sum(sizes) / 10
    while sum(map(abs, lacking.values())) > slack:
        best, pair = 0.0, None
        for place, one in enumerate(order):
            for two in order[place + 1 :]:
                first, second, more = chosen[one], chosen[two], sizes[two] - sizes[one]
                if first != second and more:
                    missed = abs(lacking[first]) + abs(lacking[second])
                    gain = missed - abs(lacking[first] - more) - abs(lacking[second] + more)
                    if gain > best + 1e-6:
                        best, pair = gain, (one, two)
        if pair is None:
            return
        one, two = pair
        lacking[chosen[one]] -= sizes[two] - sizes[one]
        lacking[chosen[two]] += sizes[two] - sizes[one]
        chosen[one], chosen[two] = chosen[two], chosen[one]


def classes_of_groups(of_row: IntArray, labels: IntArray, groups: int) -> list[tuple[int, ...]]:
    """The classes of each group's samples, ascending. A label below 0 stands for no class.

    Parameters
    ----------
    of_row : int64 array, (rows,)
        Each row's group.
    labels : int array, (rows,)
        Each row's class.
    groups : int
        Number of groups.
    """
    known = labels >= 0
    out: list[tuple[int, ...]] = [()] * groups
    shared: dict[tuple[int, ...], tuple[int, ...]] = {}
    if known.any():
        found, classes, _ = count_pairs(of_row[known], labels[known].astype(np.int64))
        for group, pairs in groupby(zip(_in_turn(found), _in_turn(classes), strict=True), itemgetter(0)):
            has = tuple(label for _, label in pairs)
            out[group] = shared.setdefault(has, has)
    return out


class _Shares:
    """What each split still lacks of each stratum, and of all samples, as shares of the whole dataset's.

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


@dataclass
class _Splits:
    """Groups in splits, and how often each split has each class."""

    order: IntArray
    sizes: Sequence[int]
    classes: Sequence[Collection[int]]
    wanted: Sequence[str]
    lacking: dict[str, float]
    chosen: list[str]
    having: dict[str, Counter[int]] = field(init=False)
    members: dict[str, list[int]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.having = {name: Counter() for name in self.lacking}
        for group, split in enumerate(self.chosen):
            self.having[split].update(self.classes[group])

    def share_classes(self) -> None:
        """Exchange groups until no split lacks a class that another can spare, and bring the sizes near again."""
        groups_of: dict[int, array[int]] = {}
        for group in _in_turn(self.order):
            for label in self.classes[group]:
                groups_of.setdefault(label, array("q")).append(group)
        shared = {label: groups_of[label] for label in sorted(groups_of) if len(groups_of[label]) > 1}
        if self._fetch_classes(shared):
            for _ in range(_MOVES):
                if not self._even_out():
                    break
            self._fetch_classes(shared)

    def _fetch_classes(self, groups_of: Mapping[int, Sequence[int]]) -> bool:
        """Bring each class into the splits that lack it, if another can spare a group; return whether any could.

        What is sent back may let a split spare what it could not before, so all classes are gone through until nothing
        is exchanged. Each exchange removes a lack and makes none, so there is an end.
        """
        fetched, again = False, True
        while again:
            again = False
            for label, groups in groups_of.items():
                for split in self.wanted:
                    if not self.having[split][label] and self._fetch(split, groups):
                        fetched = again = True
        return fetched

    def _even_out(self) -> bool:
        """Move a group from the split most above its share to the one most below, if that brings both nearer to it.

        The only group of a split stays, even if it is of no class.
        """
        low, high = (pick(self.lacking, key=self.lacking.__getitem__) for pick in (max, min))
        if high in self.wanted and self.chosen.count(high) == 1:
            return False
        self.members.clear()
        for group in self._spare_near(high, (self.lacking[low] - self.lacking[high]) / 2):
            before, size = abs(self.lacking[low]) + abs(self.lacking[high]), self.sizes[group]
            if abs(self.lacking[low] - size) + abs(self.lacking[high] + size) < before - 1e-6:
                self._move(group, low)
                return True
        return False

    def _fetch(self, split: str, groups: Sequence[int]) -> bool:
        """Bring one of some groups into a split, and send another back if the ratios are then met better.

        Returns
        -------
        bool
            False if none of the groups can be spared.
        """
        best: tuple[float, int, int | None] | None = None
        for group in groups:
            if not self._can_spare(group):
                continue
            donor, size = self.chosen[group], self.sizes[group]
            ideal = (size - self.lacking[split], size + self.lacking[donor])
            for back in (None, *(found for sought in ideal for found in self._spare_near(split, sought))):
                moved = size - (0 if back is None else self.sizes[back])
                error = abs(self.lacking[split] - moved) + abs(self.lacking[donor] + moved)
                if best is None or error < best[0]:
                    best = error, group, back
        if best is not None:
            _, group, back = best
            donor = self.chosen[group]
            self._move(group, split)
            if back is not None:
                self._move(back, donor)
        return best is not None

    def _spare_near(self, split: str, size: float) -> list[int]:
        """Groups that a split can spare, of the sizes nearest to a given one: at most one smaller and one larger."""
        if split not in self.members:
            members = [group for group in _in_turn(self.order) if self.chosen[group] == split]
            self.members[split] = sorted(members, key=self.sizes.__getitem__)  # groups of one size stay in order
        members = self.members[split]
        at = bisect_left(members, size, key=self.sizes.__getitem__)
        found = []
        for near in (members[at : at + _NEAR], members[max(0, at - _NEAR) : at][::-1]):
            spare = (group for group in near if self.chosen[group] == split and self._can_spare(group))
            found += [group for group in (next(spare, None),) if group is not None]
        return found

    def _can_spare(self, group: int) -> bool:
        """Whether a group's split would keep all its classes without the group."""
        split = self.chosen[group]
        return split not in self.wanted or all(self.having[split][label] > 1 for label in self.classes[group])

    def _move(self, group: int, split: str) -> None:
        self.having[self.chosen[group]].subtract(self.classes[group])
        self.lacking[self.chosen[group]] += self.sizes[group]
        self.having[split].update(self.classes[group])
        self.lacking[split] -= self.sizes[group]
        self.chosen[group] = split


def _rank_strata(strata: Groups) -> IntArray:
    """Each row's stratum, numbered by the names in alphabetical order; `NO_GROUP` is a stratum, too."""
    places = np.empty(len(strata.names) + 1, np.int64)
    places[sorted(range(len(strata.names)), key=strata.names.__getitem__)] = np.arange(len(strata.names))
    places[NO_GROUP] = NO_GROUP
    return places[strata.of_row]


def _count_strata(groups: Groups, ranked: IntArray) -> list[dict[int, int]]:
    """The samples that each group has of each stratum, the strata ascending."""
    none: dict[int, int] = {}
    out = [none] * len(groups.names)
    shared: dict[tuple[tuple[int, int], ...], dict[int, int]] = {}
    if len(ranked):
        found = count_pairs(groups.of_row, ranked)
        for group, triples in groupby(zip(*map(_in_turn, found), strict=True), itemgetter(0)):
            has = {stratum: count for _, stratum, count in triples}
            out[group] = shared.setdefault(tuple(has.items()), has)
    return out


def _check_strata(strata: Groups, ranked: IntArray, groups: Groups | None, parts: int) -> None:
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


def _deal(rows: int, strata: IntArray, shares: Sequence[float], seed: int) -> IntArray:
    """Deal rows out, stratum after stratum, each in a random order: the place of each row's split."""
    order = np.lexsort((_draws(seed, rows), strata))
    out = np.empty(rows, np.int64)
    out[order] = _turns(rows, shares)
    return out


def _turns(count: int, shares: Sequence[float]) -> IntArray:
    """Whose turn it is, such that after any number of turns each share is met within one turn.

    The quota method of Balinski and Young: among those who would not exceed their share, the one whose next turn is due
    first. Any run of turns therefore meets each share within two.
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
    """A random number for each row, the same on every machine: splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    key = int.from_bytes(_draw(seed, "rows")[:8], "little")
    state = np.arange(rows, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _draw(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed}/{name}".encode("utf-8", "surrogateescape")).digest()
