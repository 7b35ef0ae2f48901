"""Groups that change places between splits, until the ratios are met and no split lacks a class."""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

import numpy as np

from shardspec.columns import IntArray
from shardspec.splits.groups import in_turn

_MOVES = 64
"""Most groups that are moved, after the exchange of classes, to bring the sizes back to the ratios."""
_NEAR = 64
"""Groups on either side of a size that are considered when a group of about that size is sought."""


def exchange_pairs(order: Sequence[int], sizes: Sequence[int], lacking: dict[str, float], chosen: list[str]) -> None:
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
    out: list[tuple[int, ...]] = [()] * groups
    shared: dict[tuple[int, ...], tuple[int, ...]] = {}
    width = int(labels.max(initial=0)) + 1
    pairs = (of_row * width + labels.astype(np.int64, copy=False))[labels >= 0]
    pairs.sort()  # not `count_pairs`, which needs several times the memory
    is_first = np.ones(len(pairs), np.bool_)
    np.not_equal(pairs[1:], pairs[:-1], out=is_first[1:])
    pairs = pairs[is_first]
    for group, found in groupby((divmod(pair, width) for pair in in_turn(pairs)), itemgetter(0)):
        has = tuple(label for _, label in found)
        out[group] = shared.setdefault(has, has)
    return out


@dataclass
class SplitGroups:
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
        for group in in_turn(self.order):
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
            members = [group for group in in_turn(self.order) if self.chosen[group] == split]
            self.members[split] = sorted(members, key=self.sizes.__getitem__)  # groups of one size stay in order
        members = self.members[split]
        at = bisect_left(members, size, key=self.sizes.__getitem__)
        found = []
        for near in (members[at : at + _NEAR], members[max(0, at - _NEAR) : at][::-1]):
            spare = (group for group in near if self.chosen[group] == split and self._can_spare(group))
            found += [group for group in (next(spare, None),) if group is not None]
        return found

    def _can_spare(self, group: int) -> bool:
        """Return whether a group's split would keep all its classes without the group."""
        split = self.chosen[group]
        return split not in self.wanted or all(self.having[split][label] > 1 for label in self.classes[group])

    def _move(self, group: int, split: str) -> None:
        self.having[self.chosen[group]].subtract(self.classes[group])
        self.lacking[self.chosen[group]] += self.sizes[group]
        self.having[split].update(self.classes[group])
        self.lacking[split] -= self.sizes[group]
        self.chosen[group] = split
