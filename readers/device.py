"""Batches on their way to the device: copies on a side stream, then transforms of whole batches."""

from collections.abc import Callable
from typing import Any

import torch

from readers.collate import Batch
from readers.stages import Stage, not_an_end

BatchTransform = Callable[..., Batch]
"""Any callable or ``nn.Module`` from batch to batch. One with ``seeded = True`` is called with the batch and with ``seeds``, int64
(B,) on the CPU, one per sample: functions of seed, epoch and row. Runs without gradients."""

SeededBatch = tuple[Batch, torch.Tensor | None]
"""A batch, and the numbers of its samples where the transform takes them."""


def wants_seeds(transform: BatchTransform | None) -> bool:
    """Whether a batch transform is called with a number for each sample."""
    return getattr(transform, "seeded", False) is True


class DeviceStage:
    """Moves batches to a device and transforms them there.

    On CUDA, copies run on a stream of their own, so they overlap with the consumer's work, whose stream waits for them. The
    next batch's copy is begun one batch ahead where that batch is ready; waiting for it would only hold the present one back.

    Parameters
    ----------
    batches : Stage
        Of a batch each, and its seeds.
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
        self._ahead: SeededBatch | None = None

    def __next__(self) -> Batch:
        if self._side is None:
            batch, seeds = next(self._batches)
            return self._transformed(self._to_device(batch), seeds)
        # Elsewhere a copy ahead would happen at once, in the consumer's own time.
        current = self._ahead if self._ahead is not None else self._copy()
        if current is None:
            raise StopIteration
        torch.cuda.current_stream(self._device).wait_stream(self._side)
        batch, seeds = current
        for value in batch.values():
            _record(value, torch.cuda.current_stream(self._device))
        self._ahead = self._copy() if self._batches.ready() else None
        return self._transformed(batch, seeds)

    def _copy(self) -> SeededBatch | None:
        """Start the next batch's copy; None at the end."""
        try:
            batch, seeds = next(self._batches)
        except StopIteration:
            return None
        with torch.cuda.stream(self._side):
            return self._to_device(batch), seeds

    def _to_device(self, batch: Batch) -> Batch:
        if self._device is None:
            return batch
        # Elsewhere a copy that has not ended may read memory that is used again: only CUDA's host allocator waits for it.
        return {name: _move(value, self._device, self._side is not None) for name, value in batch.items()}

    def _transformed(self, batch: Batch, seeds: torch.Tensor | None) -> Batch:
        if self._transform is None:
            return batch
        try:
            with torch.no_grad():
                return self._transform(batch) if seeds is None else self._transform(batch, seeds)
        except StopIteration as error:
            raise not_an_end(error) from error


def _new_stream(device: torch.device) -> "torch.cuda.Stream":
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call] # torch's


def _move(value: Any, device: torch.device, ahead: bool) -> Any:
    """The tensors of a value on a device; with `ahead` they may get there later."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=ahead)
    return [_move(item, device, ahead) for item in value] if isinstance(value, list) else value


def _record(value: Any, stream: "torch.cuda.Stream") -> None:
    """Tell the allocator that a tensor made on the side stream is used on another."""
    if isinstance(value, torch.Tensor):
        value.record_stream(stream)
    elif isinstance(value, list):
        for item in value:
            _record(item, stream)
