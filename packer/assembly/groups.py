"""Groups of samples with the same value in a field, such as one video or one person."""

from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.assembly.packed_rows import PackedRows
from packer.workspace.disk_list import LazyMap, text_list
from packer.workspace.hashing import DIGEST_BYTES, digest
from shardspec.columns import IntArray
from shardspec.errors import UsageError
from shardspec.schema import Field, Schema
from shardspec.splits.groups import NO_GROUP, Groups
from shardspec.wording import did_you_mean, shorten


def read_groups(path: Path, by: str, chosen: IntArray | None = None) -> Groups:
    """Group the samples of a packed dataset by a field with one text, number or boolean per sample.

    Parameters
    ----------
    path : Path
        The dataset's folder.
    chosen : int array, optional
        The rows to group, ascending; by default all. Other rows have no group, and their shards are not read.

    Raises
    ------
    UsageError
        If the dataset has no such field.
    """
    with closing(PackedRows.of(path, check="size")) as rows:
        found = _group(rows, by, _grouping_field(rows.schema, by, path), chosen)
        if chosen is None:
            return found
        of_row = np.full(len(rows), NO_GROUP, np.int64)
        of_row[chosen] = found.of_row
        return Groups(found.names, of_row)


def _group(rows: PackedRows, by: str, field: Field, chosen: IntArray | None) -> Groups:
    """Group all or the chosen rows by a field. The groups are numbered in the order of their first rows."""
    validity, total = rows.schema.validity(by), len(rows) if chosen is None else len(chosen)
    column = np.empty(total, field.numpy_dtype if field.is_fixed else _DIGEST)
    known = np.ones(total, np.bool_)
    names, at = text_list(), 0
    for batch in rows.batches([by] if validity is None else [by, validity], chosen):
        values, count = batch[by], len(batch[by])
        if validity is not None:
            known[at : at + count] = batch[validity]
        if field.is_fixed:
            column[at : at + count] = values
        else:
            values = list(map(bytes, values))
            column[at : at + count] = _digests(values)
            names.extend(_name(field, value) for value in values)
            known[at : at + count] &= np.fromiter(map(bool, values), np.bool_, count)
        at += count
    if not known.any():
        return Groups((), np.full(total, NO_GROUP, np.int64))
    if known.all():
        first, of_row = _number(column)
    else:
        of_row = np.full(total, NO_GROUP, np.int64)
        first, of_row[known] = _number(column[known])
        first = np.flatnonzero(known)[first]
    if not field.is_fixed:
        return Groups(text_list().extend(names[int(row)] for row in first), of_row)
    found = column[first]
    return Groups(LazyMap(range(len(found)), lambda number: _name(field, found[number].item())), of_row)


_DIGEST = np.dtype(f"S{DIGEST_BYTES}")


def _digests(values: Sequence[bytes]) -> npt.NDArray[Any]:
    """Return a 128-bit hash of each value, which takes less memory than the values themselves."""
    return np.frombuffer(b"".join(map(digest, values)), _DIGEST)


def _number(values: npt.NDArray[Any]) -> tuple[IntArray, IntArray]:
    """Number the distinct values by their first row. Return these first rows, and the number of each row's value."""
    _, first, of_row = np.unique(values, return_index=True, return_inverse=True, equal_nan=False)
    order = np.argsort(first)
    ranks = np.empty(len(first), np.int64)
    ranks[order] = np.arange(len(first))
    return first[order], ranks[of_row]


def _grouping_field(schema: Schema, by: str, path: Path) -> Field:
    fit = [field for field in schema if field.kind == "text" or field.is_scalar]
    if not isinstance(by, str):
        raise UsageError(expected=f"the name of a field, one of {_list(fit)}", found=shorten(by))
    if by not in {field.name for field in fit}:
        found = "a field of another kind" if by in schema else "none"
        raise UsageError(
            place=path,
            expected=f"a field {shorten(by)} of text or of single values",
            found=found,
            hint=f"choose one of {_list(fit)}{did_you_mean(by, [field.name for field in fit])}",
        )
    return schema[by]


def _list(fields: Iterable[Field]) -> str:
    return ", ".join(field.name for field in fields)


def _name(field: Field, value: bytes | float | int | bool) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if field.classes is not None and 0 <= value < len(field.classes):
        return field.classes[int(value)]
    return str(value)
