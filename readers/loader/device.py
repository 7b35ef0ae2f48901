"""Batches on the way to the device: copies on a side stream, then transforms of whole batches."""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from readers.dataset.collate import Batch, EncodedValues
from readers.loader.threads import Stage, not_an_end
from shardspec.errors import UsageError
from shardspec.wording import shorten

BatchTransform = Callable[..., Batch]
"""Any callable or ``nn.Module`` from batch to batch. One with ``seeded = True`` is called with the batch and with
``seeds``, int64 (B,) on the CPU, one per sample: functions of seed, epoch and row. One with ``threaded = True`` as
well runs in the Loader's threads if batches stay on the CPU; if it has a method ``forward_``, that is called instead,
which may write into the batch. Others run in the training loop's own thread. Runs without gradients."""

SeededBatch = tuple[Batch, torch.Tensor | None]
"""A batch, and the seeds of its samples if the transform takes them."""


def wants_seeds(transform: BatchTransform | None) -> bool:
    """Return whether a batch transform is called with a seed for each sample."""
    return getattr(transform, "seeded", False) is True


def runs_in_threads(transform: BatchTransform | None, device: torch.device | None) -> bool:
    """Return whether a batch transform runs in the Loader's threads, not in the training loop's own or on a GPU."""
    on_cpu = device is None or device.type == "cpu"
    return on_cpu and wants_seeds(transform) and getattr(transform, "threaded", False) is True


def as_device(device: torch.device | str | int) -> torch.device:
    """A device that torch can use here.

    GPUs are counted, not tried: a context would take memory of the GPU, and the process may still fork before the first
    batch.

    Raises
    ------
    UsageError
        If torch cannot use the device here.
    """
    try:
        chosen = torch.device(device)
        if chosen.type != "cuda" or (chosen.index or 0) >= torch.cuda.device_count():
            torch.empty(0, device=chosen)
    except (AssertionError, RuntimeError, TypeError) as error:
        raise UsageError(
            f"device: expected one that torch can use here, found {shorten(device)} ({_first_line(error)}): "
            "leave it out to have batches in ordinary memory"
        ) from error
    return chosen


def can_pin() -> bool:
    """Return whether there is a device to pin memory for.

    If not, a warning says so, as with torch's DataLoader: a script for a GPU may be tried without one.
    """
    try:
        if torch.cuda.device_count() == 0:
            torch.empty(1, pin_memory=True)
    except RuntimeError as error:
        warnings.warn(
            f"pin_memory: expected a device that batches are copied to, found none ({_first_line(error)}): "
            "they come in ordinary memory",
            stacklevel=3,
        )
        return False
    return True


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


class OneAhead:
    """Keeps the next batch, made before it is asked for. An error in making it is raised when it is asked for."""

    def __init__(self) -> None:
        self._made: SeededBatch | None = None
        self._error: Exception | None = None

    def begin(self, make: Callable[[], SeededBatch]) -> None:
        """Make the next batch, and keep it or the error."""
        try:
            self._made = make()
        except Exception as error:
            self._error = error

    def take(self, make: Callable[[], SeededBatch]) -> SeededBatch:
        """The batch that is kept, or, if there is none, one that is made now."""
        made, error = self._made, self._error
        self._made = self._error = None
        try:
            if error is not None:
                raise error
            return make() if made is None else made
        finally:
            # Its traceback refers to this frame. If the frame referred to it too, an epoch's batches would stay in
            # memory until the garbage collector runs.
            del error


class DeviceStage:
    """Moves batches to a device and transforms them there.

    On CUDA, copies run on a stream of their own, so that they overlap with the consumer's work, whose stream waits for
    them. The next batch's copy is begun one batch ahead if that batch is ready; waiting for it would only delay the
    present one.

    Parameters
    ----------
    batches : Stage
        Gives the batches with their seeds.
    device : torch.device or None
        None leaves batches where they are.
    transform : callable, optional
    """

    def __init__(
        self,
        batches: Stage[SeededBatch],
        device: torch.device | None,
        transform: BatchTransform | None,
    ) -> None:
        self._batches = batches
        self._device = device
        self._transform = transform
        self._side = _new_stream(device) if device is not None and device.type == "cuda" else None
        self._copies = OneAhead()

    def __next__(self) -> Batch:
        if self._side is None:
            batch, seeds = next(self._batches)
            return self._transformed(self._to_device(batch), seeds)
        # Only on CUDA: elsewhere a copy ahead would run at once, in the consumer's own time.
        batch, seeds = self._copies.take(self._copy)
        stream = torch.cuda.current_stream(self._device)
        stream.wait_stream(self._side)
        for value in batch.values():
            _record(value, stream)
        if self._batches.ready():
            self._copies.begin(self._copy)
        return self._transformed(batch, seeds)

    def _copy(self) -> SeededBatch:
        """Start the next batch's copy."""
        batch, seeds = next(self._batches)
        with torch.cuda.stream(self._side):
            return self._to_device(batch), seeds

    def _to_device(self, batch: Batch) -> Batch:
        if self._device is None:
            return batch
        # Asynchronous on CUDA only: elsewhere nothing keeps memory from being used again while a copy still reads it.
        with self._timed():
            return {name: _move(value, self._device, self._side is not None) for name, value in batch.items()}

    def _transformed(self, batch: Batch, seeds: torch.Tensor | None) -> Batch:
        if self._transform is None:
            return batch
        with self._timed():
            return apply_transform(self._transform, batch, seeds)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Count the time that the block takes. On a GPU much of the work continues after the block."""
        begin = time.monotonic()
        yield
        self._batches.times.moving += time.monotonic() - begin


def apply_transform(transform: BatchTransform | None, batch: Batch, seeds: torch.Tensor | None) -> Batch:
    """The transformed batch, made without gradients."""
    if transform is None:
        return batch
    try:
        with torch.no_grad():
            result = transform(batch) if seeds is None else transform(batch, seeds)
    except StopIteration as error:
        raise not_an_end(error) from error
    if result is None:
        name = getattr(transform, "__name__", type(transform).__name__)
        raise UsageError(f"batch_transform: expected {name} to return the batch, found None")
    return result


def move(batch: Batch, device: torch.device | None) -> Batch:
    """The batch on a device; None leaves it where it is."""
    return batch if device is None else {name: _move(value, device, False) for name, value in batch.items()}


class _Pinned(dict[str, Any]):
    """A batch that a DataLoader's ``pin_memory`` leaves alone: device memory, where it may be, cannot be pinned."""

    def pin_memory(self) -> "_Pinned":
        return self


def as_pinned(batch: Batch) -> Batch:
    """A batch that a DataLoader takes to be pinned. Anything but a dict, which a transform may give, is left alone."""
    return _Pinned(batch) if type(batch) is dict else batch


def _new_stream(device: torch.device) -> "torch.cuda.Stream":
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call] # torch's


def _move(value: Any, device: torch.device, ahead: bool) -> Any:
    """The tensors of a value on a device; with `ahead` the copies may still be running. Encoded bytes stay."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=ahead)
    moves = isinstance(value, list) and not isinstance(value, EncodedValues)
    return [_move(item, device, ahead) for item in value] if moves else value


def _record(value: Any, stream: "torch.cuda.Stream") -> None:
    """Inform the allocator that a tensor made on the side stream is used on another."""
    if isinstance(value, torch.Tensor):
        value.record_stream(stream)
    elif isinstance(value, list) and not isinstance(value, EncodedValues):
        for item in value:
            _record(item, stream)
