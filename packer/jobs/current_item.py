"""Current item of a worker, in memory that survives it: the coordinating process can read it at any time.

A message for each item would cost both processes as much as the work on a tiny image.
"""

import mmap
import struct
from pathlib import Path

_ITEM = struct.Struct("<q")
_FRAMES = struct.Struct("<q")
_BOTH = struct.Struct("<qq")
_BYTES = _ITEM.size + _FRAMES.size
_NONE = -1


class CurrentItem:
    """The item that a worker is at, and how many frames of it were examined, in a file that both processes have mapped.

    Parameters
    ----------
    path : Path
        A file that `create` has made.
    """

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _BYTES)

    @classmethod
    def create(cls, path: Path) -> "CurrentItem":
        """Make the file, in place of an older one, and map it. No item is under way."""
        path.unlink(missing_ok=True)
        path.write_bytes(_ITEM.pack(_NONE) + _FRAMES.pack(0))
        return cls(path)

    def set(self, item: int | None) -> None:
        """Note the item that begins; None if one has ended."""
        _BOTH.pack_into(self._memory, 0, _NONE if item is None else item, 0)

    def set_frames(self, frames: int) -> None:
        """Note how many frames of the item were examined."""
        _FRAMES.pack_into(self._memory, _ITEM.size, frames)

    def frames(self) -> int:
        """How many frames of the item were examined so far."""
        return int(_FRAMES.unpack_from(self._memory, _ITEM.size)[0])

    def get(self) -> int | None:
        """The item that is, or was, under way."""
        (item,) = _ITEM.unpack_from(self._memory)
        return None if item == _NONE else item
