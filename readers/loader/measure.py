"""The reading side of `packer bench`, in a separate process: ``python -m readers.loader.measure``.

The first line of standard input is JSON with ``path``, ``batch_size``, ``workers``, ``seconds`` and ``batches``. One
epoch, or as much of it as can be read in ten times the seconds, warms the page cache. The answer is ``{"event":
"ready", "samples": n}``. Every further line starts one run, whose answer is ``"done"`` with ``samples``, ``seconds``
and ``cpu_s``. An error is answered by ``"failed"`` with its ``message``. The process ends when its standard input ends.
"""

import json
import os
import sys
import time
from collections.abc import Generator
from typing import Any, TextIO

import readers
from shardspec.errors import ShardspecError, UsageError

_WARM_UP_FACTOR = 10


def main() -> None:
    """Serve runs until the end of standard input."""
    answers = os.fdopen(os.dup(1), "w", encoding="ascii", buffering=1)
    os.dup2(2, 1)
    request = json.loads(sys.stdin.readline())
    try:
        loader = readers.Loader(
            readers.open_dataset(request["path"]), request["batch_size"], workers=request["workers"]
        )
        if not len(loader.dataset):
            raise UsageError(place=request["path"], expected="one sample or more", found="an empty dataset")
        _warm_up(loader, request["seconds"] * _WARM_UP_FACTOR)
        _send(answers, event="ready", samples=len(loader.dataset))
        for _ in sys.stdin:
            _send(answers, event="done", **measure_run(loader, request["seconds"], request["batches"]))
    except ShardspecError as error:
        _send(answers, event="failed", message=str(error))


def _send(answers: TextIO, **message: Any) -> None:
    answers.write(json.dumps(message) + "\n")


def measure_run(loader: "readers.Loader", seconds: float, batches: int) -> dict[str, Any]:
    """Read epoch after epoch for at least the given time and number of batches, after the loader has filled up.

    Parameters
    ----------
    seconds : float
        Minimum time.
    batches : int
        Minimum number of batches.

    Returns
    -------
    dict
        ``samples``; ``seconds``; ``cpu_s``, the CPU time of this process.
    """
    stream = _endless(loader)
    for _ in range(loader.prefetch):
        next(stream)
    samples = taken = 0
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    elapsed_s = 0.0
    while taken < batches or elapsed_s < seconds:
        samples += len(next(iter(next(stream).values())))
        taken += 1
        elapsed_s = time.perf_counter() - started_s
    cpu_s = time.process_time() - started_cpu_s
    stream.close()
    return {"samples": samples, "seconds": elapsed_s, "cpu_s": cpu_s}


def _endless(loader: "readers.Loader") -> Generator[dict[str, Any], None, None]:
    while True:
        yield from loader


def _warm_up(loader: "readers.Loader", seconds: float) -> None:
    until_s = time.perf_counter() + seconds
    for _ in loader:
        if time.perf_counter() >= until_s:
            return


if __name__ == "__main__":
    main()
