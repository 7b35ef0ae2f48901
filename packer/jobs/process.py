"""A process of our own: how it is started, and inside it the frame around its work, streams, threads and end."""

import ctypes
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TextIO

_PR_SET_PDEATHSIG = 1
"""A constant of Linux's ``prctl.h``."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Constants of glibc's ``malloc.h``."""

_KEPT_BYTES = 1 << 26

_ONE_THREAD = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "OPENCV_FOR_THREADS_NUM",
    ),
    "1",
)
"""Environment variables that make the libraries of a new process use one thread."""

Requests = queue.SimpleQueue[dict[str, Any]]


def module_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs one of our modules: ``python -m``, with nothing added to the path."""
    return [sys.executable, "-P", "-m", module, *arguments]


def inherited_environment() -> dict[str, str]:
    """The environment for a new process: it can import what this one can, steps too, and uses one thread for math."""
    path = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    return {**os.environ, **_ONE_THREAD, "PYTHONPATH": path}


@contextmanager
def entry_point() -> Iterator[tuple[int, TextIO]]:
    """The frame around everything that our own processes do. It takes the streams (`take_streams`) and yields them.

    Ctrl-C is left to the parent, and the process ends soon after its parent. An error ends it at once, with a traceback
    in the log and exit status 1: remaining threads must not keep a broken process alive.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # see `packer.vision.openvino`
    end_with_parent()
    keep_memory()
    try:
        yield take_streams()
    except BaseException:
        _print_error()
        os._exit(1)


def take_streams() -> tuple[int, TextIO]:
    """Keep standard input and output for the parent: steps read empty input, and print to standard error.

    Returns
    -------
    requests : int
        Descriptor of the former standard input.
    answers : text file
        The former standard output, line-buffered.
    """
    requests = os.dup(0)
    answers = os.fdopen(os.dup(1), "w", encoding="ascii", buffering=1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers


def read_requests(descriptor: int) -> Requests:
    """Read requests from a descriptor: JSON objects, one per line. This process ends when they end (`listen`)."""
    requests: Requests = queue.SimpleQueue()

    def read() -> None:
        with os.fdopen(descriptor, encoding="ascii") as lines:
            for line in lines:
                requests.put(json.loads(line))

    listen(read)
    return requests


def listen(take: Callable[[], None]) -> None:
    """Run a function in a thread. When it returns or fails, this process and all that it started end at once."""

    def run() -> None:
        try:
            take()
        except BaseException:
            _print_error()
        finally:
            end_group()

    threading.Thread(target=run, daemon=True).start()


def send(answers: TextIO, **message: Any) -> None:
    """Write one message to the parent."""
    answers.write(json.dumps(message) + "\n")


def end_group() -> NoReturn:
    """End this process at once, whatever it is doing, with all that it started."""
    if os.name == "posix" and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def end_with_parent() -> None:
    """Have Linux end this process soon after its parent, even while a step holds the interpreter's lock.

    The parent's death is signalled as SIGHUP. Its handler is the C library's ``alarm``, called with the signal's
    number, 1: so the thread that sees the end of standard input has one second for `end_group`, before SIGALRM ends the
    process without asking the interpreter.
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


def keep_memory() -> None:
    """Have glibc keep up to `_KEPT_BYTES` that were freed, instead of asking the system for fresh pages each time.

    By default it gives back the memory of nearly every image, and the system clears each page anew.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # another C library has none
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES // 2)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside the block, run OpenCV and torch, if they are loaded, with one thread."""
    cv2, torch = sys.modules.get("cv2"), sys.modules.get("torch")
    before = (cv2.getNumThreads() if cv2 else 1, torch.get_num_threads() if torch else 1)
    _set_threads(cv2, torch, (1, 1))
    try:
        yield
    finally:
        _set_threads(cv2, torch, before)


def _set_threads(cv2: object, torch: object, threads: tuple[int, int]) -> None:
    if cv2 is not None:
        cv2.setNumThreads(threads[0])  # type: ignore[attr-defined]  # the module, seen through sys.modules
    if torch is not None:
        torch.set_num_threads(threads[1])  # type: ignore[attr-defined]  # the module, seen through sys.modules


def _print_error() -> None:
    """Write the traceback of the current error to the log."""
    traceback.print_exc()
    sys.stderr.flush()
