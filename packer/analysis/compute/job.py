"""One call of `packer compute`: its passes over the samples, and the columns that they yield."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packer.analysis.compute.function import Function
from packer.analysis.compute.groups import GroupedRows, group_rows, spread
from packer.analysis.compute.run import BATCH_SIZE, Pass, run_pass
from packer.analysis.compute.values import Values
from packer.builds.provenance import library_versions
from packer.jobs.progress import ProgressListener
from packer.workspace.machines import library_version
from shardspec.columns import Columns
from shardspec.errors import UsageError
from shardspec.manifest import Manifest
from shardspec.registry import import_target
from shardspec.schema import Field
from shardspec.stores import names_store
from shardspec.typing.encoding import encode_column

VALID = "_valid"
"""Ending of the name of a field that marks missing values."""

Check = Callable[[str, Function], None]
"""Called with the name of each column, and its function, before most of the values are computed."""


@dataclass(frozen=True)
class ComputedColumns:
    """Columns of the whole dataset.

    Attributes
    ----------
    fields : tuple of Field
        With those that mark missing values.
    columns : dict
        The values in the form of `shardspec.columns`.
    records : dict of str to dict
        How each field was computed (`Function.record`).
    missing : dict of str to int
        Number of samples without a value, by field.
    """

    fields: tuple[Field, ...]
    columns: Columns
    records: Mapping[str, Mapping[str, Any]]
    missing: Mapping[str, int]

    @property
    def names(self) -> list[str]:
        """Fields without those that mark missing values."""
        marks = {f"{name}{VALID}" for name in self.missing}
        return [field.name for field in self.fields if field.name not in marks]


@dataclass(frozen=True)
class ComputeJob:
    """Functions to compute from a dataset, and how.

    Attributes
    ----------
    dataset : path or str
        Folder or URL.
    given : tuple
        The functions as the caller gave them.
    functions : tuple of Function
    device : str
    workers : int or str
        Worker processes; 0 to compute in this process.
    batch_size : int
    storage_options : mapping or None
    engine : str
        A key of `packer.recipe.engines.ENGINES`.
    """

    dataset: str | os.PathLike[str]
    given: tuple[Any, ...]
    functions: tuple[Function, ...]
    device: str = "cpu"
    workers: int | str = 0
    batch_size: int = BATCH_SIZE
    storage_options: Mapping[str, Any] | None = None
    engine: str = "processes"

    def open(self) -> Any:
        """Open the dataset with `readers`."""
        open_dataset = import_target("readers:open_dataset", what="compute", extra="torch")
        return open_dataset(self.dataset, storage_options=self.storage_options)

    def columns(self, folder: Path, listener: ProgressListener, check: Check) -> ComputedColumns:
        """Compute all columns, and encode them as fields.

        Parameters
        ----------
        folder : Path
            Folder for blocks of values, from which another call resumes.
        """
        fields: list[Field] = []
        columns: Columns = {}
        records, missing = {}, {}
        for name, (function, values) in self.values(folder, listener, check).items():
            typed = encode_column(name, values.cells(), f"function {function.name}, column {name!r}")
            fields.append(typed.field)
            columns[name], records[name] = typed.values, function.record
            if not values.valid.all():
                mark = f"{name}{VALID}"
                check(mark, function)
                fields.append(Field(mark, "fixed", "|b1", ()))
                columns[mark], records[mark] = values.valid, function.record
                missing[name] = int(np.count_nonzero(~values.valid))
        columns_of = {
            one.name: [name for name, record in records.items() if record == one.record] for one in self.functions
        }
        records = {name: {**one, "columns": columns_of[one["function"]]} for name, one in records.items()}
        return ComputedColumns(tuple(fields), columns, records, missing)

    def values(self, folder: Path, listener: ProgressListener, check: Check) -> dict[str, tuple[Function, Values]]:
        """Compute all columns, by name with their functions."""
        dataset = self.open()
        if not len(dataset):
            raise UsageError(place=self.dataset, expected="one sample or more", found="an empty dataset")
        if self.device != "cpu":
            import_target("readers.loader.device:as_device", what="compute", extra="torch")(self.device)
        for function in self.functions:
            function.fields_in(dataset.pool.schema, str(self.dataset))
        found: dict[str, tuple[Function, Values]] = {}
        for places, grouped in self._passes(dataset):
            one = self._pass(dataset, places, grouped)
            for name, (function, values) in run_pass(one, folder, listener, check).items():
                if name in found:
                    raise UsageError(
                        place=f"function {function.name}", expected="columns that no other returns", found=repr(name)
                    )
                found[name] = function, values if grouped is None else spread(grouped, values, function.name, name)
        return found

    def _passes(self, dataset: Any) -> list[tuple[list[int], GroupedRows | None]]:
        """Return the places of the functions of each pass: all those of every sample, and each one of groups."""
        plain = [place for place, one in enumerate(self.functions) if not one.per]
        others = [place for place, one in enumerate(self.functions) if one.per]
        passes: list[tuple[list[int], GroupedRows | None]] = [(plain, None)] if plain else []
        return passes + [([place], group_rows(dataset, self.functions[place])) for place in others]

    def _pass(self, dataset: Any, places: Sequence[int], grouped: GroupedRows | None) -> Pass:
        return Pass(
            os.fspath(self.dataset) if names_store(self.dataset) else str(Path(self.dataset).absolute()),
            dataset.manifest.digest,
            tuple(self.functions[place] for place in places),
            tuple(self.given[place] for place in places),
            len(dataset),
            None if grouped is None else grouped.rows,
            self.device,
            self.batch_size,
            self.workers,
            self.engine,
            {**library_versions(dataset.manifest.format, encodes=True), "torch": library_version("torch")},
            self.storage_options,
        )


def has_computed(manifest: Manifest, function: Function) -> bool:
    """Return whether a dataset has all columns of a function with these options."""
    records = {column.field: column.computed for column in manifest.columns}
    found = [one for one in records.values() if one and {**one, **function.record} == one]
    return bool(found) and all(name in records for one in found for name in one.get("columns", ()))
