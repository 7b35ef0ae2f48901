"""Reading ahead: the system is asked for the bytes of batches that no thread has begun yet."""

import contextlib
import os
import threading
from collections.abc import Callable

from readers.order.stores import Residence

_JOIN_S = 5.0
_BATCHES = 4
_SHARE = 8
"""What is read ahead may take this part of the memory that the page cache may keep."""


def default_depth(residence: Residence, batch_bytes: float) -> int:
    """Batches to read ahead of a dataset: none where the data stay in memory, else a few, as memory allows."""
    if residence.in_memory:
        return 0
    room = _BATCHES if residence.memory is None else int(residence.memory / _SHARE / max(1.0, batch_bytes))
    return max(1, min(_BATCHES, room))


class ReadAhead:
    """Calls ``ask(number)`` for the batches behind those that were begun, in a thread of its own.

    Nothing is decoded or kept here: the bytes wait in the system's page cache.

    Parameters
    ----------
    ask : callable
        Errors in it are left to the read itself, which meets them too and reports them.
    jobs : int
        Batches that there are.
    depth : int
        Batches ahead, 1 or more.
    """

    def __init__(self, ask: Callable[[int], None], jobs: int, depth: int) -> None:
        self._ask = ask
        self._jobs = jobs
        self._depth = depth
        self._begun = 0
        self._pid = os.getpid()
        self._stopped = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="readers-loader-ahead", daemon=True)
        self._thread.start()

    def begin(self, number: int) -> None:
        """Say that a thread begins with batch `number`."""
        with self._changed:
            self._begun = max(self._begun, number + 1)
            self._changed.notify()

    def stop(self) -> None:
        """End the thread. If it hangs in a read it is left behind."""
        if os.getpid() != self._pid:  # no thread survives a fork, but the lock that one held stays locked
            return
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        number = 0
        while True:
            with self._changed:
                while not self._stopped and self._begun < self._jobs and number >= self._begun + self._depth:
                    self._changed.wait()
                number = max(number, self._begun)
                if self._stopped or number >= self._jobs:
                    return
            with contextlib.suppress(Exception):  # the read itself reports it
                self._ask(number)
            number += 1
