"""Threads that work on numbered jobs ahead of a consumer, who takes the results in order."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from readers.order.auto import Residence
from shardspec.errors import DatasetError, ReadTimeoutError

T = TypeVar("T")

_JOIN_S = 5.0

_BATCHES = 4

_SHARE = 8
"""What is read ahead may take this part of the memory that the page cache may keep."""


class Stage(Iterator[T]):
    """Runs ``work(number)`` for 0 … jobs-1 in threads, at most `ahead` jobs before the consumer, who iterates over the results.

    For one consumer. Of no use in the child of a fork, where there are no threads.

    Parameters
    ----------
    work : callable
        Called from any of the threads, each number once.
    jobs, threads, ahead : int
    timeout_s : float
        For one result.
    explain : callable
        Called with a thread's identifier, says what it is doing, for the timeout's message.
    enter : callable, optional
        Called by each thread before its first job.
    """

    def __init__(
        self,
        work: Callable[[int], T],
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
        # Reentrant: a consumer that the garbage collector finalises may stop this in one of the threads, while it is in here.
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._done = threading.Condition(self._lock)
        self._started = self._taken = 0
        self._results: dict[int, tuple[T | None, BaseException | None]] = {}
        self._running: dict[int, tuple[int, float]] = {}  # job to thread identifier and start
        self._stopped = False
        self._pid = os.getpid()
        self.times = StageTimes()
        self._threads = [
            threading.Thread(target=self._run, name=f"readers-loader-{i}", daemon=True)
            for i in range(min(threads, jobs))
        ]
        for thread in self._threads:
            thread.start()

    def __next__(self) -> T:
        """The next job's result. An error in the job is raised here, and ends the stage.

        Raises
        ------
        ReadTimeoutError
            It did not come in time.
        DatasetError
            The stage was stopped before, or an error has ended it.
        """
        if self._taken == self._jobs:
            raise StopIteration
        if os.getpid() != self._pid:
            raise DatasetError("a Loader's iterator does not survive a fork: make a new one in the child process")
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
            self.times.waiting += time.monotonic() - begin
            if error is None:
                self._taken += 1
                self.times.jobs += 1
                self._room.notify()
        if error is not None:
            self.stop()
            raise not_an_end(error)
        return result  # type: ignore[return-value] # a job without an error has its result

    def ready(self) -> bool:
        """Whether the next result is there."""
        with self._lock:
            return self._taken in self._results

    def stop(self) -> None:
        """End the threads. One that hangs in a read is left behind."""
        if os.getpid() != self._pid:  # no thread survives a fork, but the lock that one held stays locked
            return
        with self._lock:
            self._stopped = True
            self._results.clear()
            self._room.notify_all()
            self._done.notify_all()
        if threading.current_thread() in self._threads:  # which may hold the lock that the others need to end
            return
        deadline = time.monotonic() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        """One thread's life."""
        if self._enter is not None:
            self._enter()
        while True:
            begin = time.monotonic()
            with self._lock:
                while not self._stopped and self._started < self._jobs and self._started >= self._taken + self._ahead:
                    self._room.wait()
                if self._stopped or self._started >= self._jobs:
                    self._room.notify()
                    return
                number = self._started
                self._started += 1
                start = time.monotonic()
                self.times.blocked += start - begin
                self._running[number] = (threading.get_ident(), start)
            outcome: tuple[T | None, BaseException | None]
            try:
                outcome = (self._work(number), None)
            except BaseException as error:  # the consumer raises it
                outcome = (None, error)
            with self._lock:
                self.times.working += time.monotonic() - start
                del self._running[number]
                if not self._stopped:
                    self._results[number] = outcome
                    self._done.notify()
            del outcome  # the batch is the consumer's alone

    def _late(self, number: int) -> str:
        """What the timeout's message says; called with the lock held."""
        running = self._running.get(number)
        if running is None:
            return f"batch {number}: expected within {self._timeout_s:g} s, but no thread has begun it"
        thread, start = running
        seconds = time.monotonic() - start
        return (
            f"batch {number}: expected within {self._timeout_s:g} s; its thread has worked for {seconds:.1f} s and is {self._explain(thread)}: "
            "check the disk or the network file system, or raise timeout_s"
        )


@dataclass
class StageTimes:
    """Where the time went, in seconds.

    Attributes
    ----------
    working : float
        Of all threads together, inside jobs.
    blocked : float
        Of all threads together, waiting for the consumer to take results.
    waiting : float
        Of the consumer, waiting for results.
    moving : float
        Of the consumer, in copies to the device and in transforms of whole batches.
    jobs : int
        Results taken.
    """

    working: float = 0.0
    blocked: float = 0.0
    waiting: float = 0.0
    moving: float = 0.0
    jobs: int = 0


def not_an_end(error: BaseException) -> BaseException:
    """The error of somebody's code; StopIteration, which would end the consumer's loop as if all were done, as another."""
    if not isinstance(error, StopIteration):
        return error
    other = RuntimeError("a transform raised StopIteration, which would have ended the epoch")
    other.__cause__ = error
    return other


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


def default_depth(residence: Residence, batch_bytes: float) -> int:
    """Batches to read ahead of a dataset: none where the data stay in memory, else a few, as memory allows."""
    if residence.in_memory:
        return 0
    room = _BATCHES if residence.memory is None else int(residence.memory / _SHARE / max(1.0, batch_bytes))
    return max(1, min(_BATCHES, room))
