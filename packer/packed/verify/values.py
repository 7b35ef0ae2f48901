"""Checks of the values of one batch of samples, beyond the check that they decode."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from packer.assembly.samples import codecs_of
from shardspec.codecs.base import Codec
from shardspec.columns import Columns
from shardspec.schema import NO_CLASS, Field, Schema

BoolArray = npt.NDArray[np.bool_]


class Fault(NamedTuple):
    """An invalid value: its row in the batch, its field, and a message with what was expected and found."""

    row: int
    field: str
    message: str


class ValueChecks:
    """Decodes every value of a batch and checks shapes, dtypes and ranges.

    Parameters
    ----------
    schema : Schema
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._codecs = codecs_of(schema)

    def faults(self, columns: Columns) -> Iterator[Fault]:
        """Yield everything that is wrong in a batch of encoded columns."""
        sides: npt.NDArray[np.float64] | None = None
        for field in self._schema:
            if field.is_fixed:
                yield from _fixed_faults(field, columns[field.name])
                continue
            shapes = np.full((len(columns[field.name]), 2), np.nan)
            for row, data in enumerate(columns[field.name]):
                shape, message = _decode(field, self._codecs[field.name], data)
                if message:
                    yield Fault(row, field.name, message)
                elif field.name == "image" and len(shape) == 3:
                    shapes[row] = shape[1], shape[0]
            if field.name == "image":
                sides = shapes
        if sides is None and "image" in self._schema and self._schema["image"].is_fixed:
            height, width = (*self._schema["image"].fixed_shape, 1, 1)[:2]
            sides = np.tile(np.array([width, height], np.float64), (len(columns["image"]), 1))
        yield from self._geometry_faults(columns, sides)

    def _geometry_faults(self, columns: Columns, sides: npt.NDArray[np.float64] | None) -> Iterator[Fault]:
        """Yield invalid points, boxes and matrices of face samples."""
        for name, (shape, wrong, expected) in _GEOMETRY.items():
            if name not in self._schema or not self._schema[name].is_fixed:
                continue
            field = self._schema[name]
            if field.dtype[1] != "f" or not _fits(field.fixed_shape, shape):
                continue
            values = columns[name].astype(np.float64)
            for row in np.flatnonzero(wrong(values, sides)).tolist():
                yield Fault(row, name, f"expected {expected}, found {np.array2string(values[row], threshold=12)}")


def _decode(field: Field, codec: Codec, data: Any) -> tuple[tuple[int, ...], str]:
    """Return the shape of a decoded value, and a description of what is wrong with it (empty if nothing)."""
    try:
        value = codec.decode(data)
    except Exception as error:  # any error of a library over hostile bytes is a finding
        return (), f"expected a value that decodes, found {type(error).__name__}: {error}"
    if not isinstance(value, np.ndarray):
        return (), ""
    fits = value.ndim == len(field.shape) and all(
        axis is None or axis == found for axis, found in zip(field.shape, value.shape, strict=True)
    )
    if not fits or value.dtype != field.numpy_dtype:
        return (), f"expected {field.dtype} of shape {field.shape}, found {value.dtype.str} of shape {value.shape}"
    return value.shape, ""


def _fixed_faults(field: Field, column: npt.NDArray[Any]) -> Iterator[Fault]:
    if field.dtype == "|b1":
        wrong = (column.view(np.uint8) > 1).reshape(len(column), -1).any(axis=1)
        for row in np.flatnonzero(wrong).tolist():
            yield Fault(row, field.name, "expected bytes 0 or 1 for a boolean, found others")
    if field.classes is not None:
        known = (column >= 0) & (column < len(field.classes))
        for row in np.flatnonzero(~known & (column != NO_CLASS)).tolist():
            message = f"expected a class of 0 to {len(field.classes) - 1}, or {NO_CLASS} for none, found {column[row]}"
            yield Fault(row, field.name, message)


def _not_finite(values: npt.NDArray[np.float64], _: Any) -> BoolArray:
    return np.asarray(~np.isfinite(values).reshape(len(values), -1).all(axis=1), np.bool_)


def _far_points(values: npt.NDArray[np.float64], sides: npt.NDArray[np.float64] | None) -> BoolArray:
    """Return which rows have points that are not finite, or further outside the image than its own size."""
    wrong = _not_finite(values, None)
    if sides is None:
        return wrong
    points = values.reshape(len(values), -1, 2)
    limits = sides[:, None, :]
    with np.errstate(invalid="ignore"):
        return wrong | ((points < -limits) | (points > 2 * limits)).any(axis=(1, 2))


def _bad_boxes(values: npt.NDArray[np.float64], _: Any) -> BoolArray:
    boxes = values.reshape(len(values), -1, 4)
    with np.errstate(invalid="ignore"):
        turned = (boxes[..., 0] > boxes[..., 2]) | (boxes[..., 1] > boxes[..., 3])
    return _not_finite(values, None) | np.asarray(turned.any(axis=1), np.bool_)


def _far_boxes(values: npt.NDArray[np.float64], sides: npt.NDArray[np.float64] | None) -> BoolArray:
    return _bad_boxes(values, None) | _far_points(values, sides)


def _flat_matrices(values: npt.NDArray[np.float64], _: Any) -> BoolArray:
    with np.errstate(all="ignore"):
        flat = values[:, 0, 0] * values[:, 1, 1] - values[:, 0, 1] * values[:, 1, 0] == 0
    return np.asarray(_not_finite(values, None) | flat, np.bool_)


_POINTS = "finite points, none further outside the image than its own size"
_Rule = tuple[tuple[int | None, ...], Callable[..., BoolArray], str]
_GEOMETRY: Mapping[str, _Rule] = {
    "landmarks": ((None, 2), _far_points, _POINTS),
    "hull": ((None, 2), _far_points, _POINTS),
    "regions": ((None, 4), _far_boxes, "finite boxes (left, top, right, bottom) about the image"),
    "box": ((4,), _bad_boxes, "a finite box (left, top, right, bottom)"),
    "matrix": ((2, 3), _flat_matrices, "a finite matrix that can be inverted"),
    "score": ((), _not_finite, "a finite number"),
    "time": ((), _not_finite, "a finite number of seconds"),
}


def _fits(shape: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    return len(shape) == len(expected) and all(e in (None, s) for s, e in zip(shape, expected, strict=True))
