"""Diagnosis of a training loop: measurements, and a verdict that names the setting to change."""

import sys
import time
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from readers.arguments import as_count
from readers.dataset.base import SampleDataset
from readers.dataset.chain import observed
from readers.dataset.collate import Batch
from readers.decode.values import allocate_values
from readers.formats.machine import available_processors
from readers.loader.device import apply_transform, move, runs_in_threads, wants_seeds
from readers.loader.loader import Loader
from readers.order.order import SampledRows
from readers.staging.client import waiting as shards_awaited
from shardspec.errors import UsageError
from shardspec.wording import counted, shorten

if sys.platform == "win32":
    resource = None
else:
    import resource

_CACHED_BATCHES = 4
_WAITING_MATTERS = 0.05  # of the loop's time
_HELD_BACK = 0.8  # of the step's own rate; a slower loop that does not wait is slowed down by the loader's threads
_CPU_BOUND = 0.7  # CPU time over elapsed time, above which a read does not wait for a disk or a processor
_SCHEDULING = Path("/proc/thread-self/schedstat")
_PROBE_SAMPLES = 256


@dataclass(frozen=True)
class Diagnosis:
    """Measurements of a training loop. Printing it shows the verdict.

    Attributes
    ----------
    loop_rate : float
        Samples per second of loader and step together.
    waiting : float
        Fraction of the loop's time spent waiting for batches.
    moving : float
        Fraction of the loop's time for copies to the device and `batch_transform`, which run in the loop's thread; part
        of `waiting`. Measured without the loader's threads, because waiting for Python's lock is the fault of the
        transforms in those threads.
    loader_rate : float
        Samples per second of the loader alone.
    step_rate : float
        Samples per second of the step alone, on cached batches: the rate with a perfect loader.
    read_s, transform_s : float
        Seconds per sample in one thread: reading and decoding, and the transforms, including a `batch_transform` that
        runs in the loader's threads.
    read_processor : float
        Fraction of `read_s` on a processor.
    read_queue : float or None
        Fraction of `read_s` waiting for a free processor; None if the system does not count it, as only Linux does. The
        rest of `read_s` waited for a disk or network.
    read_faults : int or None
        Pages that reading waited for until the system had them from a disk or network; None where it is not counted.
    verdict : str
        What limits the training loop, and what to change.
    fetched_rate : float
        Bytes per second that the stagers of remote datasets fetched during the loop.
    fetching : float
        Fraction of the loop's time in which threads waited for shards of remote datasets.
    order : str
        The order, the reason for it, and the number of batches read ahead.
    """

    loop_rate: float
    waiting: float
    moving: float
    loader_rate: float
    step_rate: float
    read_s: float
    transform_s: float
    read_processor: float
    read_queue: float | None
    read_faults: int | None
    fetched_rate: float
    fetching: float
    verdict: str
    order: str

    def __str__(self) -> str:
        return self.verdict


def diagnose(loader: Loader, step: Callable[[Batch], Any], batches: int = 50) -> Diagnosis:
    """Measure a loader and a training step, separately and together.

    This takes three to four times as long as the batches take in training. The step really runs, even on cached
    batches: pass a copy of the model if it trains. The loader's position in its epochs is kept: the measurements read
    later epochs.

    Parameters
    ----------
    step : callable
        Called with a batch; does what the training loop does.
    batches : int
        Batches per measurement, or fewer if the epoch is shorter. The first few of each measurement warm up.

    Raises
    ------
    UsageError
        If the epoch has no batches, or an argument is invalid.
    """
    if not isinstance(loader, Loader):
        raise UsageError(option="loader", expected="a readers.Loader", found=type(loader).__name__)
    if not callable(step):
        raise UsageError(option="step", expected="a callable that takes a batch", found=shorten(step))
    batches = as_count("batches", batches)
    loader = copy(loader)
    loader.set_epoch(loader.state_dict()["epoch"] + 1)
    if len(loader) == 0:
        raise UsageError(option="diagnose", expected="an epoch of one batch or more", found="none")
    loop = _measure(loader, step, batches)
    loader_rate = _measure(loader, lambda batch: None, batches).rate
    step_rate = _measure_step(loader, step, batches)
    read, transform = _measure_reading(loader.dataset)
    moving, whole = 0.0, _measure_transforming(loader, batches)
    if runs_in_threads(loader.batch_transform, loader.device):
        transform += whole
    else:
        moving = min(loop.waiting, whole.seconds * loop.rate)
    order = f"order {loader.order!r}, {loader.order_reason}; {counted(loader.read_ahead, 'batch')} read ahead"
    measured = Diagnosis(
        loop_rate=loop.rate,
        waiting=loop.waiting,
        moving=moving,
        loader_rate=loader_rate,
        step_rate=step_rate,
        read_s=read.seconds,
        transform_s=transform.seconds,
        read_processor=read.share,
        read_queue=None if read.queue_s is None else read.queue_s / max(read.seconds, 1e-9),
        read_faults=read.faults,
        fetched_rate=loop.fetched_rate,
        fetching=loop.fetching,
        verdict="",
        order=order,
    )
    return replace(measured, verdict=_verdict(loader, measured))


@dataclass(frozen=True)
class _Loop:
    """Samples per second of a loop; fractions of its time waiting for batches, and for shards; bytes fetched per second."""

    rate: float
    waiting: float
    fetching: float
    fetched_rate: float


def _measure(loader: Loader, step: Callable[[Batch], Any], batches: int) -> _Loop:
    warm = min(loader.prefetch, min(batches, len(loader)) // 4)
    iterator = iter(loader)
    first = iterator.samples
    waited, fetched, fetching, begin = 0.0, _fetched(loader), shards_awaited.seconds, time.perf_counter()
    for number in range(batches):
        before = time.perf_counter()
        batch = next(iterator, None)
        if batch is None:
            break
        after = time.perf_counter()
        step(batch)
        if number == warm - 1:
            _synchronize(loader.device)
            first = iterator.samples
            waited, fetched, fetching, begin = 0.0, _fetched(loader), shards_awaited.seconds, time.perf_counter()
            continue
        waited += after - before
    _synchronize(loader.device)
    elapsed = max(time.perf_counter() - begin, 1e-9)
    fetching = shards_awaited.seconds - fetching
    fetched = max(0, _fetched(loader) - fetched)  # a stager that was started again counts from 0
    found = _Loop((iterator.samples - first) / elapsed, waited / elapsed, fetching / elapsed, fetched / elapsed)
    iterator.close()
    return found


def _fetched(loader: Loader) -> int:
    return loader.stats().get("fetched_bytes", 0)


def _read_some(loader: Loader) -> list[tuple[Batch, int]]:
    """Return a few batches with their number of samples, which a transformed batch itself may not show."""
    found: list[tuple[Batch, int]] = []
    iterator = iter(loader)
    for batch in islice(iterator, _CACHED_BATCHES):
        found.append((batch, iterator.samples - sum(count for _, count in found)))
    iterator.close()
    return found


def _measure_step(loader: Loader, step: Callable[[Batch], Any], batches: int) -> float:
    cached = _read_some(loader)
    samples, begin = 0, time.perf_counter()
    for number in range(batches):
        batch, count = cached[number % len(cached)]
        step(copy(batch))
        samples += count
    _synchronize(loader.device)
    return samples / max(time.perf_counter() - begin, 1e-9)


@dataclass(frozen=True)
class _WorkCost:
    """Seconds per sample in one thread: elapsed, on a processor, and waiting for a free one; and its major page faults."""

    seconds: float = 0.0
    processor_s: float = 0.0
    queue_s: float | None = None
    faults: int | None = None

    def __add__(self, other: "_WorkCost") -> "_WorkCost":
        return _WorkCost(self.seconds + other.seconds, self.processor_s + other.processor_s)

    @property
    def share(self) -> float:
        """Fraction of the time on a processor."""
        return min(1.0, self.processor_s / max(self.seconds, 1e-9))


def _measure_work(work: Callable[[], Any], samples: int) -> _WorkCost:
    begin, processor, queue, faults = time.perf_counter(), time.thread_time(), _queued_s(), _faults()
    work()
    processor, queued, faulted = time.thread_time() - processor, _queued_s(), _faults()
    return _WorkCost(
        (time.perf_counter() - begin) / samples,
        processor / samples,
        None if queued is None or queue is None else (queued - queue) / samples,
        None if faulted is None or faults is None else faulted - faults,
    )


def _queued_s() -> float | None:
    """Return the seconds that this thread was ready to run and waited for a free processor; None if they are not known."""
    try:
        ran, waited, _ = map(int, _SCHEDULING.read_text().split())
    except (OSError, ValueError):  # not Linux
        return None
    return waited / 1e9 if ran else None  # a kernel without these statistics shows zeros


def _faults() -> int | None:
    """Return the number of pages that this thread had to wait for, which were not in memory."""
    if not hasattr(resource, "RUSAGE_THREAD"):
        return None
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


def _measure_transforming(loader: Loader, batches: int) -> _WorkCost:
    """Measure copies to the device and `batch_transform` in this thread, while no other thread works."""
    if loader.device is None and loader.batch_transform is None:
        return _WorkCost()
    plain = copy(loader)
    plain.device = plain.batch_transform = None
    cached = _read_some(plain)
    seeded = wants_seeds(loader.batch_transform)
    taken = [cached[number % len(cached)] for number in range(batches)]

    def work() -> None:
        for batch, count in taken:
            seeds = torch.arange(count, device="cpu") if seeded else None
            apply_transform(loader.batch_transform, move(copy(batch), loader.device, ahead=True), seeds)

    return _measure_work(work, sum(count for _, count in taken))


def _measure_reading(dataset: SampleDataset) -> tuple[_WorkCost, _WorkCost]:
    """Measure reading with decoding, and the transforms of all datasets down to the base."""
    count = min(_PROBE_SAMPLES, len(dataset))
    rows = np.sort(np.random.default_rng(0).permutation(len(dataset))[:count])
    picks = SampledRows(rows, np.zeros(count, np.uint64), 0)
    out, at, transforms = allocate_values(dataset.layout, count), np.arange(count), [0.0, 0.0]

    def observe(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        begin, processor = time.perf_counter(), time.thread_time()
        sample = call()
        transforms[0] += time.perf_counter() - begin
        transforms[1] += time.thread_time() - processor
        return sample

    with observed(observe):
        whole = _measure_work(lambda: dataset.read_picks(picks, out, at), count)
    transform = _WorkCost(transforms[0] / count, transforms[1] / count)
    seconds, processor_s = whole.seconds - transform.seconds, whole.processor_s - transform.processor_s
    queue_s = None if whole.queue_s is None else min(whole.queue_s, max(0.0, seconds - processor_s))
    return _WorkCost(seconds, processor_s, queue_s, whole.faults), transform


def _verdict(loader: Loader, measured: Diagnosis) -> str:
    waits = (
        f"the loop waits {measured.waiting:.0%} of its time for data ({measured.loop_rate:.0f} samples/s; "
        f"the step alone {measured.step_rate:.0f}, the loader alone {measured.loader_rate:.0f})."
    )
    contention = (
        "so step and loader take the processors from each other: "
        f"lower torch.set_num_threads (now {torch.get_num_threads()}) or workers (now {loader.workers})."
    )
    if measured.waiting < _WAITING_MATTERS and measured.loop_rate < _HELD_BACK * measured.step_rate:
        return f"The step is slower with the loader than alone: {waits} Batches are ready in time, {contention}"
    if measured.waiting < _WAITING_MATTERS:
        return f"The step is the limit: {waits} Nothing in the loader will make it faster."
    begin = f"The loader is the limit: {waits}"
    if measured.moving > measured.waiting / 2:
        return (
            f"{begin} {measured.moving / measured.waiting:.0%} of that are copies to the device and batch_transform, "
            "which run in the loop's own thread: make batch_transform cheaper, run it on a GPU (device='cuda'), "
            "or move it to sample_transform, which the threads run."
        )
    if measured.fetched_rate and measured.fetching > measured.waiting / 2:
        return (
            f"The link is the limit: {waits} Shards arrive at {measured.fetched_rate / 1e6:.0f} MB/s. A cache_size that "
            "holds the dataset makes later epochs local; smaller or encoded images need fewer bytes."
        )
    if measured.loader_rate > measured.step_rate:
        return f"{begin} Yet alone it is fast enough, {contention}"
    if measured.transform_s > measured.read_s:
        return (
            f"{begin} Transforms take {measured.transform_s * 1e3:.2f} ms a sample, "
            f"reading and decoding {measured.read_s * 1e3:.2f}: use transforms of readers.augment, move them to "
            "batch_transform on the device, or use a DataLoader with worker processes if they are Python code, of which "
            "only one thread runs at a time."
        )
    off, queue = 1 - measured.read_processor, measured.read_queue
    if off > 1 - _CPU_BOUND and queue is not None and queue > off / 2:
        return (
            f"{begin} Reading waits {queue:.0%} of its time for a free processor: end other programs on this "
            f"machine, ask for more processors, or lower workers (now {loader.workers})."
        )
    if off > 1 - _CPU_BOUND:
        shuffle = "" if loader.order == "blocks" else "shuffle='blocks', "
        faults = "" if measured.read_faults is None else f" It had to wait for {measured.read_faults} pages of files."
        more = f"{shuffle}a greater read_ahead (now {loader.read_ahead}), or more workers (now {loader.workers})"
        if queue is None:
            return (
                f"{begin} Reading waits {off:.0%} of its time for the disk, the network or a free processor, which this "
                f"system does not tell apart. If other programs run here, end them; otherwise use {more}.{faults}"
            )
        return f"{begin} Reading waits {off - queue:.0%} of its time for the disk or network: {more}.{faults}"
    spare = available_processors() - loader.workers
    if spare > 0:
        return (
            f"{begin} Its threads work all the time and {spare} processors are unused: "
            f"set workers={available_processors()} (now {loader.workers})."
        )
    return (
        f"{begin} Reading and decoding take {measured.read_s * 1e3:.2f} ms a sample on every processor: "
        "pack smaller or raw images, "
        "or use decode={'image': Whole(fast_dct=True, fast_upsampling=True)} for JPEG."
    )


def _synchronize(device: torch.device | None) -> None:
    """Wait for the GPU: that of the loader, or the current one, which the step may use."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call] # torch's
        torch.cuda.synchronize(device if device is not None and device.type == "cuda" else None)
