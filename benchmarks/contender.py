"""One loader in a process of its own, asked for an epoch at a time.

An *arm* is what is measured: an object with ``run(epoch)``, which consumes an epoch and returns its number of samples,
and ``batches(epoch)``, which yields the same batches as dicts ``image``, ``landmarks``, ``label`` for checking.
`Batches` makes one of a function. If it has a ``prepare()``, that runs before every timed epoch, outside the time.
``python -m benchmarks.contender SPEC`` serves an arm on its standard streams, one JSON line each way.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, Self

import psutil

from benchmarks.check import check_epoch

ROOT = Path(__file__).parents[1]


class ContenderError(Exception):
    """A contender failed, or gave wrong samples."""


class Arm(Protocol):
    """Operation that is measured."""

    def run(self, epoch: int) -> int:
        """Consume an epoch; the number of samples."""
        ...

    def batches(self, epoch: int) -> Iterable[Mapping[str, Any]]:
        """The batches of an epoch, each valid until the next is asked for."""
        ...


class Batches:
    """An arm made of a function that gives an epoch's batches."""

    def __init__(self, batches: Callable[[int], Iterable[Any]], names: tuple[str, ...] = ()) -> None:
        self._batches = batches
        self._names = names
        self.first_s: float | None = None  # seconds until the first batch of the last epoch

    def run(self, epoch: int) -> int:
        """Consume an epoch; each batch is dropped before the next is asked for, as in a training loop."""
        count, self.first_s = 0, None
        label = self._names.index("label") if self._names else "label"
        start = time.perf_counter()
        for batch in self._batches(epoch):
            self.first_s = self.first_s or time.perf_counter() - start
            count += len(batch[label])
            del batch
        return count

    def batches(self, epoch: int) -> Iterable[Mapping[str, Any]]:
        """The batches as dicts."""
        for batch in self._batches(epoch):
            yield dict(zip(self._names, batch, strict=True)) if self._names else batch


class Contender:
    """The process of an arm, as its parent sees it.

    Parameters
    ----------
    arm : str
        ``module:function``.
    options : dict
        JSON arguments of the function.
    timeout_s : float
        Time limit for each answer.
    """

    def __init__(self, arm: str, options: Mapping[str, Any], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        spec = json.dumps({"arm": arm, "options": dict(options)})
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.contender", spec],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process and everything that it started."""
        family = []
        with contextlib.suppress(psutil.NoSuchProcess):
            own = psutil.Process(self._process.pid)
            family = [*own.children(recursive=True), own]
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # the process has ended before it read what was written
                    stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        self._log.close()

    def epoch(self, number: int, check: bool = False) -> dict[str, Any]:
        """Run an epoch: ``samples``, ``seconds``, ``first_s``, ``cpu_s``, ``memory_mb``; if it is checked, its correlation."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps({"epoch": number, "check": check}) + "\n")
            stdin.flush()
        except BrokenPipeError:
            raise ContenderError(self._complaint()) from None
        if not select.select([stdout], [], [], self._timeout_s)[0]:
            raise ContenderError(f"no answer within {self._timeout_s:g} s")
        line = stdout.readline()
        if not line:
            raise ContenderError(self._complaint())
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise ContenderError(found["error"])
        return found

    def _complaint(self) -> str:
        self._process.wait(10)
        self._log.seek(0)
        return f"its process ended ({self._process.returncode}): {self._log.read()[-600:].strip()}"


def serve(spec: Mapping[str, Any]) -> None:
    """Make the arm and answer until the parent closes the pipe. What libraries print goes to the standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, _, function = spec["arm"].partition(":")
    try:
        arm = getattr(import_module(module), function)(**spec["options"])
    except Exception as error:  # the parent reports it as the row's error
        traceback.print_exc()
        _answer(answers, {"error": f"{type(error).__name__}: {error}"})
        return
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if asked["check"]:
                found = check_epoch(arm.batches(asked["epoch"]), spec["options"])
            else:
                found = _timed(arm, asked["epoch"])
        except Exception as error:  # as above
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {error}"}
        _answer(answers, found)
    sys.stdout.flush()
    os._exit(0)  # some libraries hang in their own clean-up


def _answer(stream: Any, found: Mapping[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        stream.write(json.dumps(found) + "\n")
        stream.flush()


def _timed(arm: Arm, epoch: int) -> dict[str, Any]:
    prepare = getattr(arm, "prepare", None)
    if prepare is not None:
        prepare()
    cpu = _cpu_s()
    start = time.perf_counter()
    samples = arm.run(epoch)
    seconds = time.perf_counter() - start
    found = {"samples": samples, "seconds": seconds, "cpu_s": max(0.0, _cpu_s() - cpu), "memory_mb": _memory_mb()}
    return found | {"first_s": getattr(arm, "first_s", None)}


def _cpu_s() -> float:
    """Processor seconds of this process and all that it started, including those that have ended."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _memory_mb() -> float:
    """Proportional memory of this process and all that it started, without mapped files, MB."""
    total = 0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                    total += int(line.split()[1])
    return total * 1024 / 1e6


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
