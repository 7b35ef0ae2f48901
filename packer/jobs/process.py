"""What the processes that a build starts have in common: their standard streams, and that none outlives the build."""

import ctypes
import json
import os
import signal
import sys
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
