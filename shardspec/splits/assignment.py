"""Assign the samples of a dataset to splits: a pure function of groups, strata, ratios and a seed.

The pack stage and the readers both split datasets. Both use this one rule, so a seed gives the same assignment in both.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from shardspec.columns import IntArray
from shardspec.errors import UsageError
from shardspec.splits.deal import deal, draw
from shardspec.splits.exchange import SplitGroups, classes_of_groups, exchange_pairs
from shardspec.splits.groups import Groups, in_turn
from shardspec.splits.strata import Shares, check_strata, count_strata, rank_strata
from shardspec.wording import counted, shorten

MAX_FOLDS = 100
"""Most folds of a dataset."""

SPLIT_NAMES = frozenset(("train", "training", "val", "valid", "validation", "dev", "eval", "test", "testing"))
"""Usual names of splits."""

_FEW_GROUPS = 200
"""So many groups are exchanged in pairs, if the ratios are missed."""


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
        ranked = rank_strata(strata)
        check_strata(strata, ranked, groups, parts)
    if groups is None:
        if rows < parts:
            raise UsageError(f"expected as many samples as splits or more, found {rows} for {parts}: take fewer splits")
        return deal(rows, np.zeros(rows, np.int64) if strata is None else ranked, list(ratios.values()), seed)
    counts = classes = None
    if strata is not None:
        counts = count_strata(groups, ranked)
        classes = [tuple(of) for of in counts]
    elif labels is not None:
        classes = classes_of_groups(groups.of_row, labels, len(groups.names))
    chosen = assign_groups(groups.names, groups.sizes().tolist(), ratios, seed, classes, rest, counts)
    places = {name: place for place, name in enumerate(ratios)}
    return np.fromiter(map(places.__getitem__, chosen), np.int64, len(chosen))[groups.of_row]


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
    shares = None if strata is None else Shares(strata, sizes, ratios)
    order = _draw_order(names, sizes, seed)
    for position, group in enumerate(in_turn(order)):
        must_fill = len(order) - position <= len(empty)
        open_splits = [name for name in ratios if name in empty or not must_fill]
        split = max(open_splits, key=lacking.__getitem__) if shares is None else shares.place(group, open_splits)
        empty.discard(split)
        lacking[split] -= sizes[group]
        chosen[group] = split
    if strata is None and len(order) <= _FEW_GROUPS:
        exchange_pairs(order.tolist(), sizes, lacking, chosen)
    if classes is not None:
        SplitGroups(order, sizes, classes, wanted, lacking, chosen).share_classes()
    return chosen


def _draw_order(names: Iterable[str], sizes: Sequence[int], seed: int) -> IntArray:
    """The order of groups, as `assign_groups` says."""
    draws = np.fromiter((draw(seed, name)[:16] for name in names), "S16", len(sizes))
    digits = np.fromiter((-size.bit_length() for size in sizes), np.int8, len(sizes))
    return np.lexsort((draws, digits))
