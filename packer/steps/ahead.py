"""An iterator that is run in a thread of its own, a few items ahead of who asks for them."""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["THREAD_NAME", "run_ahead"]

T = TypeVar("T")

THREAD_NAME = "ahead"
"""What the thread's name begins with."""


def run_ahead(items: Iterator[T], depth: int, stop: Callable[[], None]) -> Generator[T]:
    """The items of an iterator, in its order, and then the error that it raised.

    To be closed where it is not run to its end; the iterator is used by no one else until then.

    Parameters
    ----------
    items : iterator
        None of the items is None.
    depth : int
        How many items may wait.
    stop : callable
        Makes the iterator end soon. Called when this one ends, from another thread than the iterator's.
    """
    with ThreadPoolExecutor(1, THREAD_NAME) as thread:
        waiting = deque(thread.submit(next, items, None) for _ in range(depth))
        try:
            while (item := waiting.popleft().result()) is not None:
                waiting.append(thread.submit(next, items, None))
                yield item
        finally:
            stop()
            thread.shutdown(cancel_futures=True)
