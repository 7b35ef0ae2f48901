"""Batches for Lightning that count consumed samples, and how the data module opens its datasets."""

from collections.abc import Callable, Iterator
from os import PathLike
from typing import Any

from lightning.pytorch.overrides.distributed import _IndexBatchSamplerWrapper
from torch.utils.data import DataLoader

from readers.dataset.base import SampleDataset, check_dataset
from readers.dataset.collate import Batch
from readers.dataset.packed import open_dataset
from readers.loader.loader import Loader
from readers.order.sampler import OrderSampler
from shardspec.errors import UsageError

DatasetOrPath = SampleDataset | str | PathLike[str]
Batches = Loader | DataLoader[Any]


def as_dataset(name: str, source: DatasetOrPath) -> SampleDataset:
    """Return a dataset, which is opened if it is given by a path or URL."""
    if isinstance(source, str | PathLike):
        return open_dataset(source)
    check_dataset(name, source)
    return source


class TrainBatches:
    """Training batches for Lightning. An epoch begins at its first batch: by then Lightning has set its number.

    Parameters
    ----------
    source : Loader or OrderSampler
        Determines the order of `batches`.
    samples_per_step : int
        Samples of a step of all ranks together; batches, for an order of batches.
    processed : callable
        Returns the number of this epoch's batches that the training loop has processed.
    epoch : int
        The next epoch.
    begin : callable
        Called when an epoch begins.
    """

    def __init__(
        self,
        batches: Batches,
        source: Loader | OrderSampler,
        samples_per_step: int,
        processed: Callable[[], int],
        epoch: int,
        begin: Callable[[], None],
    ) -> None:
        self._batches: Batches | None = batches
        self._source = source
        self._begin = begin
        source.set_epoch(epoch)
        self._length = len(batches)
        self._drop_last = batches.drop_last
        self._processed = processed
        self.samples_per_step = samples_per_step
        # The epoch; the samples that all ranks have consumed of it when its iteration begins; and the batches processed
        # by then, None before. In one attribute, since Lightning saves checkpoints from signal handlers.
        self._at: tuple[int, int, int | None] = (epoch, 0, None)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        return self._iterate(_not_closed(self._batches))

    @property
    def sampler(self) -> "TrainBatches":
        """The object whose ``set_epoch`` Lightning calls: this one."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of `epoch`. Setting the epoch that was just restored keeps its progress."""
        last, consumed, begun_at = self._at
        self._source.set_epoch(epoch)
        self._at = (epoch, consumed if begun_at is None and epoch == last else 0, None)

    def left(self) -> int:
        """Return the batches left at the beginning of this epoch, which may have been restored."""
        epoch, consumed, _ = self._at
        samples = self._samples(epoch) - consumed
        return samples // self.samples_per_step if self._drop_last else -(-samples // self.samples_per_step)

    def consumed_state(self) -> dict[str, Any]:
        """Return the state after the batches that the training loop has processed."""
        epoch, consumed, begun_at = self._at
        if begun_at is not None:
            processed, samples = self._processed(), self._samples(epoch)
            # A last batch may be smaller, and a few samples are repeated to make the ranks' lengths equal.
            consumed = min(consumed + (processed - begun_at) * self.samples_per_step, samples)
            if processed >= self._length:
                consumed = samples
        return {**self._source._progress.state_dict(consumed, epoch), "samples_per_step": self.samples_per_step}

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the data module saves the state. To Lightning, the method means an exact resume."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of `consumed_state`; ignore the empty state that Lightning passes."""
        if state:
            self._source.load_state_dict(state)
            self._at = (state["epoch"], state["consumed"], None)
            self._length = len(_not_closed(self._batches))

    def close(self) -> None:
        """Drop the loader with its threads and processes. The state is kept."""
        self._batches = None

    def _iterate(self, batches: Batches) -> Iterator[Batch]:
        if len(batches) != self._length:
            raise UsageError(
                option="order",
                expected=f"{self._length} batches in epoch {self._at[0]}, as Lightning was given when it last asked",
                found=len(batches),
                hint="for epochs of different lengths set Trainer(reload_dataloaders_every_n_epochs=1)",
            )
        self._begin()
        epoch, consumed, _ = self._at
        self._at = (epoch, consumed, self._processed())
        yield from batches

    def _samples(self, epoch: int) -> int:
        return self._source._progress.order.length(epoch)


class EvalBatches:
    """Batches for validation, test and prediction: the same in every pass.

    Attributes
    ----------
    batch_sampler : RowsOfBatches
        Where Lightning finds the rows of each batch, for ``BasePredictionWriter``.
    """

    def __init__(self, batches: Batches, source: Loader | OrderSampler, batch_size: int) -> None:
        self._batches: Batches | None = batches
        self._source = source
        self._length = len(batches)
        self.batch_sampler = RowsOfBatches(source, batch_size, self._length)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        self._source.set_epoch(0)
        return iter(_not_closed(self._batches))

    def close(self) -> None:
        """Drop the loader with its threads and processes."""
        self._batches = None


class RowsOfBatches(_IndexBatchSamplerWrapper):  # type: ignore[misc] # lightning is not looked into
    """The rows of each batch of this rank, computed on request.

    Lightning looks for them in ``seen_batch_indices`` of its own class.
    """

    def __init__(self, source: Loader | OrderSampler, batch_size: int, length: int) -> None:
        self._progress = source._progress
        self._batch_size = batch_size
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> list[int]:
        start, progress = number * self._batch_size, self._progress
        stop = min(start + self._batch_size, progress.length())
        rows: list[int] = progress.order.epoch(0).at(progress.cut.positions(start, stop)).rows.tolist()
        return rows

    @property
    def seen_batch_indices(self) -> "RowsOfBatches":
        """The rows of every batch, read or not."""
        return self


def _not_closed(batches: Batches | None) -> Batches:
    if batches is None:
        raise UsageError("these batches were closed at the end of the stage", hint="get new ones from the data module")
    return batches
