"""Standard output, where commands print their results."""

import os
import sys
from contextlib import suppress
from pathlib import Path

from shardspec.errors import ShardspecError, system_reason


def print_out(text: str = "") -> None:
    """Print a line and flush it, so that a failure can still be reported. A closed pipe is not an error.

    Raises
    ------
    ShardspecError
        If standard output cannot be written.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        # Python writes the rest of the buffer again at exit: send it to the null device.
        with suppress(OSError), Path(os.devnull).open("wb") as null:  # standard output may have no file descriptor
            os.dup2(null.fileno(), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise ShardspecError(f"standard output cannot be written: {system_reason(error)}") from error
