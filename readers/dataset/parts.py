"""Parts of a dataset by row, condition, split and fold, and its small fields as a data frame."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from readers.arguments import as_number
from readers.conditions import Condition, comparable, rows_where
from readers.dataset.base import SampleDataset
from readers.seeding import Permutation, check_seed
from shardspec.columns import IntArray, fill_missing, missing_in
from shardspec.errors import SchemaError, UsageError
from shardspec.registry import import_target
from shardspec.splits.assignment import assign_rows, fold_ratios
from shardspec.splits.groups import NO_GROUP, Groups, join_groups, names_of
from shardspec.wording import did_you_mean, shorten, span

_SPLIT_TAG = 0x73706C6974


def split_rows(
    dataset: SampleDataset,
    fractions: Sequence[float],
    seed: int = 0,
    by: str | Sequence[str] | None = None,
    stratify: str | None = None,
) -> list[IntArray]:
    """Return the rows of each part, ascending (`WithParts.split`)."""
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
    """Return the fold of each row, 0 to k - 1 (`WithParts.folds`)."""
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
    known = dict(enumerate(dataset.classes)) if field == "label" else {}
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


Part = TypeVar("Part", bound=SampleDataset)


class WithParts(SampleDataset, Generic[Part]):
    """A dataset that can be divided into parts, which can be divided again. A subclass defines `subset`."""

    def subset(self, rows: npt.ArrayLike) -> Part:
        """Return some rows of this dataset, in the given order."""
        raise NotImplementedError

    def where(self, condition: Condition, fields: Sequence[str] | None = None) -> Part:
        """Return the samples that meet a condition on small fields, in their order. Images are not read.

        Parameters
        ----------
        condition : str or callable
            An expression such as ``"label == 'fake' and score > 0.9"``: comparisons (``==``, ``!=``, ``<``, ``<=``,
            ``>``, ``>=``, ``in``, ``not in``), ``and``, ``or``, ``not`` and parentheses, of names of fields with
            numbers or text, and of constants. ``label`` is compared with names of classes.

            A sample without a value of a field matches neither a comparison of that field nor its negation: neither
            ``age > 30`` nor ``not (age > 30)``. ``age is missing`` and ``age is not missing`` select by missing values.
            ``a or b`` holds if one of them holds, even if the other one compares a missing value.

            A callable is called once with the whole column of each field, in order, and returns booleans, (N,). Texts
            come as an array of numpy's ``StringDType``, so that ``split == "train"`` and `numpy.strings` work on whole
            columns; other fields of varying shape are lists. An array with missing values is a `numpy.ma.MaskedArray`.
            Rows that are masked in the result are not selected.
        fields : sequence of str, optional
            Fields to pass to a callable. Scalar fields come from the dataset's index; any other field is read from the
            shards, from the first row to the last.

        Raises
        ------
        UsageError
            If the expression contains anything else, or an invalid comparison; or if the callable does not return
            booleans, (N,).
        """
        return self.subset(rows_where(self, condition, fields))

    def split(
        self,
        fractions: Sequence[float],
        seed: int = 0,
        by: str | Sequence[str] | None = None,
        stratify: str | None = None,
    ) -> tuple[Part, ...]:
        """Return disjoint random parts, such as one for training and one for validation.

        With `by`, the fractions are met as closely as whole groups allow, and each part gets a group of every class of
        ``label`` if there are enough. The same seed gives the same parts as ``packer split``.

        Parameters
        ----------
        fractions : sequence of float
            Each part's share of the samples: above 0, with a sum of at most 1. A sum of 1 leaves nothing out.
        seed : int, 0 to 2**64 - 1
            Seed of the draw.
        by : str or sequence of str, optional
            A field whose equal values stay in one part: ``"source"`` keeps the frames of a video together. With several
            fields, samples that share a value of any field stay together, directly or through other samples.
        stratify : str, optional
            A field, such as ``"label"``, whose values are spread evenly over the parts, as closely as whole groups
            allow.

        Raises
        ------
        UsageError
            If the fractions are invalid, or leave a part empty; if samples have no value of `by`; or if a value of
            `stratify` is in fewer groups than there are parts.
        """
        return tuple(self.subset(rows) for rows in split_rows(self, fractions, seed, by, stratify))

    def folds(
        self, k: int, by: str | Sequence[str] | None = None, stratify: str | None = None, seed: int = 0
    ) -> list[tuple[Part, Part]]:
        """Return, for each of k folds, the samples of the other folds for training, and its own for validation.

        Every sample is in one fold. The same seed gives the folds of ``packer split --folds``.

        Parameters
        ----------
        k : int
            Number of folds, 2 to 100.
        by, stratify, seed
            As for `split`.

        Raises
        ------
        UsageError
            If `k` is invalid; if there are fewer groups, or fewer groups with a value of `stratify`, than folds; or if
            samples have no value of `by`.
        """
        fold_of = fold_rows(self, k, by, stratify, seed)
        return [
            (self.subset(np.flatnonzero(fold_of != fold)), self.subset(np.flatnonzero(fold_of == fold)))
            for fold in range(k)
        ]

    def to_pandas(self, fields: Sequence[str] | None = None) -> Any:
        """Return small fields as a pandas DataFrame. Its index is the row: ``ds.subset(frame.query(...).index)`` works.

        Parameters
        ----------
        fields : sequence of str, optional
            Fields with a number or a text per sample; by default all of them.

        Returns
        -------
        pandas.DataFrame
            ``label`` is a categorical column if its classes have names. Missing values are NA: a column with missing
            values has a nullable type, such as ``Int64`` or ``string``.

        Raises
        ------
        UsageError
            If pandas is not installed, or a field is not one of these.
        """
        known = self.small_fields
        names = known if fields is None else tuple(fields)
        for name in names:
            if name not in known:
                raise UsageError(
                    option="fields",
                    expected=f"names among {', '.join(known)}",
                    found=f"{shorten(name)}{did_you_mean(name, known)}",
                )
        frame = import_target("pandas:DataFrame", what="to_pandas (pip install pandas)")
        columns = {name: self.column(name) for name in names}
        classes, labels = self.classes, columns.get("label")
        if classes and labels is not None:
            codes = fill_missing(labels)
            if codes.max(initial=-1) < len(classes):
                categorical = import_target("pandas:Categorical", what="to_pandas (pip install pandas)")
                columns["label"] = categorical.from_codes(codes, categories=list(classes))
        made = frame({n: c.data if isinstance(c, np.ma.MaskedArray) else c for n, c in columns.items()})
        for name, column in columns.items():
            if isinstance(column, list | np.ma.MaskedArray) and (missing := missing_in(column)).any():
                made[name] = made[name].astype(_nullable(column)).mask(missing)
        return made


def _nullable(column: npt.NDArray[Any] | list[Any]) -> str:
    if isinstance(column, list):
        return "string[python]"
    if column.dtype.kind == "b":
        return "boolean"
    name = {"i": "Int", "u": "UInt", "f": "Float"}[column.dtype.kind]
    return "Float32" if column.dtype == np.float16 else f"{name}{8 * column.dtype.itemsize}"


def as_rows(rows: npt.ArrayLike, length: int) -> IntArray:
    """Check rows, integers from 0 to length - 1, and return them as int64, (n,)."""
    given = np.asarray(rows)
    if given.ndim != 1 or (given.dtype.kind not in "iu" and len(given)):
        found = f"{given.dtype} of shape {given.shape}"
        hint = ": a mask's rows are np.flatnonzero(mask)" if given.dtype == bool else ""
        raise UsageError(option="rows", expected="integers of shape (n,)", found=f"{found}{hint}")
    checked: IntArray = given.astype(np.int64)
    if len(checked) and not (checked.min() >= 0 and checked.max() < length):
        raise UsageError(option="rows", expected=f"0 to {length - 1}", found=span(checked.min(), checked.max()))
    return checked
