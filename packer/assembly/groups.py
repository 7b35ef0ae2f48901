"""Groups of samples: those that have the same value in a field, such as one video or one person."""

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import numpy as np

from packer.assembly.rows import PackedRows
from shardspec.errors import UsageError
from shardspec.schema import Field, Schema
from shardspec.splits import NO_GROUP, Groups
from shardspec.wording import did_you_mean


def read_groups(path: Path, by: str) -> Groups:
    """Group the samples of a packed dataset by a field that has one text, number or truth value per sample.

    Raises
    ------
    UsageError
        If there is no such field.
    """
    with closing(PackedRows.of(path, check="size")) as rows:
        return _group(rows, by, _grouping_field(rows.schema, by, path))


def _group(rows: PackedRows, by: str, field: Field) -> Groups:
    """Group rows by a field."""
    validity = f"{by}_valid"
    # Or a column of the user has that name.
    has_validity = validity in rows.schema and _is_truth(rows.schema[validity])
    numbers: dict[bytes | float | int | bool, int] = {}
    of_row = np.empty(len(rows), np.int64)
    at = 0
    for batch in rows.batches([by, validity] if has_validity else [by]):
        values = batch[by].tolist() if field.is_fixed else list(map(bytes, batch[by]))
        known = batch[validity].tolist() if has_validity else [True] * len(values)
        for value, is_known in zip(values, known, strict=True):
            of_row[at] = numbers.setdefault(value, len(numbers)) if is_known and value != b"" else NO_GROUP
            at += 1
    return Groups(tuple(_name(field, value) for value in numbers), of_row)


def _grouping_field(schema: Schema, by: str, path: Path) -> Field:
    fit = [field for field in schema if field.kind == "text" or (field.is_fixed and not field.shape)]
    if by not in {field.name for field in fit}:
        found = "another kind" if by in schema else "none"
        raise UsageError(
            f"{path}: expected a field {by!r} of text or of single values, found {found}: choose one of {_list(fit)}"
            f"{did_you_mean(by, [field.name for field in fit])}"
        )
    return schema[by]


def _is_truth(field: Field) -> bool:
    return field.is_fixed and not field.shape and field.numpy_dtype == np.bool_


def _list(fields: Iterable[Field]) -> str:
    return ", ".join(field.name for field in fields)


def _name(field: Field, value: bytes | float | int | bool) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if field.classes is not None and 0 <= value < len(field.classes):
        return field.classes[int(value)]
    return str(value)
