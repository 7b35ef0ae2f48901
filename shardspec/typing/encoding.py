"""Encode a column of a table as a field."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardspec.codecs import codec_for
from shardspec.errors import CodecError, SchemaError, UsageError
from shardspec.schema import NO_CLASS, Field, class_name, describe_similar_classes, describe_spellings
from shardspec.typing.columns import ColumnTyper
from shardspec.typing.field_types import LABEL, FieldType, common_shape, settle_empty
from shardspec.typing.frames import ColumnValues


class EncodedColumn(NamedTuple):
    """A field and its values as in `shardspec.columns`, with a sentinel for each missing value.

    Attributes
    ----------
    field : Field
    values : ndarray, (n, *shape), or list of bytes-like objects
    sentinel : scalar or bytes
        Stored for a missing value: false, 0, an array of zeros, −1 for a label, or empty bytes.
    notes : list of str
        Notes for the user about the values, one line each.
    """

    field: Field
    values: Any
    sentinel: Any
    notes: Sequence[str] = ()


def encode_column(name: str, cells: ColumnValues, place: str) -> EncodedColumn:
    """Choose the field of a column, and encode its values.

    Numbers keep their dtype in the table; Python numbers become 64-bit numbers. Lists of numbers and arrays become
    *fixed* fields if all have the same shape, and *ragged* fields if only the first axis differs. Texts of a field
    ``label`` become classes, numbered in sorted order. Other lists, and mappings, become JSON.

    Parameters
    ----------
    name : str
        The field's name.
    cells : ColumnValues
    place : str
        Name of the column in messages.

    Raises
    ------
    UsageError
        If the values have no common type, or cannot be stored.
    """
    try:
        if isinstance(cells.values, np.ndarray):
            return _fixed(name, cells.values, cells.valid)
        return _encode_values(name, cells, place)
    except (SchemaError, CodecError) as error:
        raise UsageError(error, place=place) from error


def _encode_values(name: str, cells: ColumnValues, place: str) -> EncodedColumn:
    values = [value if ok else None for value, ok in zip(cells.values, cells.valid, strict=True)]
    typer = ColumnTyper()
    typer.scan(values)
    kind = typer.settle(place, _name_row)
    if kind is None:
        raise UsageError(place=place, expected="a value in one row or more", found="none")
    kind = settle_empty(kind)
    if kind.kind == "text" and name == LABEL:
        return _classes(name, cells, [value for value in values if value is not None])
    if kind.kind != "array":
        return _encoded(kind.to_field(name, (None,)), kind, values, place)
    if kind.shape or kind.listed:
        return _arrays(name, kind, values, kind.listed and len(typer.lengths) == 1, place)
    return _fixed(name, np.array([0 if value is None else value for value in values], kind.dtype), cells.valid)


def _fixed(name: str, values: npt.NDArray[Any], valid: npt.NDArray[np.bool_]) -> EncodedColumn:
    field = Field(name, "fixed", values.dtype.str, values.shape[1:])
    if not valid.all():
        values = values.copy()
        values[~valid] = field.sentinel
    return EncodedColumn(field, values, field.sentinel)


def _classes(name: str, cells: ColumnValues, known: Sequence[str]) -> EncodedColumn:
    names = {text.strip() for text in known}
    classes = sorted(set(map(class_name, names)))
    numbers = {text: number for number, text in enumerate(classes)}
    field = Field(name, "fixed", "<i8", (), classes=tuple(classes))
    values = [
        numbers[class_name(text.strip())] if ok else NO_CLASS
        for text, ok in zip(cells.values, cells.valid, strict=True)
    ]
    notes = [*describe_spellings(sorted(names)), *describe_similar_classes(classes)]
    return EncodedColumn(field, np.array(values, np.int64), NO_CLASS, notes)


def _arrays(name: str, kind: FieldType, values: Sequence[Any], equal_lengths: bool, place: str) -> EncodedColumn:
    if equal_lengths and None not in values:
        column = np.array(values, kind.dtype)
        return EncodedColumn(kind.to_field(name, column.shape[1:]), column, 0)
    arrays = [None if value is None else np.asarray(value, kind.dtype) for value in values]
    if kind.listed:
        arrays = [None if array is None else array.reshape(-1, *kind.shape[1:]) for array in arrays]
    field = kind.to_field(name, common_shape({array.shape for array in arrays if array is not None}))
    if not field.is_fixed:
        return _encoded(field, kind, arrays, place)
    column = np.zeros((len(arrays), *field.fixed_shape), kind.dtype)
    for row, array in enumerate(arrays):
        if array is not None:
            column[row] = array
    return EncodedColumn(field, column, 0)


def _encoded(field: Field, kind: FieldType, values: Sequence[Any], place: str) -> EncodedColumn:
    codec = codec_for(field)
    sentinel = b""
    if kind.kind == "json":
        sentinel = bytes(codec.encode([] if kind.listed else {}))
    elif kind.kind == "array" and field.kind == "bytes":
        sentinel = bytes(codec.encode(np.zeros((0,) * len(field.shape), kind.dtype)))
    encoded = []
    for row, value in enumerate(values):
        try:
            encoded.append(sentinel if value is None else bytes(codec.encode(value)))
        except (CodecError, TypeError, ValueError, RecursionError) as error:
            raise UsageError(
                f"expected a value that can be stored, {error}", place=f"{place}, {_name_row(row)}"
            ) from error
    return EncodedColumn(field, encoded, sentinel)


def _name_row(row: int) -> str:
    return f"row {row} (counted from 0)"
