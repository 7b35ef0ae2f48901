"""A dataset whose samples are compared, as given and as opened."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardspec.columns import missing_in
from shardspec.registry import import_target
from shardspec.stores import local_path


@dataclass(frozen=True)
class OpenedDataset:
    """A dataset, as given and as opened."""

    given: str
    storage_options: Mapping[str, Any] | None
    dataset: Any

    @classmethod
    def of(cls, given: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> "OpenedDataset":
        """Open a dataset with all its fields."""
        return cls(os.fspath(given), storage_options, _open(given, None, storage_options))

    @property
    def schema(self) -> Any:
        """All fields, also those of columns."""
        return self.dataset.pool.schema

    def with_fields(self, fields: Sequence[str]) -> Any:
        """Return the dataset, opened again with some fields."""
        return _open(self.given, fields, self.storage_options)

    def texts(self, name: str) -> list[str | None]:
        """Return a field as texts, classes by their names; None where a value is missing."""
        column, field = self.dataset.column(name), self.schema[name]
        missing = missing_in(column)
        values = np.ma.getdata(column).tolist() if isinstance(column, np.ndarray) else column
        if field.classes is not None:
            missing = missing | (np.array(values) < 0)
            values = [field.classes[value] if value >= 0 else None for value in values]
        return [
            None if gone or value == "" else str(value) for value, gone in zip(values, missing.tolist(), strict=True)
        ]

    def known(self, name: str) -> npt.NDArray[np.bool_]:
        """Return which samples have a value of a field."""
        validity = self.schema.validity(name)
        return np.ones(len(self.dataset), np.bool_) if validity is None else np.asarray(self.dataset.column(validity))


def _open(
    given: str | os.PathLike[str], fields: Sequence[str] | None, storage_options: Mapping[str, Any] | None
) -> Any:
    open_dataset = import_target("readers:open_dataset", what="duplicates", extra="torch")
    return open_dataset(local_path(given), fields, storage_options=storage_options)
