"""One process of `packer bench`: ``python -m packer.packed.bench.raw``. Runs a recipe's steps like a ``__getitem__``.

The first line of standard input is JSON with ``recipe``, ``items`` (lines of a plan's items file) and ``seconds``. A
first pass takes the items that fit into the seconds. It also loads the models and warms the page cache. The answer is
``{"event": "ready", "items": n, "reason": …}``, with the first reason why an item gave no sample, or null. Every
further line starts one pass over the same items, answered by ``"done"`` with ``samples``, ``seconds``, ``cpu_s`` and
``bytes`` (the sizes of the items' files). An error is answered by ``"failed"`` with its ``message``. The process ends when its
standard input ends.
"""

import time
from collections.abc import Sequence
from typing import Any

from packer.jobs.process import entry_point, one_thread, read_requests, send
from packer.recipe import Recipe
from packer.sources.item import Item
from packer.steps.chain import Pipeline, StepError
from packer.steps.report import ItemReport
from shardspec.errors import ShardspecError


def main() -> None:
    """Serve passes until the end of standard input."""
    with entry_point() as (descriptor, answers):
        requests = read_requests(descriptor)
        request = requests.get()
        try:
            pipeline = Pipeline(Recipe.from_options(request["recipe"]))
            with one_thread():
                reasons: list[str] = []
                items = [Item.from_line(line) for line in request["items"]]
                items = _warm_up(pipeline, items, request["seconds"], reasons)
                send(answers, event="ready", items=len(items), reason=reasons[0] if reasons else None)
                while requests.get():
                    send(answers, event="done", **_measure_pass(pipeline, items))
        except ShardspecError as error:
            send(answers, event="failed", message=str(error))


def _measure_pass(pipeline: Pipeline, items: Sequence[Item]) -> dict[str, Any]:
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    samples = sum(_count_samples(pipeline, item, []) for item in items)
    return {
        "samples": samples,
        "seconds": time.perf_counter() - started_s,
        "cpu_s": time.process_time() - started_cpu_s,
        "bytes": sum(item.bytes for item in items),
    }


def _warm_up(pipeline: Pipeline, items: list[Item], seconds: float, reasons: list[str]) -> list[Item]:
    """Return the items, at least one, that fit into a pass of this time. The first runs twice, to load the models."""
    if not items:
        return items
    _count_samples(pipeline, items[0], [])
    until_s = time.perf_counter() + seconds
    for count, item in enumerate(items, 1):
        _count_samples(pipeline, item, reasons)
        if time.perf_counter() >= until_s:
            return items[:count]
    return items


def _count_samples(pipeline: Pipeline, item: Item, reasons: list[str]) -> int:
    """Count the samples of an item. If the recipe rejects it, add the reason to `reasons`."""
    try:
        if item.reject is not None:
            raise StepError("source", item.reject)
        return sum(1 for _ in pipeline.run(item, ItemReport(item.name)))
    except StepError as error:
        reasons.append(f"{item.name!r}, {error}")
        return 0


if __name__ == "__main__":
    main()
