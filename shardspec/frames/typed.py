"""A column of a table as a field: its kind, dtype and shape, and its encoded values."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardspec.codecs import codec_for
from shardspec.errors import CodecError, SchemaError, UsageError
from shardspec.frames.cells import Cells
from shardspec.schema import NO_CLASS, Field, NamedConfig, class_name, describe_spellings
from shardspec.wording import shorten

_INT64 = np.iinfo(np.int64)


class TypedColumn(NamedTuple):
    """A field, and its values as `shardspec.columns` has them, with a sentinel in the place of each missing one.

    Attributes
    ----------
    field : Field
    values : ndarray, (n, *shape), or list of bytes-like objects
    sentinel : scalar or bytes
        What stands for a missing value: false, 0, zeros, −1 in a label, or nothing.
    notes : list of str
        What the user should know of the values, a line each.
    """

    field: Field
    values: Any
    sentinel: Any
    notes: Sequence[str] = ()


def type_column(name: str, cells: Cells, place: str) -> TypedColumn:
    """Decide the field of a column, and encode its values.

    Numbers keep the dtype that they have in the table; Python's own become 64-bit numbers. Lists of numbers and arrays
    become *fixed* fields if all have one shape, *ragged* ones if they differ in their first axis alone. Texts of a field
    ``label`` become classes, numbered in sorted order. Other lists, and mappings, become JSON.

    Parameters
    ----------
    name : str
        The field's name.
    cells : Cells
    place : str
        What messages call the column.

    Raises
    ------
    UsageError
        If the values have no common type, or cannot be stored.
    """
    try:
        return _typed(name, cells, place)
    except (SchemaError, CodecError) as error:
        raise UsageError(f"{place}: {error}") from error


def _typed(name: str, cells: Cells, place: str) -> TypedColumn:
    if isinstance(cells.values, np.ndarray):
        return _fixed(name, cells.values, cells.valid)
    known = [value for value, ok in zip(cells.values, cells.valid, strict=True) if ok]
    kinds = {np.ndarray if isinstance(value, np.ndarray) else type(value) for value in known}
    if not kinds:
        raise UsageError(f"{place}: expected a value in one row or more, found none")
    if kinds <= {list, tuple, np.ndarray}:
        return _lists(name, cells, known, place)
    if kinds == {int, float}:
        kinds = {float}
    if len(kinds) > 1:
        found = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise UsageError(f"{place}: expected values of one type, found {found}")
    kind = kinds.pop()
    if kind is str and name == "label":
        return _classes(name, cells, known)
    if kind is str:
        return _encoded(Field(name, "text", "|u1", (None,), NamedConfig("utf8")), cells, place)
    if kind is bytes:
        return _encoded(Field(name, "bytes", "|u1", (None,)), cells, place)
    if kind is dict:
        return _encoded(Field(name, "text", "|u1", (None,), NamedConfig("json")), cells, place)
    dtype = {bool: "|b1", int: "<i8", float: "<f8"}.get(kind)
    if dtype is None:
        raise UsageError(f"{place}: expected numbers, truth values, text or lists of them, found {kind.__name__}")
    if kind is int and not (_INT64.min <= min(known) and max(known) <= _INT64.max):
        raise UsageError(f"{place}: expected signed 64-bit integers, found {shorten(max(known, key=abs))}")
    values = [value if ok else 0 for value, ok in zip(cells.values, cells.valid, strict=True)]
    try:
        return _fixed(name, np.array(values, dtype), cells.valid)
    except OverflowError as error:
        raise UsageError(f"{place}: expected numbers that fit into a float: {error}") from error


def _fixed(name: str, values: npt.NDArray[Any], valid: npt.NDArray[np.bool_]) -> TypedColumn:
    field = Field(name, "fixed", values.dtype.str, values.shape[1:])
    if not valid.all():
        values = values.copy()
        values[~valid] = field.sentinel
    return TypedColumn(field, values, field.sentinel)


def _classes(name: str, cells: Cells, known: Sequence[str]) -> TypedColumn:
    names = {text.strip() for text in known}
    classes = sorted(set(map(class_name, names)))
    numbers = {text: number for number, text in enumerate(classes)}
    field = Field(name, "fixed", "<i8", (), classes=tuple(classes))
    values = [
        numbers[class_name(text.strip())] if ok else NO_CLASS
        for text, ok in zip(cells.values, cells.valid, strict=True)
    ]
    return TypedColumn(field, np.array(values, np.int64), NO_CLASS, describe_spellings(sorted(names)))


def _lists(name: str, cells: Cells, known: Sequence[Any], place: str) -> TypedColumn:
    """Lists and arrays: of numbers, or else JSON."""
    maybe = [value if isinstance(value, np.ndarray) else _as_array(value) for value in known]
    arrays = [array for array in maybe if array is not None]
    if len(arrays) < len(maybe):
        if any(isinstance(value, np.ndarray) for value in known):
            raise UsageError(f"{place}: expected arrays of numbers in all rows, found other lists beside them")
        return _encoded(Field(name, "text", "|u1", (None,), NamedConfig("json")), cells, place)
    # The dtype of an empty list says nothing, unless there is no other.
    dtypes = {array.dtype for array in arrays if array.size} or {array.dtype for array in arrays}
    if len(dtypes) > 1 and np.dtype(np.bool_) in dtypes:
        raise UsageError(f"{place}: expected truth values or numbers, found lists of both")
    dtype = np.result_type(*dtypes).newbyteorder("<")
    shapes = {array.shape for array in arrays}
    tails = {array.shape[1:] for array in arrays if array.size or array.ndim > 1} or {()}
    axes = {array.ndim for array in arrays if array.size or array.ndim > 1} or {1}
    found = iter(arrays)
    values = [next(found) if ok else None for ok in cells.valid]
    if len(shapes) == 1:
        shape = shapes.pop()
        column = np.zeros((len(values), *shape), dtype)
        for row, value in enumerate(values):
            if value is not None:
                column[row] = value
        return TypedColumn(Field(name, "fixed", dtype.str, shape), column, 0)
    if len(tails) == 1 and len(axes) == 1:
        tail = tails.pop()
        codec = codec_for(field := Field(name, "ragged", dtype.str, (None, *tail)))
        empty = np.zeros((0, *tail), dtype)
        rows = [empty if value is None or not value.size else value.astype(dtype) for value in values]
        return TypedColumn(field, [bytes(codec.encode(value)) for value in rows], b"")
    if len(axes) > 1:
        raise UsageError(f"{place}: expected lists with as many axes in every row, found {sorted(axes)}")
    codec = codec_for(field := Field(name, "bytes", dtype.str, (None,) * axes.pop()))
    nothing = bytes(codec.encode(np.zeros((0,) * len(field.shape), dtype)))
    encoded = [nothing if value is None else bytes(codec.encode(value.astype(dtype))) for value in values]
    return TypedColumn(field, encoded, nothing)


def _as_array(value: Sequence[Any]) -> npt.NDArray[Any] | None:
    """A list of numbers, or of such lists of one length, as an array; None for any other list."""
    array = np.array(value, object)
    kinds = set(map(type, array.flat))
    if not kinds <= {int, float} and kinds != {bool}:
        return None
    dtype = "|b1" if kinds == {bool} else "<f8" if float in kinds else "<i8"
    if dtype == "<i8" and not all(_INT64.min <= number <= _INT64.max for number in array.flat):
        return None
    return array.astype(dtype)


def _encoded(field: Field, cells: Cells, place: str) -> TypedColumn:
    codec = codec_for(field)
    sentinel = b""
    if field.codec.name == "json":
        first = next(value for value, ok in zip(cells.values, cells.valid, strict=True) if ok)
        sentinel = bytes(codec.encode({} if isinstance(first, dict) else []))
    values = []
    for row, (value, ok) in enumerate(zip(cells.values, cells.valid, strict=True)):
        try:
            values.append(bytes(codec.encode(value)) if ok else sentinel)
        except (CodecError, TypeError, ValueError, RecursionError) as error:
            raise UsageError(
                f"{place}, row {row} (counted from 0): expected a value that can be stored, {error}"
            ) from error
    return TypedColumn(field, values, sentinel)
