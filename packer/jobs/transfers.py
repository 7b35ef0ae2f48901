"""Uploads and downloads in threads."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeVar

from shardspec.stores.daemons import Daemons

T = TypeVar("T")
S = TypeVar("S")

_THREADS = 4
"""Transfers under way at a time. Four streams fill the link of one store."""


class Transfers(Generic[T, S]):
    """Calls of a function in a few threads. After an error or Ctrl-C, the threads are not waited for.

    Parameters
    ----------
    transfer : callable
        Transfers one file.
    """

    def __init__(self, transfer: Callable[[T], S]) -> None:
        self._transfer = transfer
        self._daemons = Daemons(_THREADS, "transfer")
        self._ended: SimpleQueue[tuple[T, Future[S]]] = SimpleQueue()
        self._failed: Future[S] | None = None
        self._added = self._taken = 0

    @property
    def left(self) -> int:
        """Number of transfers whose results have not been yielded."""
        return self._added - self._taken

    def add(self, file: T) -> None:
        """Begin a transfer. Raise the error of an earlier one."""
        if self._failed is not None:
            self._failed.result()
        self._added += 1
        self._daemons.submit(self._transfer, file).add_done_callback(partial(self._end, file))

    def results(self) -> Iterator[tuple[T, S]]:
        """Yield the results of all transfers as they end. Raise the first error."""
        while self.left:
            file, future = self._ended.get()
            result = future.result()
            self._taken += 1
            yield file, result

    def close(self) -> None:
        """Begin no further transfers."""
        self._daemons.close()

    def _end(self, file: T, future: "Future[S]") -> None:
        if not future.cancelled():
            self._failed = self._failed or (future if future.exception() else None)
            self._ended.put((file, future))
