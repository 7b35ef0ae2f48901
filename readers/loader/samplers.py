"""The samplers of a `Loader`: what libraries that take a torch DataLoader look for in one."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch.utils.data import Sampler, SequentialSampler

from readers.order.own import OwnEpoch
from readers.seeding import SampledIndex
from shardspec.errors import UsageError

if TYPE_CHECKING:
    from readers.loader.loader import Loader


class LoaderBatchSampler(Sampler[list[int]]):
    """The indices of a `Loader`'s batches."""

    def __init__(self, loader: "Loader") -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[list[int]]:
        loader = self._loader
        iteration = loader._begin()
        picks = loader._picks(iteration)
        length = loader._length(iteration)
        for number in range(-(-length // loader._step)):
            loader._handed = batch = picks(number)
            iteration.taken = min(iteration.taken + loader._step, length)
            pairs = zip(batch.rows.tolist(), batch.seeds.tolist(), strict=True)
            yield [SampledIndex(row, seed, iteration.epoch) for row, seed in pairs]
        iteration.ended = True

    @property
    def batch_size(self) -> int:
        """Batch size of the Loader.

        Raises
        ------
        UsageError
            If there are several ranks: code that reads this attribute, as accelerate's `prepare_data_loader` does,
            would divide the batches among the ranks again.
        """
        if self._loader._cut().world_size > 1:
            raise UsageError(
                "Loader: expected to be left as it is, since its batches are already this rank's share, found an "
                "attempt to divide them again: leave it out of prepare_data_loader (accelerator.prepare lets it be)"
            )
        return self._loader.batch_size

    @property
    def drop_last(self) -> bool:
        """True if the Loader drops an incomplete last batch."""
        return self._loader.drop_last

    @property
    def sampler(self) -> "LoaderSampler":
        """The same indices one by one."""
        return LoaderSampler(self._loader)

    def set_epoch(self, epoch: int) -> None:
        """Make the Loader's next iteration that of `epoch`."""
        self._loader.set_epoch(epoch)


class LoaderSampler(SequentialSampler):
    """The indices of a `Loader`'s samples, one by one.

    It is a `SequentialSampler` so that Lightning's ``overfit_batches`` does not try to replace it.
    """

    def __init__(self, loader: "Loader") -> None:
        super().__init__(loader.dataset)
        self._loader = loader

    def __len__(self) -> int:
        loader = self._loader
        progress, cut = loader._progress, loader._cut()
        length = cut.length(progress.total)
        sequence = progress.order.epoch(progress.epoch)
        if loader._batched and isinstance(sequence, OwnEpoch):
            return sum(len(sequence.batch(position)) for position in cut.positions(0, length).tolist())
        return length - length % loader.batch_size if loader.drop_last else length

    def __iter__(self) -> Iterator[int]:
        for batch in LoaderBatchSampler(self._loader):
            yield from batch

    def set_epoch(self, epoch: int) -> None:
        """Make the Loader's next iteration that of `epoch`, if not of a later one.

        Lightning calls this with the number of its own epoch, in which a Loader may be iterated over several times: as
        the shorter one of two. No epoch is repeated then.
        """
        self._loader._progress.move_on_to(epoch)
