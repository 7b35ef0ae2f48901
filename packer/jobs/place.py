"""Which item a worker is at, in memory that survives it: the coordinating process reads it whenever it wants to know.

A message for each item would cost both processes as much as the work on a tiny picture.
"""

import mmap
import struct
from pathlib import Path

_ITEM = struct.Struct("<q")
_NONE = -1


class Place:
    """The item that a worker is at, in a file that both processes have mapped.

    Parameters
    ----------
    path : Path
        A file that `create` has made.
    """

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _ITEM.size)

    @classmethod
    def create(cls, path: Path) -> "Place":
        """Make the file, in place of an older one, and map it. No item is under way."""
        path.unlink(missing_ok=True)
        path.write_bytes(_ITEM.pack(_NONE))
        return cls(path)

    def set(self, item: int | None) -> None:
        """Note the item that begins; None if one has ended."""
        _ITEM.pack_into(self._memory, 0, _NONE if item is None else item)

    def get(self) -> int | None:
        """The item that is, or was, under way."""
        (item,) = _ITEM.unpack_from(self._memory)
        return None if item == _NONE else item
