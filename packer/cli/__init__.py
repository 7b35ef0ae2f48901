"""The first steps of the ``packer`` command: from here on, Ctrl-C and ``kill`` print no traceback.

That holds while the rest of the command is being imported, too. So this file imports next to nothing. The rest of the
command is in `packer.cli.line`.
"""

import atexit
import gc
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import FrameType, ModuleType

from shardspec.wording import program

EXIT_INTERRUPTED = 130

_PATIENCE = 2
"""The number of signals during which a command may end in order; one more ends it at once."""


_GARBAGE = 20_000
"""Objects made, beyond those that are gone, until Python looks for circles among them; otherwise 700. Of a listing, whose
items are in no circles, a tenth of the time would be that."""

_MATH_THREADS = "OPENBLAS_NUM_THREADS"


class Interrupts:
    """Handling of Ctrl-C, ``kill``, and the end of a session or of Slurm's time: status 130, and one line on how to continue.

    Before the command has begun, the process ends at once: an exception inside an import may be taken for a library's
    failure. Afterwards the first signal raises `KeyboardInterrupt`, which ends workers and closes files. The second is
    ignored, since it often comes by itself (a terminal sends it to the whole group, and a launcher to its child).
    Once the command is over, the first is ignored, too. The third ends the process at once, whatever it waits for.

    Attributes
    ----------
    line : str
        The message at the end of an interrupted command.
    """

    def __init__(self) -> None:
        self.line = f"{program()}: interrupted"
        self._count = 0
        self._begun = self._reporting = self._over = False
        # Not if the signal is ignored (nohup), nor if another program's own handler is set.
        usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        if sys.platform != "win32":
            usual[signal.SIGHUP] = signal.SIG_DFL
        self._taken = {number: handler for number, handler in usual.items() if signal.getsignal(number) is handler}
        for number in self._taken:
            signal.signal(number, self._handle)

    def begin(self, line: str) -> None:
        """The command begins; the caller catches `KeyboardInterrupt` until it is over."""
        self.line = line
        self._begun = True

    def end(self) -> None:
        """The command is over, and its exit status stands."""
        self._over = True

    def report(self) -> None:
        """Say that the command was interrupted. The command is over."""
        self._reporting = True
        with suppress(OSError):  # its reader, or the whole terminal, may be gone
            os.write(2, self.line.encode("utf-8", "surrogateescape") + b"\n")
        self._over, self._reporting = True, False

    def give_back(self) -> None:
        """Leave the signals as they were found."""
        for number, handler in self._taken.items():
            signal.signal(number, handler)

    def ignore(self) -> None:
        """Ignore the signals in the last moments of the process, when Python itself gives them back to the system."""
        for number in self._taken:
            signal.signal(number, signal.SIG_IGN)

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        self._count += 1
        if self._reporting:
            return
        if not self._begun or self._count > _PATIENCE:
            if not self._over:
                self.report()
            os._exit(EXIT_INTERRUPTED)
        if self._count == 1 and not self._over:
            raise KeyboardInterrupt


class _End:
    """Ends the process once everything is done, as the interpreter does, which first takes every module apart.

    Where modules of the user's own were loaded, such as steps, the end is the interpreter's: they may have files open.

    Attributes
    ----------
    status : int or None
        The exit status; None leaves the end to the interpreter.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        # What is registered first comes last. Those who were here before us, such as a measurement, come after that.
        if not atexit._ncallbacks() and not sys.flags.dev_mode:
            atexit.register(self._end)

    def _end(self) -> None:
        if self.status is None or not _are_installed(sys.modules.values()):
            return
        with suppress(Exception):  # the interpreter says what is wrong with a stream
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.status)


def _are_installed(modules: Iterable[ModuleType]) -> bool:
    """Return whether modules are those of this project and of what is installed."""
    own = [str(Path(__file__).parents[2] / name) + os.sep for name in ("packer", "readers", "shardspec")]
    places = (*own, sys.prefix, sys.base_prefix, "<")
    files = (getattr(module, "__file__", None) for module in [*modules])
    return all(file is None or file.startswith(places) for file in files)


@contextmanager
def _importing() -> Iterator[None]:
    """Make the imports of a new process inside the block quick.

    Nothing of what they make is garbage, so there is no use in looking for it; and little of what a command makes later
    is, so it is looked for less often. And numpy's library of linear algebra starts no threads: they keep the
    processors busy for a moment, and are not needed.
    """
    gc.disable()
    chosen = os.environ.get(_MATH_THREADS)
    os.environ.setdefault(_MATH_THREADS, "1")
    try:
        yield
    finally:
        if chosen is None:
            del os.environ[_MATH_THREADS]  # it is not meant for processes that are started later
        gc.freeze()
        gc.set_threshold(_GARBAGE)
        gc.enable()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status (see `packer.cli.line`).

    Without `arguments`, those of the process are used, and the caller is to end the process with that status.
    """
    if arguments is None:
        return _run_process()
    interrupts = Interrupts()
    try:
        # Not list(arguments): once `packer list` has run, that name in this package is its module.
        status: int = import_module("packer.cli.line").prepare([*arguments])(interrupts)
    finally:
        interrupts.give_back()
    return status


def _run_process() -> int:
    """Run the command line of this process, which is over then."""
    interrupts, end = Interrupts(), _End()
    atexit.register(interrupts.ignore)
    with _importing():
        run = import_module("packer.cli.line").prepare(sys.argv[1:])
    end.status = status = run(interrupts)
    return int(status)
