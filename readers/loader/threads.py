"""The Loader's threads: workers that run numbered jobs ahead of a consumer, and a thread that reads ahead of them."""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Generic, TypeVar

import torch

from readers.order.shuffle_choice import CacheEstimate
from shardspec.errors import DatasetError, ReadTimeoutError

T = TypeVar("T")
_Result = tuple[T | None, BaseException | None]

_JOIN_S = 5.0

_BATCHES = 4

_SHARE = 8
"""Batches that are read ahead take at most 1 / `_SHARE` of the memory that the page cache may keep."""


class ThreadJob(Generic[T]):
    """A job of one part or more, on which several threads may work together.

    Parameters
    ----------
    parts : sequence of callable
        Each is called once, in any of the threads.
    end : callable
        Called after the last part; returns the job's result.
    """

    def __init__(self, parts: Sequence[Callable[[], None]], end: Callable[[], T]) -> None:
        self.parts = parts
        self.end = end
        self.left = len(parts)
        self.error: BaseException | None = None


class ReadStage(Iterator[T]):
    """Runs ``work(number)`` for 0 … jobs-1 in threads; iterating yields the results in order.

    For one consumer. A stage cannot be used in the child of a fork, which has no threads.

    Parameters
    ----------
    work : callable
        Called from any of the threads, once for each number. Returns a `ThreadJob`, whose parts go before new jobs.
    jobs, threads : int
        Number of jobs and of threads.
    ahead : int
        Maximum number of jobs that are started before their results are taken.
    timeout_s : float
        Time limit for one result, in seconds.
    explain : callable
        Called with a thread's identifier; describes what the thread is doing, for the message of a timeout.
    enter : callable, optional
        Called by each thread before its first job.
    """

    def __init__(
        self,
        work: Callable[[int], ThreadJob[T]],
        jobs: int,
        threads: int,
        ahead: int,
        timeout_s: float,
        explain: Callable[[int], str],
        enter: Callable[[], None] | None = None,
    ) -> None:
        self._work = work
        self._jobs = jobs
        self._ahead = ahead
        self._timeout_s = timeout_s
        self._explain = explain
        self._enter = enter
        # Reentrant: the garbage collector may finalise the consumer in one of the threads, and so call `stop` while
        # that thread holds the lock.
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._done = threading.Condition(self._lock)
        self._started = self._taken = 0
        self._results: dict[int, _Result[T]] = {}
        self._running: dict[int, dict[int, float]] = {}  # start times by job and thread identifier
        self._parts: deque[tuple[int, Callable[[], _Result[T] | None]]] = deque()  # with the numbers of their jobs
        self._stopped = False
        self._pid = os.getpid()
        self._threads = [
            threading.Thread(target=self._run, name=f"readers-loader-{i}", daemon=True)
            for i in range(min(threads, jobs))
        ]
        for thread in self._threads:
            thread.start()

    def __next__(self) -> T:
        """Return the next job's result. An error in the job is raised here, and ends the stage.

        Raises
        ------
        ReadTimeoutError
            If the result did not come in time.
        DatasetError
            If the stage was stopped before, or was ended by an error.
        """
        if self._taken == self._jobs:
            raise StopIteration
        if os.getpid() != self._pid:
            raise DatasetError(
                "a Loader's iterator does not survive a fork", hint="make a new one in the child process"
            )
        begin = time.monotonic()
        with self._lock:
            number = self._taken
            while number not in self._results:
                if self._stopped:
                    raise DatasetError("the Loader's iterator was closed")
                left = begin + self._timeout_s - time.monotonic()
                if left <= 0:
                    raise ReadTimeoutError(self._late(number))
                self._done.wait(left)
            result, error = self._results.pop(number)
            if error is None:
                self._taken += 1
                self._room.notify()
        if error is not None:
            self.stop()
            raise not_an_end(error)
        return result  # type: ignore[return-value] # a job without an error has its result

    def ready(self) -> bool:
        """Return whether the next result is there, and is not an error."""
        with self._lock:
            return self._taken in self._results and self._results[self._taken][1] is None

    def stop(self) -> None:
        """End the threads. A thread that hangs in a read is left behind."""
        if os.getpid() != self._pid:  # no thread survives a fork, but the lock that one held stays locked
            return
        with self._lock:
            self._stopped = True
            self._results.clear()
            self._parts.clear()
            self._room.notify_all()
            self._done.notify_all()
        if threading.current_thread() in self._threads:  # it may hold the lock that the others need to end
            return
        deadline = time.monotonic() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        if self._enter is not None:
            self._enter()
        while self._act():
            pass

    def _act(self) -> bool:
        """Begin a job, or do a part of one; return False at the end. No reference to a result is kept."""
        thread = threading.get_ident()
        with self._lock:
            while not self._stopped and not self._parts and not self._may_begin() and not self._all_done():
                self._room.wait()
            if self._stopped or not (self._parts or self._may_begin()):
                self._room.notify()
                return False
            act: Callable[[], _Result[T] | None]
            if self._parts:
                number, act = self._parts.popleft()
            else:
                number, act = self._started, partial(self._begin, self._started)
                self._started += 1
            self._running.setdefault(number, {})[thread] = time.monotonic()
        done = act()
        with self._lock:
            # Absent if another thread has ended the job since this one did its part.
            self._running.get(number, {}).pop(thread, None)
            if done is not None and not self._stopped:
                del self._running[number]
                self._results[number] = done
                self._done.notify()
            self._room.notify_all()
        return True

    def _begin(self, number: int) -> _Result[T] | None:
        """Add the parts of a job; return its error if that fails."""
        try:
            job = self._work(number)
        except BaseException as error:  # the consumer raises it
            return None, error
        with self._lock:
            self._parts.extend((number, partial(self._do_part, job, part)) for part in job.parts)
        return None

    def _do_part(self, job: ThreadJob[T], part: Callable[[], None]) -> _Result[T] | None:
        """Do a part of a job; return the job's result or error after the last part."""
        try:
            if job.error is None:
                part()
        except BaseException as error:
            job.error = error
        with self._lock:
            job.left -= 1
            if job.left:
                return None
        try:
            return (job.end(), None) if job.error is None else (None, job.error)
        except BaseException as error:
            return None, error

    def _may_begin(self) -> bool:
        """Return whether a job may be begun now; called with the lock held."""
        return self._started < min(self._jobs, self._taken + self._ahead)

    def _all_done(self) -> bool:
        """Return whether all jobs are done, so that the threads end (see "MKL" in docs/howto/training.md).

        Called with the lock held.
        """
        return self._started >= self._jobs and not self._running

    def _late(self, number: int) -> str:
        """Return the message of a timeout; called with the lock held."""
        running = self._running.get(number)
        if not running:
            return f"batch {number}: expected within {self._timeout_s:g} s, but no thread has begun it"
        thread, start = min(running.items(), key=lambda item: item[1])
        seconds = time.monotonic() - start
        return (
            f"batch {number}: expected within {self._timeout_s:g} s; its thread has worked for {seconds:.1f} s and is "
            f"{self._explain(thread)}: check the disk, the network file system or the store, or raise timeout_s"
        )


def not_an_end(error: BaseException) -> BaseException:
    """Replace `StopIteration`, which would silently end the consumer's loop, by a RuntimeError; return other errors."""
    if not isinstance(error, StopIteration):
        return error
    other = RuntimeError("a transform raised StopIteration, which would have ended the epoch")
    other.__cause__ = error
    return other


class ReadAhead:
    """Calls ``ask(number)`` for the batches after those that were begun, in a separate thread.

    Nothing is decoded or kept here: the bytes wait in the system's page cache.

    Parameters
    ----------
    ask : callable
        Asks for the bytes of a batch. Errors are ignored, since the read itself meets and reports them.
    jobs : int
        Number of batches.
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
        """Record that a thread begins batch `number`."""
        with self._changed:
            self._begun = max(self._begun, number + 1)
            self._changed.notify()

    def stop(self) -> None:
        """End the thread. If it hangs in a read, it is left behind."""
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


def default_depth(residence: CacheEstimate, batch_bytes: float) -> int:
    """Return the number of batches to read ahead: 0 if the data stay in memory, otherwise a few, as memory allows."""
    if residence.in_memory:
        return 0
    room = _BATCHES if residence.memory is None else int(residence.memory / _SHARE / max(1.0, batch_bytes))
    return max(1, min(_BATCHES, room))


_LOCK = threading.Lock()
if hasattr(os, "register_at_fork"):  # a child starts with the program's setting and with a free lock
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


def take_one_thread() -> None:
    """Limit torch operations in the calling thread to this thread.

    Otherwise every thread that runs them would start as many more as ``torch.set_num_threads`` allows.
    """
    if not _counts_by_thread():
        return
    with _LOCK:
        found: list[int] = []
        try:
            _run_apart(lambda: found.append(torch.get_num_threads()))
        except RuntimeError:  # no more threads can be started, or the program is ending
            return
        torch.get_num_threads()  # a thread that has not called this yet would adopt later settings
        torch.set_num_threads(1)
        try:
            _run_apart(lambda: torch.set_num_threads(found[0]))
        except RuntimeError:
            torch.set_num_threads(found[0])


def _run_apart(work: Callable[[], None]) -> None:
    """Run `work` in a new thread, which has torch's initial settings."""
    thread = threading.Thread(target=work, name="readers-torch-threads")
    thread.start()
    thread.join()


@cache
def _counts_by_thread() -> bool:
    """Return whether torch has a setting per thread, as with OpenMP. Other builds share one pool and need no limit."""
    return "parallel backend: OpenMP" in torch.__config__.parallel_info()
