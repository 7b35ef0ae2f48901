"""An iterator that is run in a thread of its own, a few items ahead of who asks for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, TypeVar

__all__ = ["Ahead"]

T = TypeVar("T")


class _End:
    """What comes after the last item: the error that the iterator ended with, if any."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Ahead(Generic[T]):
    """The items of an iterator, in its order, and then the error that it raised.

    Use it as a context manager, or call `close`; the iterator is used by no one else until then. Items are taken by one thread.

    Parameters
    ----------
    items : iterator
    depth : int
        How many items may wait.
    stop : callable
        Makes the iterator end soon. Called by `close`, from another thread than the iterator's.
    """

    def __init__(self, items: Iterator[T], depth: int, stop: Callable[[], None]) -> None:
        self._items = items
        self._stop = stop
        self._closed = False
        self._room = threading.Semaphore(depth)
        self._waiting: SimpleQueue[T | _End] = SimpleQueue()
        # A daemon: an iterator that nobody closes must not keep the process.
        self._thread = threading.Thread(target=self._run, name="ahead", daemon=True)
        self._thread.start()

    def __enter__(self) -> Ahead[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[T]:
        while True:
            item = self._waiting.get()
            if isinstance(item, _End):
                self._waiting.put(_End(None))
                try:
                    if item.error is not None:
                        raise item.error
                finally:
                    del item  # or its error would hold this frame, and this frame the error
                return
            self._room.release()
            yield item

    def close(self) -> None:
        """End the thread, and wait for that. May be called twice."""
        self._closed = True
        self._stop()
        self._room.release()
        try:
            self._thread.join()
        except KeyboardInterrupt:
            self._thread.join()  # what the iterator reads from may be closed only then
            raise

    def _run(self) -> None:
        try:
            while self._room.acquire() and not self._closed:
                self._waiting.put(next(self._items))
        except StopIteration:
            self._waiting.put(_End(None))
        except BaseException as error:
            self._waiting.put(_End(error))
        else:
            self._waiting.put(_End(None))
