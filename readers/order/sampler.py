"""A sampler for torch's DataLoader and torchdata's StatefulDataLoader, which yields an `Order`."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from readers.order.auto import Choice
from readers.order.order import Cut, Order
from readers.order.own import OwnOrder
from readers.order.progress import EpochProgress, Iteration, Resumable
from readers.seeding import SampledIndex

_CHUNK = 4096


class OrderSampler(Resumable, Sampler[int]):
    """Yields this rank's part of every epoch, as indices that carry the seed and the epoch to the dataset.

    The length is the same on every rank. It is that of a whole epoch, even after a state was loaded and the next
    iteration yields the rest of one, as with torch's ``DistributedSampler`` and torchdata's stateful samplers.
    Iterating again takes the next epoch; `set_epoch` chooses one. If there are several iterators, each gives its whole
    epoch, and the state is that of the newest.

    Parameters
    ----------
    order : Order or OwnOrder
        An order of rows.
    rank, world_size : int
    drop_last : bool
        If the samples do not divide by the ranks, leave out the last few instead of repeating the first few.
    choice : Choice, optional
        Decides the order's shuffle, until another is decided or a state with another is loaded.
    """

    def __init__(
        self,
        order: Order | OwnOrder,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        choice: Choice | None = None,
    ) -> None:
        self._progress = EpochProgress(order, Cut(rank, world_size, drop_last), auto=choice is not None)
        if choice is not None:
            self.decide_order(choice)

    def __len__(self) -> int:
        return self._progress.length()

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {len(self)} samples an epoch, {self._progress}, {self._progress.cut}"

    def __iter__(self) -> Iterator[int]:
        # Not a generator itself: the epoch begins when the iterator is made, not at its first element. An iterator from
        # which nothing is taken uses up no epoch, since torchdata makes several for each one that it reads.
        return self._iterate(self._progress.begin(unused_again=True), self._progress.order)

    def _iterate(self, iteration: Iteration, order: Order | OwnOrder) -> Iterator[int]:
        self._progress.use(iteration)
        epoch, consumed, cut = iteration.epoch, iteration.consumed, self._progress.cut
        sequence = order.epoch(epoch)
        length = cut.length(len(sequence), consumed)
        for start in range(0, length, _CHUNK):
            picks = sequence.at(cut.positions(start, min(start + _CHUNK, length), consumed))
            for row, seed in zip(picks.rows.tolist(), picks.seeds.tolist(), strict=True):
                iteration.taken += 1
                yield SampledIndex(row, seed, epoch)
        iteration.ended = True


def class_balanced_weights(labels: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Weights that draw every class equally often: 1 over the number of samples in the sample's class.

    Parameters
    ----------
    labels : int array, (N,)

    Returns
    -------
    float64 array, (N,)
    """
    _, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return 1.0 / counts[inverse]
