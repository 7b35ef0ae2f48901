"""Splits of a dataset's rows: random, by groups, evenly over classes, in folds."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np

from readers.arguments import as_number
from readers.conditions import comparable
from readers.dataset.base import SampleDataset
from readers.order.permutation import Permutation
from readers.seeding import check_seed
from shardspec.columns import IntArray, fill_missing, missing_in
from shardspec.errors import SchemaError, UsageError
from shardspec.splits.assignment import assign_rows, fold_ratios
from shardspec.splits.groups import NO_GROUP, Groups, join_groups, names_of
from shardspec.wording import shorten

_SPLIT_TAG = 0x73706C6974


def split_rows(
    dataset: SampleDataset,
    fractions: Sequence[float],
    seed: int = 0,
    by: str | Sequence[str] | None = None,
    stratify: str | None = None,
) -> list[IntArray]:
    """Split a dataset at random into disjoint parts; a function of the seed.

    With `by`, the fractions are met as closely as whole groups allow, and each part gets a group of every class of
    ``label`` if there are enough. The same seed gives the same parts as ``packer split``
    (`shardspec.splits.assignment.assign_rows`).

    Parameters
    ----------
    fractions : sequence of float
        Each part's share of the samples: above 0, with a sum of at most 1. A sum of 1 leaves nothing out.
    seed : int, 0 to 2**64 - 1
    by : str or sequence of str, optional
        A field whose equal values stay in one part: ``"source"`` keeps the frames of a video together. With several
        fields, samples that share a value of any field stay together, directly or through other samples.
    stratify : str, optional
        A field, such as ``"label"``, whose values are spread evenly over the parts, as closely as whole groups allow.

    Returns
    -------
    list of int64 array
        The rows of each part, ascending.

    Raises
    ------
    UsageError
        If the fractions are invalid, or leave a part empty; if samples have no value of `by`; or if a value of
        `stratify` is in fewer groups than there are parts.
    """
    if not isinstance(fractions, Iterable) or isinstance(fractions, Mapping | str):
        raise UsageError(option="fractions", expected="a list of numbers such as [0.9, 0.1]", found=shorten(fractions))
    seed = check_seed(seed)
    shares = [as_number("fractions", share) for share in fractions]
    if not shares or not min(shares) > 0 or sum(shares) > 1 + 1e-9:
        raise UsageError(option="fractions", expected="numbers above 0 with a sum of at most 1", found=shares)
    count = len(dataset)
    if by is None and stratify is None:
        ranks = Permutation(count, seed, _SPLIT_TAG)(np.arange(count))
        bounds = np.round(np.cumsum([0.0, *shares]) * count).astype(np.int64)
        if count and not np.diff(bounds).all():
            raise _empty_part(shares, count, "samples")
        return [np.flatnonzero((ranks >= low) & (ranks < high)) for low, high in pairwise(bounds.tolist())]
    groups, fields = _joined_groups(dataset, by)
    if not count:
        return [np.empty(0, np.int64) for _ in shares]
    if groups is not None:
        sizes = groups.sizes()
        if len(sizes) < len(shares) or min(shares) * count < sizes.min() / 2:
            raise _empty_part(shares, len(sizes), f"values of {', '.join(map(repr, fields))}")
    ratios = {str(number): share for number, share in enumerate(shares)}
    rest = str(len(shares))
    ratios |= {rest: 1 - sum(shares)} if sum(shares) < 1 - 1e-9 else {}
    places = _assign(dataset, ratios, seed, groups, stratify, rest)
    parts = [np.flatnonzero(places == place) for place in range(len(shares))]
    if not all(map(len, parts)):
        raise _empty_part(shares, count, "samples")
    return parts


def fold_rows(
    dataset: SampleDataset,
    k: int,
    by: str | Sequence[str] | None = None,
    stratify: str | None = None,
    seed: int = 0,
) -> IntArray:
    """Return the fold of each row, 0 to k - 1; a function of the seed.

    Parameters
    ----------
    k : int
        Number of folds, 2 to 100.
    by, stratify, seed
        As for `split_rows`.

    Raises
    ------
    UsageError
        If `k` is invalid; if there are fewer groups, or fewer groups with a value of `stratify`, than folds; or if
        samples have no value of `by`.
    """
    return _assign(dataset, fold_ratios(k), check_seed(seed), _joined_groups(dataset, by)[0], stratify)


def _assign(
    dataset: SampleDataset,
    ratios: Mapping[str, float],
    seed: int,
    groups: Groups | None,
    stratify: str | None,
    rest: str | None = None,
) -> IntArray:
    strata = None if stratify is None else _groups(dataset, stratify)
    labels = None
    if groups is not None and strata is None:
        with suppress(SchemaError):
            column = np.ma.asarray(dataset.column("label"))
            labels = fill_missing(column) if column.dtype.kind in "iu" and column.ndim == 1 else None
    return assign_rows(len(dataset), ratios, seed, groups=groups, strata=strata, labels=labels, rest=rest)


def _joined_groups(dataset: SampleDataset, by: str | Sequence[str] | None) -> tuple[Groups | None, tuple[str, ...]]:
    """Return the groups by one field or several, and the names of these fields."""
    if by is None:
        return None, ()
    fields = names_of(by)
    several = [_groups(dataset, field) for field in fields]
    for field, groups in zip(fields, several, strict=True):
        if groups.without:
            raise UsageError(
                option="by",
                expected=f"a value of {field!r} in every sample",
                found=f"none in {groups.without} of {len(dataset)}, which therefore belong to no part",
                hint="take another field, or first select the samples that have one with `where`",
            )
    return join_groups(several), fields


def _groups(dataset: SampleDataset, field: str) -> Groups:
    """Return the groups of samples by a field, named as ``packer split`` names them."""
    column = comparable(dataset.column(field))
    if isinstance(column, list) or column.ndim != 1:
        found_shape = "one of varying shape" if isinstance(column, list) else f"one of shape {column.shape[1:]}"
        raise UsageError(place=field, expected="a field of text or of single values", found=found_shape)
    values = np.ma.getdata(column)
    found, of_row = np.unique(values, return_inverse=True)
    known = dict(enumerate(dataset.classes or ())) if field == "label" else {}
    names = [known.get(value, str(value)) for value in found.tolist()]
    # Samples without a value form no group, since each of them may belong to any group.
    without = missing_in(column) | (values == "" if values.dtype.kind in "TO" else False)
    return Groups(names, np.where(without, NO_GROUP, of_row))


def _empty_part(shares: list[float], count: int, what: str) -> UsageError:
    return UsageError(
        option="fractions",
        expected=f"some of the {count} {what} for each part",
        found=f"{shares}, which leave a part empty",
    )
