"""torch's own threads: each of the Loader's threads uses one, and the rest of the program as many as before."""

import os
import threading
from collections.abc import Callable
from functools import cache

import torch

_LOCK = threading.Lock()
if hasattr(os, "register_at_fork"):  # a child begins with the program's setting, and with a free lock
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


def take_one_thread() -> None:
    """Make the operations of torch that the calling thread runs use this thread alone.

    Otherwise every thread that runs them would start as many more as ``torch.set_num_threads`` says.
    """
    if not _counts_by_thread():
        return
    with _LOCK:
        found: list[int] = []
        try:
            _run_apart(lambda: found.append(torch.get_num_threads()))
        except RuntimeError:  # there is no room for another thread, or the program is ending
            return
        torch.get_num_threads()  # a thread that has not asked yet would adopt what others set later
        torch.set_num_threads(1)
        try:
            _run_apart(lambda: torch.set_num_threads(found[0]))
        except RuntimeError:
            torch.set_num_threads(found[0])


def _run_apart(work: Callable[[], None]) -> None:
    """Run something in a new thread, which has the settings of torch that new threads begin with."""
    thread = threading.Thread(target=work, name="readers-torch-threads")
    thread.start()
    thread.join()


@cache
def _counts_by_thread() -> bool:
    """Whether torch has a setting per thread, as with OpenMP; other builds share one pool, which needs no limit."""
    return "parallel backend: OpenMP" in torch.__config__.parallel_info()
