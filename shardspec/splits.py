"""Which group of samples goes into which split of a dataset: a pure function of the groups, the ratios and a seed.

The pack stage and the readers both split datasets. Both use this one rule, so a seed gives the same assignment in both.
"""

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardspec.columns import IntArray
from shardspec.errors import UsageError
from shardspec.wording import counted

SPLIT_NAMES = frozenset(("train", "training", "val", "valid", "validation", "dev", "eval", "test", "testing"))
"""Usual names of splits."""

_MOVES = 64
"""Most groups that are moved, after the exchange of classes, to bring the sizes back to the ratios."""
_NEAR = 64
"""Groups on either side of a size that are considered when a group of about that size is sought."""


def assign_groups(
    names: Sequence[str],
    sizes: Sequence[int],
    ratios: Mapping[str, float],
    seed: int,
    classes: Sequence[Collection[int]] | None = None,
    rest: str | None = None,
) -> list[str]:
    """The split of each group.

    Large groups go first, each to the split that lacks most samples; so the small ones even out what the large ones
    leave, and the ratios are met as closely as whole groups allow, far closer than by a hash of each group alone. Among
    groups whose sizes have the same number of binary digits the order is that of SHA-256 of (seed, name): another seed
    gives another split. No split stays empty. A split that then lacks a class gets a group that has it, in exchange for
    one of similar size. That group comes from a split that keeps all its classes without it, if there is one.

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
    order = sorted(range(len(names)), key=lambda group: (-sizes[group].bit_length(), _draw(seed, names[group])))
    for position, group in enumerate(order):
        must_fill = len(order) - position <= len(empty)
        split = max((name for name in ratios if name in empty or not must_fill), key=lacking.__getitem__)
        empty.discard(split)
        lacking[split] -= sizes[group]
        chosen[group] = split
    if classes is not None:
        _Splits(order, sizes, classes, wanted, lacking, chosen).share_classes()
    return chosen


def classes_of_groups(of_row: IntArray, labels: IntArray, groups: int) -> list[list[int]]:
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
    out: list[list[int]] = [[] for _ in range(groups)]
    if known.any():
        for group, label in np.unique(np.stack([of_row[known], labels[known].astype(np.int64)], 1), axis=0).tolist():
            out[group].append(label)
    return out


@dataclass
class _Splits:
    """Groups in splits, and how often each split has each class."""

    order: Sequence[int]
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
        """Exchange groups until no split lacks a class that another can spare. Each exchange removes one such lack."""
        exchanged = False
        groups_of: dict[int, list[int]] = {}
        for group in self.order:
            for label in self.classes[group]:
                groups_of.setdefault(label, []).append(group)
        for label in sorted(groups_of):
            if len(groups_of[label]) > 1:
                for split in self.wanted:
                    if not self.having[split][label] and self._fetch(split, groups_of[label]):
                        exchanged = True
        for _ in range(_MOVES if exchanged else 0):
            if not self._even_out():
                break

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
            members = [group for group in self.order if self.chosen[group] == split]
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


def _draw(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed}/{name}".encode("utf-8", "surrogateescape")).digest()
