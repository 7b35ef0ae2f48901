"""A sampler for torch's DataLoader, and torchdata's StatefulDataLoader, that yields an `Order`."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from readers.choice import Choice, announce
from readers.order import Cut, Order
from readers.progress import Progress
from readers.seeding import SampledIndex

_CHUNK = 4096


class OrderSampler(Sampler[int]):
    """Yields this rank's part of every epoch, as indices that carry the seed and the epoch to the dataset.

    The length is the same on every rank, and that of a whole epoch also where a state was loaded and the next iteration yields
    the rest of one, as with torch's ``DistributedSampler`` and torchdata's stateful samplers. Iterating again takes the next epoch; `set_epoch` chooses one.

    Parameters
    ----------
    order : Order
    rank, world_size : int
    drop_last : bool
        Leave out the last few samples where they do not divide by the ranks, instead of repeating the first few.
    choice : Choice, optional
        Decides the order's shuffle, until another is decided or a state with another is loaded.
    """

    def __init__(
        self, order: Order, rank: int = 0, world_size: int = 1, drop_last: bool = False, choice: Choice | None = None
    ) -> None:
        self._progress = Progress(order, Cut(rank, world_size, drop_last), auto=choice is not None)
        if choice is not None:
            self.decide_order(choice)
        self._begun: tuple[int, int] | None = None  # the last iterator's epoch, and what was consumed of it before
        self._yielded = 0

    def __len__(self) -> int:
        return self._progress.length()

    def __iter__(self) -> Iterator[int]:
        # Not a generator as a whole: the epoch begins when the iterator is made, not at its first element. One that nobody took
        # from uses up no epoch, since torchdata makes several for each that it reads.
        if self._begun is None or self._yielded:
            self._begun = self._progress.begin()
        self._yielded = 0
        return self._iterate(*self._begun)

    def _iterate(self, epoch: int, consumed: int) -> Iterator[int]:
        progress = self._progress
        length = progress.cut.length(len(progress.order), consumed)
        sequence = progress.order.epoch(epoch)
        for start in range(0, length, _CHUNK):
            picks = sequence.at(progress.cut.positions(start, min(start + _CHUNK, length), consumed))
            for row, seed in zip(picks.rows.tolist(), picks.seeds.tolist(), strict=True):
                self._yielded += 1
                yield SampledIndex(row, seed, epoch)

    @property
    def order(self) -> str | bool:
        """``"full"``, ``"blocks"``, False or ``"weighted"``."""
        return self._progress.shuffle

    @property
    def order_reason(self) -> str:
        """Why that order."""
        return self._progress.reason

    def decide_order(self, choice: Choice) -> None:
        """Take an order that all ranks have agreed on, before the first epoch."""
        if self._progress.order.weights is None:
            self._progress.decide(choice)
            if self._progress.cut.rank == 0:
                announce(choice)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of `epoch`."""
        self._progress.set_epoch(epoch)
        self._begun, self._yielded = None, 0

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """The state from which `load_state_dict` goes on, at any number of ranks and workers.

        Parameters
        ----------
        consumed : int, optional
            Samples of this epoch that the training loops of all ranks together have consumed. A DataLoader's workers run
            ahead of the loop, so only the loop knows: steps × batch size × ranks, the last batch by what it holds. Without it,
            what this sampler has handed out counts, times the ranks (right for StatefulDataLoader, which keeps the state of
            every batch).

        Raises
        ------
        UsageError
            The epoch has not so many.
        """
        if consumed is None:
            consumed = self._progress.consumed + self._yielded * self._progress.cut.world_size
        return self._progress.state_dict(consumed)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state: the next iteration yields the rest of its epoch.

        Raises
        ------
        UsageError
            The state is of another order.
        """
        self._progress.load_state_dict(state)
        self._begun, self._yielded = None, 0


def class_balanced_weights(labels: "np.ndarray[Any, np.dtype[Any]]") -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Weights that draw every class equally often: one over the number of samples of each sample's class.

    Parameters
    ----------
    labels : int array, (N,)

    Returns
    -------
    float64 array, (N,)
    """
    _, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return 1.0 / counts[inverse]
