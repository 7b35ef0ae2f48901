"""The short way of plain pictures whose bytes are kept: from the file to the row, without the chain.

For a small picture the chain takes longer than all that is done with the picture itself. Whatever is not plain (a
picture that does not pass the check, a file that has changed, a further file) goes the long way, which says why.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from packer.recipe import Recipe
from packer.sources.item import PACKED_ROW, Item
from packer.steps.encode import EncodedValue, Encoder
from shardspec.errors import CodecError, SchemaError
from shardspec.registry import import_target

if TYPE_CHECKING:
    from packer.vision.decode.jpeg_header import JpegHeader

_MOST_BYTES = 1 << 18
"""Larger files go the long way, which looks at their first bytes before it reads the rest."""

_SUFFIXES = (".jpg", ".jpeg", ".JPG", ".JPEG")

_OPEN = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)

Row = dict[str, EncodedValue]


def keeps_pictures(recipe: Recipe) -> bool:
    """Whether no step or encoding of a recipe looks at the pixels of a JPEG whose bytes may be kept."""
    resizes = recipe.size is not None and recipe.resize != "none"
    own = {step.use for step in recipe.chain} <= {"decode", "resize"}
    return own and not resizes and recipe.encode == "jpeg" and recipe.progressive != "baseline" and recipe.also is None


class PlainPictures:
    """Makes the rows of plain pictures, the same as the steps and the encoder of a recipe would.

    Parameters
    ----------
    encoder : Encoder
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._check: Callable[[bytes], JpegHeader | None] = import_target(
            "packer.vision.decode.picture:check_kept", what="step 'decode'", extra="pack"
        )
        self._frame = encoder.encode({"frame": 0, "time": 0.0})

    @classmethod
    def of(cls, recipe: Recipe, encoder: Encoder) -> "PlainPictures | None":
        """The short way of a recipe; None if it has none."""
        steps = [step.use for step in recipe.chain]
        reads = steps[:1] == ["decode"] and "decode" not in steps[1:]
        plain = reads and keeps_pictures(recipe) and not recipe.restart_markers and not recipe.field_codecs
        return cls(encoder) if plain else None

    def row(self, item: Item, key: str) -> Row | None:
        """The row of an item; None if it has to go the long way.

        Parameters
        ----------
        item : Item
        key : str
            The key of the item's only sample.
        """
        if (
            item.path is None
            or item.member is not None
            or item.reject is not None
            or item.files
            or item.arrays
            or not item.mtime_ns
            or not 0 < item.bytes <= _MOST_BYTES
            or not item.name.endswith(_SUFFIXES)
        ):
            return None
        columns, encoder = item.columns, self._encoder
        if columns and (PACKED_ROW in columns or "image" in columns):
            return None
        data = _read(item.path, item.bytes, item.mtime_ns)
        header = None if data is None else self._check(data)
        if data is None or header is None:
            return None
        try:
            row = {"source": encoder.text(item.name)}
            if columns:
                row |= encoder.encode({**columns})
            row |= self._frame
            row["key"] = encoder.text(key)
        except (SchemaError, CodecError):
            return None
        row["image"] = encoder.picture(data, header)
        return row


def _read(path: str, size: int, mtime_ns: int) -> bytes | None:
    """The bytes of a file that has the size and time that it is to have, once it is read; else None."""
    try:
        descriptor = os.open(path, _OPEN)
        try:
            data = os.read(descriptor, size)
            found = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except (OSError, ValueError, MemoryError):
        return None
    return data if len(data) == size == found.st_size and found.st_mtime_ns == mtime_ns else None
