"""Tells the stager of a remote dataset which shards the coming batches need, in the order of the epoch."""

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count, islice

from readers.dataset.base import SampleDataset
from readers.formats.pool import ShardPool
from readers.order.order import SampledRows
from readers.staging.client import StagerClient, StagerLostError
from readers.staging.layout import CachedLayout
from shardspec.columns import IntArray
from shardspec.errors import ShardspecError

_SAMPLES = 1024
"""Samples whose shards are sent together."""
_BATCHES = 1024
"""Largest number of batches ahead of the training loop."""

_numbers = count()


class Forecast:
    """Sends the shards of the coming batches to the stager, until they fill the cache, from a separate thread.

    It is a hint: without it, or after an error, shards are downloaded when they are read. The plan is taken back when
    nothing refers to this object any more.

    Parameters
    ----------
    batches : iterator of SampledRows
        The picks of this iteration's batches, and then of the next epoch's.
    slack : int
        Batches that are read at a time: a shard is needed until that many later batches have begun.
    remote : int
        Number of remote datasets. If all of them are in the cache, there is nothing to send, and no thread.
    """

    def __init__(self, dataset: SampleDataset, batches: Iterator[SampledRows], slack: int, remote: int) -> None:
        self._dataset, self._batches, self._slack, self._remote = dataset, batches, slack, remote
        self._plan = next(_numbers)
        self._clients: dict[int, StagerClient] = {}
        self._uses: dict[tuple[str, int], tuple[int, int]] = {}  # last batch and bytes, by dataset and part
        self._bytes = 0  # of these parts
        # Uses that were not sent yet, by dataset: first and last batch, and part.
        self._waiting: dict[str, tuple[CachedLayout, list[list[int]]]] = {}
        self._complete: dict[str, bool] = {}
        self._samples = self._limit = 0
        self._begun = 0
        self._stopped = False
        self._changed = threading.Condition()
        self._unplan = weakref.finalize(self, _unplan, self._clients, self._plan)
        self._unplan.atexit = False
        with suppress(ShardspecError, StagerLostError):
            # Before any thread of the Loader asks for a shard of a later batch.
            for picks in islice(batches, 1):
                self._add(0, picks)
            self._send()
        if not self._has_all():
            threading.Thread(target=self._run, name="readers-forecast", daemon=True).start()

    def begin(self, number: int) -> None:
        """Record that a thread of the Loader begins batch `number`."""
        with self._changed:
            if number < self._begun:
                return
            self._begun = number + 1
            self._changed.notify()
        for client in list(self._clients.values()):
            client.tell("at", plan=self._plan, batch=max(0, number - self._slack))

    def stop(self) -> None:
        """End the thread, once the cache is filled for the next epoch."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def withdraw(self) -> None:
        """End the thread, and take the plan back."""
        self.stop()
        with self._changed:  # so that the thread does not send another part of the plan afterwards
            self._unplan()

    def _run(self) -> None:
        with suppress(ShardspecError, StagerLostError):
            for number, picks in enumerate(self._batches, 1):
                if not self._unplan.alive:
                    return
                self._add(number, picks)
                if self._has_all():
                    return
                while self._is_far(number):
                    self._send()
                    if not self._wait():
                        return
                if self._samples >= _SAMPLES:
                    self._send()
            self._send()

    def _add(self, number: int, picks: SampledRows) -> None:
        """Collect the uses of a batch."""
        for pool, rows, fields in self._dataset.locate(picks):
            if isinstance(pool.layout, CachedLayout) and not self._is_complete(pool.layout):
                self._note(number, pool, pool.layout, rows, fields)
        self._samples += len(picks)

    def _has_all(self) -> bool:
        """Return whether all datasets were in the cache when the iteration began."""
        return len(self._complete) == self._remote and all(self._complete.values())

    def _is_complete(self, layout: CachedLayout) -> bool:
        """Return whether all files of a dataset were in the cache when the iteration began."""
        if layout.key not in self._complete:
            self._complete[layout.key] = layout.client().ask("missing", key=layout.key) == 0
        return self._complete[layout.key]

    def _note(self, number: int, pool: ShardPool, layout: CachedLayout, rows: IntArray, fields: Sequence[str]) -> None:
        """Note the parts that a batch reads.

        A use is meant for the next batches too, as many as take a quarter of a shard, so that the messages are few.
        """
        self._limit = max(self._limit, layout.limit)
        _, uses = self._waiting.setdefault(layout.key, (layout, []))
        last = number + len(pool) // max(1, 4 * len(pool.manifest.shards) * len(rows))
        for part in pool.parts_of(rows, fields):
            known, size = (layout.key, part), pool.manifest.parts[part].bytes
            if known not in self._uses or self._uses[known][0] < number:
                self._bytes += 0 if known in self._uses else size
                self._uses[known] = last, size
                uses.append([number, last, part])

    def _is_far(self, number: int) -> bool:
        """Return whether batch `number` is far ahead, or the shards needed until then fill the cache."""
        first = self._begun - self._slack
        if number >= first + _BATCHES:
            return True
        if self._bytes >= self._limit:
            self._uses = {part: use for part, use in self._uses.items() if use[0] >= first}
            self._bytes = sum(size for _, size in self._uses.values())
        return self._bytes >= self._limit

    def _wait(self) -> bool:
        """Wait until another batch begins; return False if the iteration has ended."""
        with self._changed:
            return not self._stopped and self._changed.wait() and not self._stopped

    def _send(self) -> None:
        """Send the uses that were collected."""
        for layout, uses in self._waiting.values():
            client = layout.client()
            with self._changed:
                if not self._unplan.alive:
                    return
                self._clients[id(client)] = client
                client.tell("plan", plan=self._plan, key=layout.key, uses=uses)
        self._waiting.clear()
        self._samples = 0


def _unplan(clients: Mapping[int, StagerClient], plan: int) -> None:
    for client in list(clients.values()):
        client.tell("unplan", plan=plan)
