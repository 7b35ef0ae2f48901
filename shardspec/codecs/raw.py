"""``raw``: little-endian C-order bytes."""

from typing import Any

import numpy as np
import numpy.typing as npt

from shardspec.codecs.base import codec_error
from shardspec.columns import Buffer, fixed_bytes
from shardspec.schema import Field

SHAPE_DTYPE = np.dtype("<u4")
"""Dtype of the axis sizes that are stored before an array of varying shape."""


class RawCodec:
    """Arrays as little-endian C-order bytes; blobs unchanged.

    A *fixed* or *ragged* value is stored without its shape, which follows from the field. A *bytes* value whose shape has
    one axis is a blob, a ``bytes`` object. Other *bytes* values are arrays of varying shape: one little-endian uint32
    per axis, then the array's bytes.
    """

    def __init__(self, field: Field) -> None:
        self.field = field
        self._blob = field.kind == "bytes" and len(field.shape) == 1

    def encode(self, value: Any) -> Buffer:
        """Encode an array of the field's dtype and shape, or a blob."""
        if self._blob:
            if not isinstance(value, Buffer):
                raise codec_error(self.field, expected="bytes", found=type(value).__name__)
            return bytes(value)
        array = np.asarray(value)
        self._check(array)
        if self.field.kind == "bytes":
            return np.array(array.shape, SHAPE_DTYPE).tobytes() + bytes(fixed_bytes(array))
        return fixed_bytes(array)

    def decode(self, data: Buffer, out: npt.NDArray[Any] | None = None) -> Any:
        """Decode an array or a blob. The array may be a read-only view of `data`."""
        if self._blob:
            return bytes(data)
        view = np.frombuffer(data, np.uint8)
        try:
            array = view[self._header_bytes() :].view(self.field.numpy_dtype).reshape(self._shape_of(view))
        except ValueError as error:
            raise codec_error(
                self.field,
                expected=f"{self.field.dtype} values of shape {self.field.shape}",
                found=f"{len(view)} bytes",
            ) from error
        if out is None:
            return array
        out[...] = array
        return out

    def _header_bytes(self) -> int:
        return len(self.field.shape) * SHAPE_DTYPE.itemsize if self.field.kind == "bytes" else 0

    def _shape_of(self, view: npt.NDArray[np.uint8]) -> tuple[int, ...]:
        if self.field.kind == "fixed":
            return self.field.fixed_shape
        if self.field.kind == "ragged":
            # Computed here, because reshape cannot infer -1 if another axis is 0.
            return (len(view) // self.field.row_bytes if self.field.row_bytes else 0, *self.field.fixed_shape)
        shape = tuple(int(axis) for axis in view[: self._header_bytes()].view(SHAPE_DTYPE))
        if any(axis is not None and axis != found for axis, found in zip(self.field.shape, shape, strict=True)):
            raise ValueError(f"shape {shape}")
        return shape

    def _check(self, array: npt.NDArray[Any]) -> None:
        expected = self.field.shape
        fits = array.ndim == len(expected) and all(
            e is None or e == a for e, a in zip(expected, array.shape, strict=True)
        )
        if not fits or array.dtype != self.field.numpy_dtype:
            raise codec_error(
                self.field,
                expected=f"{self.field.dtype} of shape {expected}",
                found=f"{array.dtype.str} of shape {array.shape}",
            )
