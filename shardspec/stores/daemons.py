"""Calls in daemon threads, which are not waited for after Ctrl-C."""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread, main_thread
from typing import Any, TypeVar

T = TypeVar("T")


class Daemons:
    """Threads for calls that may hang for minutes, such as requests to stores and accesses to network file systems.

    The interpreter does not wait for them when it exits, unlike the threads of an executor.

    Parameters
    ----------
    threads : int
        Largest number of threads. Each of the first calls starts one.
    name : str
        Name of the threads.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._queue: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        self._most, self._name, self._started = threads, name, 0
        self._lock = Lock()

    def submit(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        """Call a function when a thread is free."""
        future = Future[T]()
        self._queue.put((future, call, arguments))
        with self._lock:
            if self._started < self._most:
                self._started += 1
                Thread(target=self._run, daemon=True, name=self._name).start()
        return future

    def close(self) -> None:
        """Cancel the calls that have not begun. The threads end after those that have."""
        with suppress(Empty):
            while (job := self._queue.get_nowait()) is not None:
                job[0].cancel()
        for _ in range(self._started):
            self._queue.put(None)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            future, call, arguments = job
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call(*arguments))
                except BaseException as error:
                    future.set_exception(error)
            del job, future, call, arguments  # the results may be large


def call_interruptibly(call: Callable[..., T], *arguments: Any) -> T:
    """Call a function so that Ctrl-C ends the wait for it, also while it runs code that notices no signals."""
    if current_thread() is not main_thread():
        return call(*arguments)
    daemons = Daemons(1, "call")
    try:
        return daemons.submit(call, *arguments).result()
    finally:
        daemons.close()
