"""The ``packer`` command's first steps: Ctrl-C and ``kill`` are quiet from here on, while the rest is still being imported.

So this file imports next to nothing. What the command does is in `packer.cli.line`.
"""

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from types import FrameType
from typing import NoReturn

EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status (see `packer.cli.line`)."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    # Not where it is ignored (nohup), nor under another program's own handler.
    early = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if early:
        signal.signal(signal.SIGINT, _leave)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # until the command that runs takes it
        signal.signal(signal.SIGTERM, _leave)
    try:
        run = import_module("packer.cli.line").prepare(arguments)
    finally:
        if early:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    status: int = run()
    return status


def _leave(_signal: int, _frame: FrameType | None) -> NoReturn:
    """End at once. Nothing is begun yet, and an exception inside an import may be taken for a library's failure."""
    os.write(2, b"packer: interrupted\n")
    os._exit(EXIT_INTERRUPTED)
