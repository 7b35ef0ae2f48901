"""Faults of the machine, not of an item: no memory, a full disk, and reads that fail but may succeed later."""

import errno
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

from shardspec.errors import BuildError

_PASSING = frozenset(
    getattr(errno, name)
    for name in (
        "EAGAIN",
        "EBUSY",
        "ECONNABORTED",
        "ECONNRESET",
        "EHOSTDOWN",
        "EHOSTUNREACH",
        "EIO",
        "EMFILE",
        "ENETDOWN",
        "ENETRESET",
        "ENETUNREACH",
        "ENFILE",
        "ENOTCONN",
        "EREMOTEIO",
        "ESTALE",
        "ETIMEDOUT",
    )
    if hasattr(errno, name)  # not every system has all of them
)
"""Errors of disks, network file systems and full tables, which may be gone a moment later."""

_FULL = frozenset(getattr(errno, name) for name in ("ENOSPC", "EDQUOT") if hasattr(errno, name))

_OF_MEMORY = re.compile(
    r"out of memory|bad_alloc|(insufficient|not enough) memory|"
    r"(can'?t|cannot|failed to|unable to) (allocate|start new thread)",
    re.IGNORECASE,
)
"""Messages of libraries that raise another error than `MemoryError`: OpenCV, OpenVINO, torch, Pillow, threads."""


def find_memory_error(error: BaseException) -> BaseException | None:
    """Return the error, among an error and its causes, that says that memory ran out."""
    for one in _chain(error):
        if isinstance(one, MemoryError) or (isinstance(one, OSError) and one.errno == errno.ENOMEM):
            return one
    return next((one for one in _chain(error) if _is_of_library(one) and _OF_MEMORY.search(str(one))), None)


def find_full_disk(error: BaseException) -> OSError | None:
    """Return the error, among an error and its causes, that says that a disk or a quota is full."""
    return next((one for one in _chain(error) if isinstance(one, OSError) and one.errno in _FULL), None)


def may_pass(error: BaseException) -> bool:
    """Return whether an error or one of its causes is a failed read that may succeed when it is repeated."""
    return any(isinstance(one, OSError) and one.errno in _PASSING for one in _chain(error))


def stop_if_passing(error: BaseException, place: object, done: str = "examined") -> None:
    """Raise `BuildError` if a fault of a listing may pass. Plans depend on listings, so it must not make a reject."""
    if may_pass(error):
        raise BuildError(f"cannot be {done}: {error}", place=place, hint="run the same command again") from error


def describe_error(error: BaseException) -> str:
    """Return the type and the message of an error, or its type alone if it has no message."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def describe_line(error: BaseException, file: str) -> str:
    """Return the line of a user's file at which an error was raised, for the end of a message; or empty."""
    # A generator that is left by StopIteration raises another error in its place, which has not been in its file.
    first = error.__cause__ if isinstance(error.__cause__, StopIteration) else error
    lines = [frame.lineno for frame in traceback.extract_tb(first.__traceback__) if frame.filename == file]
    return f" ({Path(file).name}, line {lines[-1]})" if lines else ""


def _is_of_library(error: BaseException) -> bool:
    """Return whether an error may come from a library without `MemoryError`. Our messages may quote an item's text."""
    return isinstance(error, RuntimeError | OSError) or type(error).__module__ == "cv2"


def _chain(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
