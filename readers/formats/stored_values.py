"""Decode values that a format stores in another form than their encoded bytes (`shardspec.formats.index.Stored`).

Every function copies rows of a field into ``out[at]`` and raises `IndexFormatError` if the stored bytes are invalid.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from readers.formats.mapping import put, take_bytes
from shardspec.columns import IntArray
from shardspec.formats.index import IndexFormatError
from shardspec.formats.tfrecord import read_varints, varint_bytes
from shardspec.formats.webdataset import NUMBER_BYTES_MAX
from shardspec.schema import Field

if TYPE_CHECKING:
    from readers.formats.indexed import Section


def read_stored(section: "Section", field: Field, rows: IntArray, out: Any, at: IntArray) -> None:
    """Copy rows of a field whose form is not plain."""
    if section.stored.form == "shaped":
        _read_shaped(section, rows, out, at)
    elif field.is_fixed:
        values = _FIXED[section.stored.form](section, field, rows)
        put(values.reshape(len(rows), *field.fixed_shape), out, at)
    else:
        decode = _RAGGED[section.stored.form]
        for place, start, end in zip(at.tolist(), *(part.tolist() for part in section.extents(rows)), strict=True):
            data = np.frombuffer(section.span(start, end), np.uint8)
            out[place] = decode(section, field, data, start, end).view(np.uint8).data


def _read_shaped(section: "Section", rows: IntArray, out: Any, at: IntArray) -> None:
    """Copy arrays whose shapes are in the index: the encoded value is the shape, then the array."""
    for row, place, data in zip(rows.tolist(), at.tolist(), _spans(section, rows), strict=True):
        out[place] = memoryview(section.shapes[row].tobytes() + data)


def _spans(section: "Section", rows: IntArray) -> Iterator[memoryview]:
    starts, ends = section.extents(rows)
    return map(section.span, starts.tolist(), ends.tolist())


def _fixed_bytes(section: "Section", rows: IntArray) -> npt.NDArray[np.uint8]:
    assert section.stored.size is not None
    return take_bytes(section.data, section.starts_of(rows), section.stored.size)


def _fixed_numbers(section: "Section", field: Field, rows: IntArray) -> Any:
    """Read numbers of another dtype."""
    return _fixed_bytes(section, rows).view(section.stored.dtype).astype(field.numpy_dtype)


def _fixed_bits(section: "Section", field: Field, rows: IntArray) -> Any:
    """Read booleans, eight to a byte, the lowest bit first."""
    assert section.stored.size is not None
    bits = section.starts_of(rows)[:, None] + np.arange(section.stored.size)
    return (section.data[bits >> 3] >> (bits & 7) & 1).astype(bool)


def _fixed_varints(section: "Section", field: Field, rows: IntArray) -> Any:
    return _integers(field, _fixed_bytes(section, rows).reshape(-1))


def _fixed_decimals(section: "Section", field: Field, rows: IntArray) -> Any:
    """Read integers in decimal digits."""
    starts, ends = section.extents(rows)
    try:
        if (ends - starts > NUMBER_BYTES_MAX).any():
            raise ValueError
        texts = list(map(bytes, _spans(section, rows)))
        numbers = np.array([int(text) for text in texts], field.numpy_dtype)
        if [b"%d" % number for number in numbers.tolist()] != texts:
            raise ValueError
    except (ValueError, OverflowError):
        raise IndexFormatError(f"integers of {field.dtype} in decimal digits", "others") from None
    return numbers


def _ragged_numbers(section: "Section", field: Field, data: npt.NDArray[np.uint8], start: int, end: int) -> Any:
    return data.view(section.stored.dtype).astype(field.numpy_dtype)


def _ragged_bits(section: "Section", field: Field, data: npt.NDArray[np.uint8], start: int, end: int) -> Any:
    return np.unpackbits(data, bitorder="little")[start % 8 :][: end - start]


def _ragged_varints(section: "Section", field: Field, data: npt.NDArray[np.uint8], start: int, end: int) -> Any:
    numbers = _integers(field, data)
    if len(numbers) * field.numpy_dtype.itemsize % field.row_bytes:
        raise IndexFormatError("whole rows", f"{len(numbers)} numbers")
    return numbers


def _integers(field: Field, data: npt.NDArray[np.uint8]) -> Any:
    """Read varints as numbers of the field's dtype."""
    try:
        numbers, lengths = read_varints(data)
    except ValueError as error:
        raise IndexFormatError("varints", str(error)) from error
    out = numbers.astype(field.numpy_dtype)
    if not np.array_equal(out.astype(np.int64), numbers) or (field.is_fixed and (lengths != varint_bytes(field)).any()):
        raise IndexFormatError(f"integers of {field.dtype}", "others")
    return out


_FIXED = {"numbers": _fixed_numbers, "bits": _fixed_bits, "varints": _fixed_varints, "decimal": _fixed_decimals}
_RAGGED = {"numbers": _ragged_numbers, "bits": _ragged_bits, "varints": _ragged_varints}
