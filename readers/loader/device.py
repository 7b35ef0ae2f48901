"""Batches on their way to the device: copies on a side stream, then batch transforms."""

import warnings
from collections.abc import Callable
from typing import Any

import torch

from readers.dataset.collate import Batch, EncodedValues
from readers.loader.threads import ReadStage, not_an_end
from shardspec.errors import UsageError
from shardspec.wording import shorten

BatchTransform = Callable[..., Batch]
"""Any callable or ``nn.Module`` from batch to batch, run without gradients. With ``seeded = True`` it is called with the
batch and ``seeds``, int64 (B,) on the CPU, one per sample: functions of seed, epoch and row. With ``threaded = True`` as
well, it runs in the Loader's threads if batches stay on the CPU; its method ``forward_``, if it has one, is then called
instead, which may write to the batch. Other transforms run in the training loop's thread."""

SeededBatch = tuple[Batch, torch.Tensor | None]
"""A batch, and the seeds of its samples if the transform takes them."""


def wants_seeds(transform: BatchTransform | None) -> bool:
    """Return whether a batch transform takes a seed for each sample."""
    return getattr(transform, "seeded", False) is True


def runs_in_threads(transform: BatchTransform | None, device: torch.device | None) -> bool:
    """Return whether a batch transform runs in the Loader's threads: not in the training loop's thread or on a GPU."""
    on_cpu = device is None or device.type == "cpu"
    return on_cpu and wants_seeds(transform) and getattr(transform, "threaded", False) is True


def as_device(device: torch.device | str | int) -> torch.device:
    """Check that torch can use a device here.

    GPUs are counted but not initialised: a context would take GPU memory, and the process may still fork before the
    first batch.
    """
    try:
        chosen = torch.device(device)
        if chosen.type != "cuda" or (chosen.index or 0) >= torch.cuda.device_count():
            torch.empty(0, device=chosen)
    except (AssertionError, RuntimeError, TypeError) as error:
        raise UsageError(
            option="device",
            expected="one that torch can use here",
            found=f"{shorten(device)} ({_first_line(error)})",
            hint="leave it out to have batches in ordinary memory",
        ) from error
    return chosen


def can_pin() -> bool:
    """Return whether there is a device to pin memory for; warn if not.

    As in torch's DataLoader, this is not an error, so that a script for a GPU can be tried without one.
    """
    try:
        if torch.cuda.device_count() == 0:
            torch.empty(1, device="cpu", pin_memory=True)
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


class DeviceStage:
    """Copies batches to a device and transforms them there.

    On CUDA, copies run on a side stream, so that they overlap with the consumer's work, whose stream waits for them.
    The copy of the next batch starts one batch early if that batch is ready; waiting for it would delay the current
    one.

    Parameters
    ----------
    batches : ReadStage
        Yields the batches with their seeds.
    device : torch.device or None
        None leaves batches where they are.
    transform : callable, optional
        Transform of whole batches.
    """

    def __init__(
        self,
        batches: ReadStage[SeededBatch],
        device: torch.device | None,
        transform: BatchTransform | None,
    ) -> None:
        self._batches = batches
        self._device = device
        self._transform = transform
        self._side = _new_stream(device) if device is not None and device.type == "cuda" else None
        self._copied: SeededBatch | Exception | None = None  # the next batch, whose copy has begun, or has failed

    def __next__(self) -> Batch:
        if self._side is None:
            batch, seeds = next(self._batches)
            return apply_transform(self._transform, move(batch, self._device), seeds)
        # Only on CUDA: elsewhere an early copy would run at once and delay the consumer.
        copied, self._copied = self._copied, None
        if isinstance(copied, Exception):
            try:
                raise copied
            finally:
                del copied  # whose traceback refers to this frame, so batches would stay until garbage is collected
        batch, seeds = copied or self._copy()
        stream = torch.cuda.current_stream(self._device)
        stream.wait_stream(self._side)
        for value in batch.values():
            _record(value, stream)
        if self._batches.ready():
            try:
                self._copied = self._copy()
            except Exception as error:  # of the next batch, so it waits until that one is asked for
                self._copied = error
        return apply_transform(self._transform, batch, seeds)

    def _copy(self) -> SeededBatch:
        batch, seeds = next(self._batches)
        with torch.cuda.stream(self._side):
            return move(batch, self._device, ahead=True), seeds


def apply_transform(transform: BatchTransform | None, batch: Batch, seeds: torch.Tensor | None) -> Batch:
    """Apply a batch transform without gradients."""
    if transform is None:
        return batch
    try:
        with torch.no_grad():
            result = transform(batch) if seeds is None else transform(batch, seeds)
    except StopIteration as error:
        raise not_an_end(error) from error
    if result is None:
        name = getattr(transform, "__name__", type(transform).__name__)
        raise UsageError(option="batch_transform", expected=f"{name} to return the batch", found="None")
    return result


def move(batch: Batch, device: torch.device | None, ahead: bool = False) -> Batch:
    """Move a batch to a device, without waiting if `ahead`, on CUDA only; None leaves it where it is.

    Elsewhere nothing keeps memory from being reused while a copy still reads it.
    """
    return batch if device is None else {name: _move(value, device, ahead) for name, value in batch.items()}


class _Pinned(dict[str, Any]):
    """A batch that a DataLoader's ``pin_memory`` does not change, since device memory cannot be pinned."""

    def pin_memory(self) -> "_Pinned":
        return self


def as_pinned(batch: Batch) -> Batch:
    """Mark a batch as pinned for a DataLoader. Results of a transform that are not dicts are returned as they are."""
    return _Pinned(batch) if type(batch) is dict else batch


def _new_stream(device: torch.device) -> "torch.cuda.Stream":
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call] # torch's


def _move(value: Any, device: torch.device, ahead: bool) -> Any:
    """Move the tensors of a value to a device, without waiting if `ahead`. Encoded bytes stay on the CPU."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=ahead)
    moves = isinstance(value, list) and not isinstance(value, EncodedValues)
    return [_move(item, device, ahead) for item in value] if moves else value


def _record(value: Any, stream: "torch.cuda.Stream") -> None:
    """Tell the allocator that a tensor made on the side stream is used on another."""
    if isinstance(value, torch.Tensor):
        value.record_stream(stream)
    elif isinstance(value, list) and not isinstance(value, EncodedValues):
        for item in value:
            _record(item, stream)
