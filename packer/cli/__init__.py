"""Entry point of the ``packer`` command: handles signals before the rest of the command is imported.

Ctrl-C and ``kill`` print no traceback, not even while the command is being imported, so this file imports little.
The command itself is in `packer.cli.line`.
"""

import atexit
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from types import FrameType

from shardspec.wording import program

EXIT_INTERRUPTED = 130

_MOST_SIGNALS = 2
"""Number of signals after which a command may still shut down in order. The next signal ends it at once."""


class Interrupts:
    """Handler of SIGINT, SIGTERM and SIGHUP: exit with status 130 and print one line that says how to continue.

    Before the command begins, the process exits at once, because an exception inside an import may be mistaken for a
    failure of the library. While the command runs, the first signal raises `KeyboardInterrupt`, which ends workers and
    closes files. The second is ignored, because it often arrives by itself: a terminal signals the whole process group,
    and a launcher also signals its child. After the command has ended, the first is ignored too. The third exits at once.

    Attributes
    ----------
    line : str
        Message printed after an interruption.
    """

    def __init__(self) -> None:
        self.line = f"{program()}: interrupted"
        self._count = 0
        self._begun = self._reporting = self._over = False
        # Signals that are ignored (nohup) or have another program's handler are left alone.
        usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        if sys.platform != "win32":
            usual[signal.SIGHUP] = signal.SIG_DFL
        self._taken = {number: handler for number, handler in usual.items() if signal.getsignal(number) is handler}
        for number in self._taken:
            signal.signal(number, self._handle)

    def begin(self, line: str) -> None:
        """Start raising `KeyboardInterrupt`, which the caller catches, and set the message."""
        self.line = line
        self._begun = True

    def end(self) -> None:
        """Keep the exit status of a command that has ended, even if a signal arrives."""
        self._over = True

    def report(self) -> None:
        """Print the message. The command has ended."""
        self._reporting = True
        with suppress(OSError):  # the terminal may be closed
            os.write(2, self.line.encode("utf-8", "surrogateescape") + b"\n")
        self._over, self._reporting = True, False

    def give_back(self) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._taken.items():
            signal.signal(number, handler)

    def ignore(self) -> None:
        """Ignore the signals while the interpreter shuts down, when Python restores the system's handlers."""
        for number in self._taken:
            signal.signal(number, signal.SIG_IGN)

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        self._count += 1
        if self._reporting:
            return
        if not self._begun or self._count > _MOST_SIGNALS:
            if not self._over:
                self.report()
            os._exit(EXIT_INTERRUPTED)
        if self._count == 1 and not self._over:
            raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status (see `packer.cli.line`).

    Parameters
    ----------
    arguments : sequence of str, optional
        By default the arguments of the process, which must then exit with the returned status.
    """
    interrupts = Interrupts()
    if arguments is None:
        atexit.register(interrupts.ignore)
    try:
        # Not list(...): once `packer list` has run, that name in this package is its module.
        words = sys.argv[1:] if arguments is None else [*arguments]
        status: int = import_module("packer.cli.line").prepare(words)(interrupts)
    finally:
        if arguments is not None:
            interrupts.give_back()
    return status
