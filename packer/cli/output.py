"""Standard output, where commands print their results."""

import os
import sys
from contextlib import suppress
from pathlib import Path

from shardspec.errors import ShardspecError, system_reason


def print_out(text: str = "") -> None:
    """Print a line at once: what waits for the end of the process could fail without a message. A closed pipe is no error.

    Raises
    ------
    ShardspecError
        If standard output cannot be written.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        _discard()
        if not isinstance(error, BrokenPipeError):
            raise ShardspecError(f"standard output cannot be written: {system_reason(error)}") from error


def _discard() -> None:
    """Send what is still to be written to standard output nowhere: Python would try once more in the end."""
    with suppress(OSError), Path(os.devnull).open("wb") as nowhere:  # there may be no file behind it
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
