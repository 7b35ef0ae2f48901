"""Steps as users write them, good and bad, named in recipes as ``support.steps:NAME``."""

import errno
import os
import re
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from packer.steps.decode import THREAD_NAME
from shardspec.errors import ItemError
from support.processes import workers_of

LOG = "PACKER_TEST_LOG"
"""The environment variable that names the log file; it is not part of the recipe, so recipes stay the same."""

BAD = "bad"
"""What the names of the items contain on which the bad steps misbehave."""

Sample = dict[str, Any]


def log_line(text: str) -> None:
    """Append a line to the log in one write, from any process."""
    descriptor = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, text.encode("utf-8", "surrogateescape") + b"\n")
    finally:
        os.close(descriptor)


def read_log(path: Path) -> list[str]:
    """The lines of a log."""
    return path.read_text("utf-8", "surrogateescape").split("\n")[:-1] if path.exists() else []


def log_items(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Write the name of every item into the log as it is begun."""
    for sample in samples:
        if not sample.get("frame"):
            log_line(sample["source"])
        yield sample


def log_processes(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Write the number of this process into the log as every item is begun."""
    for sample in samples:
        log_line(str(os.getpid()))
        yield sample


def slow(samples: Iterator[Sample], seconds: float = 0.02) -> Iterator[Sample]:
    """Spend a while on every sample."""
    for sample in samples:
        time.sleep(seconds)
        yield sample


HOLD = "PACKER_TEST_HOLD"
"""Environment variable with the path of a file."""


def hold(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Wait for as long as the file of `HOLD` exists at every sample whose source's name does not begin with a 0."""
    for sample in samples:
        while not Path(sample["source"]).name.startswith("0") and Path(os.environ.get(HOLD, "/none")).exists():
            time.sleep(0.05)
        yield sample


def _is_bad(sample: Sample) -> bool:
    return BAD in sample["source"]


GATE = "PACKER_TEST_GATE"
"""The environment variable that names the file for which `wait_at_gate` waits; it is not part of the recipe."""


def wait_at_gate(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Stay at a bad item until the gate is there."""
    for sample in samples:
        while _is_bad(sample) and not Path(os.environ[GATE]).exists():
            time.sleep(0.01)
        yield sample


def kill_itself(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Bring down the whole process on a bad item."""
    for sample in samples:
        if _is_bad(sample):
            log_line(sample["source"])
            os.kill(os.getpid(), signal.SIGKILL)
        yield sample


def kill_beside_others(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Bring down the whole process on a bad item while there are other workers, idle or not."""
    for sample in samples:
        if _is_bad(sample) and len(workers_of(os.getppid())) > 1:
            log_line(sample["source"])
            os.kill(os.getpid(), signal.SIGKILL)
        yield sample


def exit_hard(samples: Iterator[Sample], status: int = 75) -> Iterator[Sample]:
    """End the whole process on a bad item, with the status by which many programs ask to be tried again."""
    for sample in samples:
        if _is_bad(sample):
            os._exit(status)
        yield sample


def hang(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Never return from a bad item."""
    for sample in samples:
        while _is_bad(sample):
            time.sleep(0.1)  # in one long sleep, Python would not see a signal that comes just before it begins
        yield sample


def hang_hard(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Never return from a bad item, and never release the interpreter's lock."""
    for sample in samples:
        if _is_bad(sample):
            log_line(str(os.getpid()))
            re.match("(a+)+$", "a" * 60 + "b")
        yield sample


def fail(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Raise on a bad item."""
    for sample in samples:
        if _is_bad(sample):
            raise RuntimeError("the step does not like this image")
        yield sample


def fail_late(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Raise on a bad item after giving a sample."""
    for sample in samples:
        yield sample
        if _is_bad(sample):
            raise RuntimeError("the second sample is broken")


def give_nothing(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Give no sample for a bad item."""
    yield from (sample for sample in samples if not _is_bad(sample))


def exit_early(samples: Iterator[Sample]) -> Iterator[Sample]:
    """End the interpreter on a bad item."""
    for sample in samples:
        if _is_bad(sample):
            raise SystemExit(0)
        yield sample


def add_field(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Give bad items a field that the others lack."""
    for sample in samples:
        yield {**sample, "extra": 1} if _is_bad(sample) else sample


def change_fields(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Give a second sample for bad items, with a field that the first lacks."""
    for sample in samples:
        yield sample
        if _is_bad(sample):
            yield {**sample, "extra": 1}


def add_field_or_kill(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Give bad items a field that the others lack, and bring down the process on the worst."""
    for sample in add_field(samples):
        if "worst" in sample["source"]:
            os.kill(os.getpid(), signal.SIGKILL)
        yield sample


def add_measures(samples: Iterator[Sample]) -> Iterator[Sample]:
    """A good step: fields of every kind."""
    for sample in samples:
        image = sample["image"]
        yield {
            **sample,
            "mean": image.mean(axis=(0, 1)).astype(np.float32),
            "bright": bool(image.mean() > 100),
            "peaks": np.flatnonzero(image.max(axis=(1, 2)) > 200).astype(np.int32),
            "note": f"of {sample['source']}",
            "facts": {"height": image.shape[0]},
            "blob": image[0].tobytes(),
        }


ODD_VALUES: dict[str, Any] = {
    "none": {"x": None},
    "object": {"x": object()},
    "complex": {"x": np.zeros(2, np.complex64)},
    "dates": {"x": np.zeros(2, "datetime64[s]")},
    "nan_in_json": {"x": [float("nan")]},
    "array_in_json": {"x": {"a": np.zeros(2)}},
    "surrogate": {"x": "\ud800"},
    "capitals": {"Not A Name": 1},
    "number_as_name": {7: 1},
    "empty_image": {"image": np.zeros((0, 4, 3), np.uint8)},
    "huge_image": {"image": np.zeros((1, 70_000, 3), np.uint8)},
}
"""What a careless step may give."""


def give_odd(samples: Iterator[Sample], which: str) -> Iterator[Sample]:
    """Give bad items a value that cannot be stored."""
    for sample in samples:
        yield {**sample, **ODD_VALUES[which]} if _is_bad(sample) else sample


def give_no_dict(samples: Iterator[Sample]) -> Iterator[Any]:
    """Give a bad item's image alone."""
    for sample in samples:
        yield sample["image"] if _is_bad(sample) else sample


def read_input(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Run a program that reads its standard input to the end, as ffmpeg does, and print a good deal."""
    for sample in samples:
        print("a step may print", "x" * 1000)
        subprocess.run(["cat"], check=True)
        yield sample


def start_child(samples: Iterator[Sample]) -> Iterator[Sample]:
    """On a bad item, start a program that would outlive everything, and wait for it."""
    for sample in samples:
        if _is_bad(sample):
            child = subprocess.Popen(["sleep", "10000"])
            log_line(str(child.pid))
            child.wait()
        yield sample


not_a_step = 3


def tell_ahead(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Note in every sample whether its video is decoded in a thread of its own."""
    for sample in samples:
        yield {**sample, "ahead": any(thread.name.startswith(THREAD_NAME) for thread in threading.enumerate())}


def leave_little_memory(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Let the process take at most 90 MB more while a bad item is in work."""
    for sample in samples:
        if _is_bad(sample):
            log_line(sample["source"])
            taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (taken + 90 * 10**6, resource.RLIM_INFINITY))
        yield sample


LACKS = 3


def _lack_memory(samples: Iterator[Sample], error: Exception) -> Iterator[Sample]:
    """Raise an error on a bad item the first few times that it is tried."""
    for sample in samples:
        if _is_bad(sample):
            log_line(sample["source"])
            if len(read_log(Path(os.environ[LOG]))) <= LACKS:
                raise error
        yield sample


def lack_memory_nothing(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Out of memory, as Python and Pillow report it."""
    yield from _lack_memory(samples, MemoryError())


def lack_memory_opencv(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Out of memory, as OpenCV reports it."""
    yield from _lack_memory(
        samples, cv2.error("OpenCV(4) alloc.cpp:73: error: (-4:Insufficient memory) Failed to allocate")
    )


def lack_memory_system(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Out of memory, as the system reports it."""
    yield from _lack_memory(samples, OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))


def lack_memory_wrapped(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Out of memory, as a step reports it that blames its item for every error."""
    try:
        yield from _lack_memory(samples, MemoryError())
    except MemoryError as error:
        raise ItemError("this image is no good") from error
