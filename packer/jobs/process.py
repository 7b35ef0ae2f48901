"""What the processes that a build starts have in common: their standard streams, and that none outlives the build."""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TextIO

_PR_SET_PDEATHSIG = 1
"""From Linux's ``prctl.h``."""


def take_streams() -> tuple[int, TextIO]:
    """Keep standard input and output for the build: what steps read is empty, what they print goes to standard error.

    Returns
    -------
    requests : int
        Descriptor of what standard input was.
    answers : text file
        What standard output was; line by line.
    """
    requests = os.dup(0)
    answers = os.fdopen(os.dup(1), "w", encoding="ascii", buffering=1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers


def send(answers: TextIO, **message: Any) -> None:
    """Write one message to the build."""
    answers.write(json.dumps(message) + "\n")


def end_group() -> NoReturn:
    """End this process at once, whatever it is doing, and what it started."""
    if os.name == "posix" and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def end_with_parent() -> None:
    """Have Linux end this process soon after its parent, even while a step holds the interpreter's lock.

    The parent's death is signalled as SIGHUP, whose number is 1 and whose handler is the C library's ``alarm``: so the thread that
    sees the end of standard input has one second for `end_group`, before SIGALRM ends the process without asking the interpreter.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(int(signal.SIGHUP), ctypes.cast(libc.alarm, ctypes.c_void_p))
    parent = os.getppid()
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGHUP))
    if os.getppid() != parent:
        os._exit(1)


_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def limit_environment(environment: MutableMapping[str, str]) -> None:
    """Tell libraries that a new process will load to use one thread."""
    for name in _VARIABLES:
        environment[name] = "1"


@contextmanager
def one_thread() -> Iterator[None]:
    """Run OpenCV and torch, as far as they are loaded, with one thread inside the block."""
    cv2, torch = sys.modules.get("cv2"), sys.modules.get("torch")
    before = (cv2.getNumThreads() if cv2 else 1, torch.get_num_threads() if torch else 1)
    _set(cv2, torch, (1, 1))
    try:
        yield
    finally:
        _set(cv2, torch, before)


def _set(cv2: object, torch: object, threads: tuple[int, int]) -> None:
    if cv2 is not None:
        cv2.setNumThreads(threads[0])  # type: ignore[attr-defined]  # the module, seen through sys.modules
    if torch is not None:
        torch.set_num_threads(threads[1])  # type: ignore[attr-defined]  # the module, seen through sys.modules


def module_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module of ours, ``python -m`` with nothing added to the path."""
    return [sys.executable, "-P", "-m", module, *arguments]


def inherited_environment() -> dict[str, str]:
    """The environment of this process: what can be imported here (steps, too) can there, in the same order; math runs in one thread."""
    found = dict(os.environ)
    limit_environment(found)
    found["PYTHONPATH"] = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    return found
