"""A dataset's fields as other libraries' shards hold them: one value of each field, by its kind."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from shardspec.codecs import codec_for
from shardspec.errors import BuildError
from shardspec.schema import Field, Schema

_FILE_MAX = 2**32 - 1
"""Offsets in the files of both libraries are of 32 bits."""


@dataclass(frozen=True)
class Leaf:
    """How one field's values are written.

    Attributes
    ----------
    name : str
    kind : str
        ``"text"``, ``"json"``, ``"blob"``, ``"number"``, ``"array"``; of encoded images, the name of their codec.
    dtype : dtype
        Of a number or an array.
    shape : tuple of int or None
        Of an array; None if it varies.
    value : callable
        From a stored value to bytes (UTF-8 for text), or to an array.
    """

    name: str
    kind: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None
    value: Callable[[Any], Any]


def leaves_of(schema: Schema) -> list[Leaf]:
    """The leaves of a schema's fields, sorted by name."""
    return sorted((_leaf(field) for field in schema), key=lambda leaf: leaf.name)


def _leaf(field: Field) -> Leaf:
    dtype, codec = field.numpy_dtype, field.codec.name
    if field.kind == "text":
        return Leaf(field.name, "json" if codec == "json" else "text", dtype, None, _utf8)
    if field.kind == "fixed":
        return Leaf(field.name, "array" if field.shape else "number", dtype, field.fixed_shape, np.asarray)
    if field.is_encoded_image:
        return Leaf(field.name, codec, dtype, None, bytes)
    if field.kind == "bytes" and len(field.shape) == 1:
        return Leaf(field.name, "blob", dtype, None, bytes)
    return Leaf(field.name, "array", dtype, None, codec_for(field).decode)


def _utf8(data: Any) -> bytes:
    """A text in valid UTF-8; bytes that are not become escapes."""
    raw = bytes(data)
    try:
        raw.decode()
    except UnicodeDecodeError:
        return raw.decode("utf-8", "backslashreplace").encode()
    return raw


class Write(Protocol):
    """Writes the samples of one file."""

    def __call__(self, samples: Sequence[bytes], offsets: Sequence[int]) -> None:
        """Write a file; `offsets` are the samples' ends from the first one's beginning, with 0 before them."""
        ...


class Cut:
    """Collects samples, and has a file written before it would grow beyond a limit.

    Parameters
    ----------
    limit : int
        Bytes of samples in a file; one that is larger has a file of its own.
    write : Write
    """

    def __init__(self, limit: int, write: Write) -> None:
        self._limit, self._write = limit, write
        self._samples: list[bytes] = []
        self._offsets = [0]

    def add(self, sample: bytes) -> None:
        """Append a sample.

        Raises
        ------
        BuildError
            If it is larger than any file can be.
        """
        if len(sample) > _FILE_MAX // 2:
            raise BuildError(
                f"expected samples of less than 2 GiB, which offsets of 32 bits reach, found {len(sample)} bytes"
            )
        if self._samples and self._offsets[-1] + len(sample) > self._limit:
            self.close()
        self._samples.append(sample)
        self._offsets.append(self._offsets[-1] + len(sample))

    def close(self) -> None:
        """Write the last file."""
        if self._samples:
            self._write(self._samples, self._offsets)
        self._samples, self._offsets = [], [0]
