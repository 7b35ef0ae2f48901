"""A sampler for torch's DataLoader and torchdata's StatefulDataLoader, which yields an `Order`."""

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Never

import numpy as np
import numpy.typing as npt
from torch.utils.data import DistributedSampler, Sampler

from readers.order.custom import CustomOrder
from readers.order.grouped import Values, number_values
from readers.order.order import Order, RankShare
from readers.order.progress import EpochProgress, Iteration, Resumable
from readers.order.shuffle_choice import ShuffleChoice
from readers.seeding import SampledIndex
from shardspec.errors import UsageError

_CHUNK = 4096
_ACCELERATE_DIVIDES = ("BatchSamplerShard", "DataLoaderDispatcher")
"""Classes of accelerate that divide a sampler's indices, or the samples read at these indices, among the ranks."""


class OrderSampler(Resumable, Sampler[int]):
    """Yields this rank's part of every epoch, as indices that carry the seed and the epoch to the dataset.

    The length is the same on every rank. It is that of a whole epoch, even if a loaded state makes the next iteration
    yield the rest of one, as in torch's ``DistributedSampler`` and torchdata's stateful samplers. Iterating again takes
    the next epoch; `set_epoch` chooses one. If there are several iterators, each yields its whole epoch, and the state
    is that of the newest.

    Parameters
    ----------
    order : Order or CustomOrder
        An order of rows, not of batches.
    rank, world_size : int
        0 <= rank < world_size.
    drop_last : bool
        If the samples do not divide by the ranks, leave out the last few instead of repeating the first few.
    choice : ShuffleChoice, optional
        Decides the order's shuffle, until another is decided or a state with another is loaded.
    """

    def __init__(
        self,
        order: Order | CustomOrder,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        choice: ShuffleChoice | None = None,
    ) -> None:
        self._progress = EpochProgress(order, RankShare(rank, world_size, drop_last), auto=choice is not None)
        if choice is not None:
            self.decide_order(choice)

    def __len__(self) -> int:
        return self._progress.length()

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {len(self)} samples an epoch, {self._progress}, {self._progress.cut}"

    def __iter__(self) -> Iterator[int]:
        # Not a generator: the epoch begins when the iterator is made, not at its first element. An iterator from which
        # nothing is taken uses up no epoch, since torchdata makes several for each one that it reads.
        iteration, order = self._progress.begin(unused_again=True), self._progress.order
        self._progress.warn_if_empty(1)
        return _Indices(self._iterate(iteration, order), lambda: self._left(iteration, order))

    def _iterate(self, iteration: Iteration, order: Order | CustomOrder) -> Iterator[int]:
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

    def _left(self, iteration: Iteration, order: Order | CustomOrder) -> int:
        return self._progress.cut.length(order.length(iteration.epoch), iteration.consumed) - iteration.taken


class RankSampler(OrderSampler, DistributedSampler[Any]):
    """An `OrderSampler` of one of several ranks.

    Libraries such as Lightning recognise by its base class that the samples are already divided; otherwise they would
    divide this rank's share again. Nothing else of torch's sampler is used. accelerate ignores the class, so it is
    refused.
    """

    def __iter__(self) -> Iterator[int]:
        if any(type(caller).__name__ in _ACCELERATE_DIVIDES for caller in _callers()):
            raise _divided_twice()
        return super().__iter__()

    @property
    def generator(self) -> Never:
        """Refuse ``accelerator.prepare``, which reads this attribute of the sampler that it divides.

        Raises
        ------
        UsageError
            Always.
        """
        raise _divided_twice()

    @property
    def rank(self) -> int:  # type: ignore[override] # an attribute of torch's
        """The number of this rank."""
        return self._progress.cut.rank

    @property
    def num_replicas(self) -> int:  # type: ignore[override] # an attribute of torch's
        """The number of ranks."""
        return self._progress.cut.world_size


def _callers() -> list[Any]:
    """Return the objects whose methods led to this call, innermost first."""
    found: list[Any] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found.append(frame.f_locals.get("self"))
        frame = frame.f_back
    return found


def _divided_twice() -> UsageError:
    return UsageError(
        (
            "accelerate divides the samples of every DataLoader among the ranks, and this sampler "
            "has only one rank's share. Leave out rank= and world_size= in dataset.sampler(), or "
            "leave the DataLoader out of accelerator.prepare"
        ),
        option="sampler",
    )


class _Indices(Iterator[int]):
    """The indices of one iteration, with a state that torchdata saves next to the sampler's.

    The sampler's state after a whole epoch makes the next iteration that of the next epoch. But when torchdata restores
    a finished epoch, it first iterates over the rest of it before it begins the next one. Without this state it would
    read ahead in the next epoch, discard that, and continue with the one after.

    Parameters
    ----------
    left : callable
        Returns the number of indices still to come.
    """

    def __init__(self, indices: Iterator[int], left: Callable[[], int]) -> None:
        self._indices = indices
        self._left = left
        self._restored_end = False

    def __next__(self) -> int:
        return next(self._indices)

    def state_dict(self) -> dict[str, bool]:
        """Return whether the iteration is at its end."""
        return {"ended": self._restored_end or self._left() == 0}

    def load_state_dict(self, state: dict[str, bool]) -> None:
        """Yield nothing if the saved iteration was at its end; the sampler's next one then begins an epoch."""
        if state["ended"]:
            self._indices, self._restored_end = iter(()), True


def class_balanced_weights(labels: Values, groups: Values | None = None) -> npt.NDArray[np.float64]:
    """Return weights that draw every class equally often, and every group of a class, such as a video, too.

    The weight of a sample is 1 over the number of samples of its class; with `groups`, 1 over the number of groups of
    its class and over the number of samples that it shares its class and group with. Samples without a class or group
    have the weight 0 and are never drawn.

    Parameters
    ----------
    labels : array of int or sequence of str, (N,)
        The class of each row: ``ds.column("label")``. A negative number, an empty text and a missing value are no
        class.
    groups : array of int or sequence of str, (N,), optional
        ``ds.column("source")``, for example.

    Returns
    -------
    float64 array, (N,)
    """
    classes = number_values("labels", labels)
    units = classes if groups is None else number_values("labels, groups", (labels, groups))
    known = units >= 0
    of_unit = np.zeros(int(units.max(initial=-1)) + 1, np.int64)
    of_unit[units[known]] = classes[known]
    sharing = np.bincount(units[known]) * np.bincount(of_unit)[of_unit]
    weights = np.zeros(len(units))
    weights[known] = 1 / sharing[units[known]]
    return weights
