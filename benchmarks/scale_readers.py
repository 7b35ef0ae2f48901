"""Seconds and memory (beyond torch) of one operation of the readers on a dataset of many samples, in this process.

    python -m benchmarks.scale_readers DATASET OPERATION

It prints JSON. ``own_bytes`` is the largest anonymous memory that was seen (``RssAnon``) less what there was when torch
and the readers were imported; with ``kept_bytes``, the same once the operation was over.
"""

import argparse
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import readers
from readers import Loader, open_dataset

_BATCH = 256
_POLL_S = 0.005


def _where(dataset: Any) -> Any:
    return dataset.where("take >= 1000 and label == 'class-3'")


def _epoch(dataset: Any) -> Any:
    loader = Loader(dataset, _BATCH, shuffle="full")
    batches = iter(loader)
    next(batches)
    return loader, batches


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "open": lambda dataset: dataset,
    "first batch of a shuffled epoch": _epoch,
    "where": _where,
    "split": lambda dataset: dataset.split([0.9, 0.1]),
    "split(by='source')": lambda dataset: dataset.split([0.9, 0.1], by="source"),
}


def own_bytes() -> int:
    """Anonymous memory of this process."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return next(int(line[1]) * 1024 for line in lines if line[0] == "RssAnon:")


def measure(dataset: str, operation: str) -> dict[str, float]:
    """Open a dataset, and do one operation with it."""
    torch.ones(1)
    assert readers.open_dataset is open_dataset  # the names of both are there
    before, most, ended = own_bytes(), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(_POLL_S):
            most[0] = max(most[0], own_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    start, start_cpu = time.perf_counter(), time.process_time()
    made = OPERATIONS[operation](open_dataset(dataset))
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
    kept = own_bytes()
    ended.set()
    thread.join()
    del made
    most[0] = max(most[0], kept)
    return {"seconds": seconds, "cpu_s": cpu_s, "own_bytes": most[0] - before, "kept_bytes": kept - before}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("operation", choices=OPERATIONS)
    options = parser.parse_args()
    print(json.dumps(measure(options.dataset, options.operation)))


if __name__ == "__main__":
    main()
