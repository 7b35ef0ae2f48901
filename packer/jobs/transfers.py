"""Uploads and downloads in threads."""

from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Generic, TypeVar

T = TypeVar("T")
S = TypeVar("S")

_THREADS = 4
"""Transfers under way at a time. Four streams fill the link of one store."""


class Transfers(Generic[T, S]):
    """Calls of a function in a few threads.

    After an error or Ctrl-C, the threads are not waited for, because a client repeats a request for minutes. So they are
    daemons, and not those of an executor, which the interpreter waits for.

    Parameters
    ----------
    transfer : callable
        Transfers one file.
    """

    def __init__(self, transfer: Callable[[T], S]) -> None:
        self._transfer = transfer
        self._waiting: SimpleQueue[T | None] = SimpleQueue()
        self._results: SimpleQueue[tuple[T, S | BaseException]] = SimpleQueue()
        self._error: BaseException | None = None
        self._ended = Event()
        self._lock = Lock()
        self._added = self._taken = 0

    @property
    def left(self) -> int:
        """Number of transfers whose results have not been yielded."""
        return self._added - self._taken

    def add(self, file: T) -> None:
        """Begin a transfer. Raise the error of an earlier one."""
        if self._error is not None:
            raise self._error
        with self._lock:
            self._added += 1
            if self._added <= _THREADS:
                Thread(target=self._run, daemon=True, name="transfer").start()
        self._waiting.put(file)

    def results(self) -> Iterator[tuple[T, S]]:
        """Yield the results of all transfers as they end. Raise the first error."""
        while self.left:
            file, result = self._results.get()
            if isinstance(result, BaseException):
                raise result
            self._taken += 1
            yield file, result

    def close(self) -> None:
        """Begin no further transfers."""
        self._ended.set()
        for _ in range(_THREADS):
            self._waiting.put(None)

    def _run(self) -> None:
        while (file := self._waiting.get()) is not None and not self._ended.is_set():
            try:
                self._results.put((file, self._transfer(file)))
            except BaseException as error:
                self._error = error
                self._results.put((file, error))
