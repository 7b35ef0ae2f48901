"""One process of `packer bench`, of either side: ``python -m packer.packed.bench.timed_loader``.

The first line of standard input is JSON (`RawSide`, `PackedSide`). After a pass that warms the page cache and loads the
models, the answer is ``{"event": "ready"}`` with what the side reports. Every further line starts a run, answered by
``"done"`` with ``samples``, ``seconds``, ``cpu_s``, ``bytes`` and ``memory_bytes``, which leaves out mapped page cache.
An error is answered by ``"failed"`` with its ``message``. The process ends when its standard input ends.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from packer.jobs.process import entry_point, one_thread, read_requests, send
from packer.recipe import Recipe
from packer.sources.item import Item
from packer.steps.chain import Pipeline, StepError
from packer.steps.report import ItemReport
from shardspec.errors import ShardspecError, UsageError
from shardspec.registry import import_target

_WARM_UP_FACTOR = 10


def main() -> None:
    """Serve runs until the end of standard input."""
    with entry_point() as (descriptor, answers):
        requests = read_requests(descriptor)
        request = requests.get()
        try:
            side = RawSide(request) if "recipe" in request else PackedSide(request)
            with one_thread() if isinstance(side, RawSide) else nullcontext():
                send(answers, event="ready", **side.warm_up())
                while requests.get():
                    send(answers, event="done", **side.run(), memory_bytes=_memory_bytes())
        except ShardspecError as error:
            send(answers, event="failed", message=str(error))


class RawSide:
    """Runs a recipe's steps over items, like a ``__getitem__``.

    Parameters
    ----------
    request : mapping
        ``recipe``, ``items`` (lines of a plan's items file) and ``seconds``: the runs take the items that fit into this
        time.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._pipeline = Pipeline(Recipe.from_options(request["recipe"]))
        self._items = [Item.from_line(line) for line in request["items"]]
        self._seconds = request["seconds"]
        self._reason: str | None = None

    def warm_up(self) -> dict[str, Any]:
        """Choose the items, and return their number and the first reason why an item gave no sample."""
        for item in self._items[:1]:  # loads the models
            self._count_samples(item)
        until_s = time.perf_counter() + self._seconds
        for count, item in enumerate(self._items, 1):
            self._count_samples(item)
            if time.perf_counter() >= until_s:
                del self._items[count:]
                break
        return {"items": len(self._items), "reason": self._reason}

    def run(self) -> dict[str, Any]:
        """Measure a pass over the items."""
        clock = _Stopwatch()
        samples = sum(map(self._count_samples, self._items))
        return {"samples": samples, **clock.times(), "bytes": sum(item.bytes for item in self._items)}

    def _count_samples(self, item: Item) -> int:
        try:
            if item.reject is not None:
                raise StepError("source", item.reject)
            return sum(1 for _ in self._pipeline.run(item, ItemReport(item.name)))
        except StepError as error:
            self._reason = self._reason or f"{item.name!r}, {error}"
            return 0


class PackedSide:
    """Reads epochs of a packed dataset with a `readers.Loader`.

    Parameters
    ----------
    request : mapping
        ``path``, ``batch_size``, ``workers`` and ``seconds``, the shortest time of a run.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._dataset = import_target("readers:open_dataset", what="bench")(request["path"])
        loader = import_target("readers:Loader", what="bench")
        self._loader = loader(self._dataset, request["batch_size"], workers=request["workers"])
        self._seconds = request["seconds"]
        if not len(self._dataset):
            raise UsageError(place=request["path"], expected="one sample or more", found="an empty dataset")

    def warm_up(self) -> dict[str, Any]:
        """Read an epoch, or as much of it as fits into ten times the seconds."""
        until_s = time.perf_counter() + self._seconds * _WARM_UP_FACTOR
        for _ in self._loader:
            if time.perf_counter() >= until_s:
                break
        return {}

    def run(self) -> dict[str, Any]:
        """Measure a run, after the loader has filled up."""
        batches = self._batches()
        for _ in range(self._loader.prefetch):
            next(batches)
        clock, samples = _Stopwatch(), 0
        while not samples or clock.times()["seconds"] < self._seconds:
            samples += len(next(iter(next(batches).values())))
        times = clock.times()
        return {
            "samples": samples,
            **times,
            "bytes": samples * self._dataset.manifest.stored_bytes / len(self._dataset),
        }

    def _batches(self) -> Iterator[dict[str, Any]]:
        while True:
            yield from self._loader


class _Stopwatch:
    """Wall clock and CPU time of this process since it was made."""

    def __init__(self) -> None:
        self._started_s, self._started_cpu_s = time.perf_counter(), time.process_time()

    def times(self) -> dict[str, float]:
        return {
            "seconds": time.perf_counter() - self._started_s,
            "cpu_s": time.process_time() - self._started_cpu_s,
        }


def _memory_bytes() -> int:
    """Return the anonymous and shared memory of this process; 0 if the system does not report it."""
    found = 0
    with suppress(OSError):  # not Linux
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
                found += int(line.split()[1]) * 1024
    return found


if __name__ == "__main__":
    main()
