"""What a picture or a video is read from: a file, or a function that opens a part of one."""

from collections.abc import Callable
from os import PathLike, fsdecode
from typing import BinaryIO

Input = str | PathLike[str] | Callable[[], BinaryIO]
"""A path, or a function that returns a new binary file each time, which can be sought in."""


def open_input(source: Input) -> BinaryIO:
    """Open an input for reading; the caller closes it."""
    return source() if callable(source) else open(fsdecode(source), "rb")  # noqa: PTH123 -- a path may be a str
