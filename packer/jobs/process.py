"""Processes that run our own modules: how they are started, and their streams, threads, memory and end."""

import ctypes
import json
import mmap
import os
import queue
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, Self, TextIO

_PR_SET_PDEATHSIG = 1
"""From Linux's ``prctl.h``."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""From glibc's ``malloc.h``."""

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

_ITEM = struct.Struct("<q")
_FRAMES = struct.Struct("<q")
_BOTH = struct.Struct("<qq")
_NO_ITEM = -1

Requests = queue.SimpleQueue[dict[str, Any]]


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs one of our modules, ``python -m`` with nothing added to the path."""
    return [sys.executable, "-P", "-m", module, *arguments]


def inherited_environment() -> dict[str, str]:
    """Return the environment of a new process that can import what this one can and uses one thread for math."""
    path = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    return {**os.environ, **_ONE_THREAD, "PYTHONPATH": path}


@contextmanager
def entry_point() -> Iterator[tuple[int, TextIO]]:
    """Set up a process of ours, and yield its streams (`take_streams`) to the block that does the work.

    Ctrl-C is left to the parent, and the process ends soon after its parent. An error ends the process at once, with a
    traceback in the log and exit status 1, because remaining threads must not keep a broken process alive.
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
    """Reserve standard input and output for the parent. Steps read empty input, and print to standard error.

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
    """Read requests from a descriptor, one JSON object per line. This process ends when the input ends (`listen`)."""
    requests: Requests = queue.SimpleQueue()

    def read() -> None:
        with os.fdopen(descriptor, encoding="ascii") as lines:
            for line in lines:
                requests.put(json.loads(line))

    listen(read)
    return requests


def listen(take: Callable[[], None]) -> None:
    """Run a function in a thread. When it returns or fails, this process and its children end at once."""

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
    """End this process and its children at once."""
    if os.name == "posix" and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def end_with_parent() -> None:
    """Have Linux end this process soon after its parent, even while a step holds the interpreter's lock.

    Linux signals the parent's death as SIGHUP. The handler is the C library's ``alarm``, called with the number of the
    signal, which is 1. So the thread that sees the end of standard input has one second for `end_group` before SIGALRM
    ends the process without the interpreter.
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
    """Have glibc keep up to `_KEPT_BYTES` of freed memory.

    By default, it returns the memory of nearly every image to the system, which clears each page again.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # only glibc has it
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES // 2)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


class CurrentItem:
    """The current item of a worker, and the number of its frames examined so far, in a file that two processes map.

    The coordinating process can read it at any time, even after the worker has died. A message for each item would cost
    both processes as much as the work on a tiny image.

    Parameters
    ----------
    path : Path
        A file made by `create`.
    """

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _BOTH.size)

    @classmethod
    def create(cls, path: Path) -> Self:
        """Create the file, replacing an older one, and map it. No item is under way."""
        path.unlink(missing_ok=True)
        path.write_bytes(_ITEM.pack(_NO_ITEM) + _FRAMES.pack(0))
        return cls(path)

    def set(self, item: int | None) -> None:
        """Record the item that begins; None when an item has ended."""
        _BOTH.pack_into(self._memory, 0, _NO_ITEM if item is None else item, 0)

    def set_frames(self, frames: int) -> None:
        """Record how many frames of the item were examined."""
        _FRAMES.pack_into(self._memory, _ITEM.size, frames)

    def frames(self) -> int:
        """Return how many frames of the item were examined so far."""
        return int(_FRAMES.unpack_from(self._memory, _ITEM.size)[0])

    def get(self) -> int | None:
        """Return the item that is under way, or was when the worker died; None if there is none."""
        (item,) = _ITEM.unpack_from(self._memory)
        return None if item == _NO_ITEM else item


@contextmanager
def one_thread() -> Iterator[None]:
    """Run OpenCV and torch, if they are loaded, with one thread inside the block."""
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
    traceback.print_exc()
    sys.stderr.flush()
