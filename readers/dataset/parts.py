"""Parts of a dataset by row, condition, split and fold, and its small fields as a data frame."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from readers.conditions import Condition, rows_where
from readers.dataset.base import SampleDataset
from readers.dataset.splits import fold_rows, split_rows
from shardspec.columns import IntArray, fill_missing, missing_in
from shardspec.errors import UsageError
from shardspec.registry import import_target
from shardspec.wording import did_you_mean, shorten, span

Part = TypeVar("Part", bound=SampleDataset)


class WithParts(SampleDataset, Generic[Part]):
    """A dataset that can be divided into parts, which can be divided again. A subclass defines `subset`."""

    def subset(self, rows: npt.ArrayLike) -> Part:
        """Return some rows of this dataset, in the given order."""
        raise NotImplementedError

    def where(self, condition: Condition, fields: Sequence[str] | None = None) -> Part:
        """Return the rows that meet a condition: ``"label == 'fake' and score > 0.9"``, or a callable on some fields.

        The parameters are those of `readers.conditions.rows_where`.
        """
        return self.subset(rows_where(self, condition, fields))

    def split(
        self,
        fractions: Sequence[float],
        seed: int = 0,
        by: str | Sequence[str] | None = None,
        stratify: str | None = None,
    ) -> tuple[Part, ...]:
        """Return disjoint random parts. Equal values of `by` stay together, and those of `stratify` are spread evenly.

        The parameters are those of `readers.dataset.splits.split_rows`.
        """
        return tuple(self.subset(rows) for rows in split_rows(self, fractions, seed, by, stratify))

    def folds(
        self, k: int, by: str | Sequence[str] | None = None, stratify: str | None = None, seed: int = 0
    ) -> list[tuple[Part, Part]]:
        """Return, for each of k folds, the samples of the other folds for training, and its own for validation.

        Every sample is in one fold. The same seed gives the folds of ``packer split --folds``. The parameters are those
        of `readers.dataset.splits.fold_rows`.
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
        if classes is not None and labels is not None:
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
