"""Count how many samples of an epoch were consumed, and save and restore this number."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from operator import index
from typing import Any

import numpy as np

from readers.arguments import as_integer
from readers.order.agreement import Mark, ShuffleChoice, StoredData, announce
from readers.order.custom import CustomEpoch, CustomOrder
from readers.order.order import Order, Picks, RankShare
from readers.seeding import check_epoch
from shardspec.errors import UsageError
from shardspec.wording import counted, shorten

_COMPARED = 1024
"""Number of rows that ranks compare; they compare all rows of a custom order."""


@dataclass
class Iteration:
    """One iteration over an epoch, or over the rest of one.

    Attributes
    ----------
    consumed : int
        Samples of the epoch that all ranks had consumed when the iteration began.
    taken : int
        Samples that this rank has yielded since.
    ended : bool
        Whether nothing is left. Samples that fill no batch, or do not divide by the ranks, do not count.
    """

    epoch: int
    consumed: int
    taken: int = 0
    ended: bool = False


class EpochProgress:
    """The current or next epoch, and how many of its samples all ranks together have consumed.

    Every `begin` after the first takes the next epoch, unless `set_epoch` or `load_state_dict` was called in between.

    Parameters
    ----------
    order : Order or CustomOrder
        An order of batches counts batches instead of samples.
    auto : bool
        Whether the shuffle of `order` is still to be chosen, by `decide` or by a loaded state.

    Attributes
    ----------
    reason : str
        Reason for the order.
    running : Iteration or None
        The newest iteration; None if an epoch was set or a state loaded since.
    """

    def __init__(self, order: Order | CustomOrder, cut: RankShare, auto: bool = False) -> None:
        self.order = order
        self.cut = cut
        self.undecided = self._auto = auto and order.takes_shuffle
        self.reason = "as asked for"
        self.running: Iteration | None = None
        self._epoch = 0
        self._consumed = 0  # samples, when the epoch's iteration begins
        self._chosen = False  # whether the epoch was chosen by set_epoch
        self._used = False  # whether samples of the epoch were taken, by any of its iterations

    def __str__(self) -> str:
        return f"order {self.shuffle!r}, seed {self.order.seed}"

    def decide(self, choice: ShuffleChoice) -> None:
        """Use a chosen order."""
        if isinstance(self.order, Order):
            self.order = self.order.with_shuffle(choice.shuffle, self.order.seed, choice.window)
        self.undecided, self.reason = False, choice.reason
        self._settle_lanes()

    def _settle_lanes(self) -> None:
        """Give an order with lanes as many as there are ranks now, unless it has a number, or a state had one."""
        if not self.undecided and isinstance(self.order, Order) and self.order.has_lanes and self.order.lanes is None:
            self.order = replace(self.order, lanes=self.cut.world_size)

    @property
    def shuffle(self) -> str | bool:
        """Name of the order; ``"auto"`` until it is decided."""
        return "auto" if self.undecided else self.order.name

    def begin(self, least: int = 1, unused_again: bool = False) -> Iteration:
        """Start an iteration, with a separate count.

        Parameters
        ----------
        least : int
            Samples that this rank needs in a restored epoch. With fewer, the epoch counts as finished, and the next one
            begins.
        unused_again : bool
            Whether an epoch that was begun but never used (`use`) is begun again instead of the next one.
        """
        self._settle_lanes()
        if self.running is not None:
            onward = self._used or not unused_again
        else:
            onward = self._consumed > 0 and not self._chosen and self.length(self._consumed) < least
            self._used = False
        if onward:
            self._epoch += 1
            self._consumed = 0
            self._used = False
        self._chosen = False
        self.running = Iteration(self._epoch, self._consumed)
        return self.running

    def use(self, iteration: Iteration) -> None:
        """Record that samples are taken from an iteration, even if a newer iteration exists."""
        self._used = self._used or iteration.epoch == self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of `epoch`. Setting the epoch that was just restored keeps its progress."""
        epoch = check_epoch(epoch)
        if self.running is not None or epoch != self._epoch:
            self._consumed = 0
        self._epoch = epoch
        self.running, self._chosen = None, True

    def move_on_to(self, epoch: int) -> None:
        """Make the next iteration that of `epoch`, unless a later one is due."""
        if check_epoch(epoch) > self._epoch:
            self.set_epoch(epoch)

    def mark(self, origins: Callable[[Picks], Picks], stored: Sequence[StoredData]) -> Mark:
        """Return the state that must be equal on all ranks when they start or continue the current epoch.

        Parameters
        ----------
        origins : callable
            `readers.dataset.base.SampleDataset.origins`: ranks may hold different parts of a dataset.
        stored : sequence of StoredData
            Packed datasets that hold the rows.
        """
        sequence = self.order.epoch(self._epoch)
        coming = sequence.at(self._consumed + np.arange(min(_COMPARED, len(sequence)), dtype=np.int64))
        content = blake2b(origins(coming).rows.astype("<i8").tobytes(), digest_size=8)
        content.update(str(self.shuffle).encode())  # a rank with a loaded state does not take part in the choice
        if isinstance(sequence, CustomEpoch):
            content.update(sequence.digest().encode())
        return Mark(f"epoch {self._epoch} after {self._consumed} of {self.total}", content.hexdigest(), stored)

    @property
    def epoch(self) -> int:
        """The current or next epoch."""
        return self._epoch

    @property
    def total(self) -> int:
        """Samples of the current epoch, over all ranks."""
        return self.order.length(self._epoch)

    def length(self, consumed: int = 0) -> int:
        """Return the samples that this rank takes of the current epoch after the first `consumed` of all ranks."""
        return self.cut.length(self.total, consumed)

    def warn_if_empty(self, least: int) -> None:
        """Warn if `drop_last` leaves nothing of the current epoch; `least` is the size of a batch of this rank."""
        if self.total and self.length() < least:
            noun = "batch" if isinstance(self.order, CustomOrder) and self.order.batched else "sample"
            warnings.warn(
                f"drop_last=True leaves no batch of an epoch of {counted(self.total, noun)}, because every step takes "
                f"{counted(least, noun)} on each of {counted(self.cut.world_size, 'rank')}. Use a smaller "
                "batch_size, fewer ranks or drop_last=False.",
                stacklevel=2,
            )

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """Return the state after `consumed` samples of the current epoch (`Resumable.state_dict`).

        A few more than the order's length are allowed, since samples are repeated to make the ranks' lengths equal.
        """
        total, running = self.total, self.running
        if consumed is None:
            consumed = self._consumed
            if running is not None:
                consumed = total if running.ended else running.consumed + running.taken * self.cut.world_size
        if not 0 <= index(consumed) < total + self.cut.world_size:
            raise UsageError(
                option="consumed",
                expected=f"0 to {total} samples of this epoch",
                found=consumed,
                hint=(
                    "count from the epoch's beginning, over all ranks, and a smaller last batch by the samples in it"
                ),
            )
        return {
            **_order_state(self.order, self.undecided, self._epoch),
            "epoch": self._epoch,
            "consumed": min(index(consumed), total),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state: the next iteration continues where the saved one was, at any number of ranks.

        A state of another order is refused. If the order was still to be chosen, it becomes that of the state.
        """
        if not isinstance(state, Mapping):
            raise UsageError(option="state", expected="a result of state_dict()", found=shorten(state))
        order, undecided, reason = self.order, self.undecided, self.reason
        if isinstance(order, Order) and isinstance(state.get("lanes"), int):
            order = replace(order, lanes=state["lanes"])
        if self._auto and isinstance(order, Order) and state.get("shuffle") in ("full", "blocks"):
            window = state.get("window") if order.blocks is not None and order.blocks.whole else None
            order, undecided = order.with_shuffle(state["shuffle"], order.seed, window), False
            reason = "as in the state that was loaded"
        elif self._auto and state.get("shuffle") == "auto":
            undecided = True
        expected = _order_state(order, undecided, state.get("epoch"))
        found = {name: state.get(name) for name in expected}
        if found != expected:
            differing = [name for name in expected if found[name] != expected[name]]
            raise UsageError(
                option="state",
                expected="the state of this order",
                found=f"another; they differ in {', '.join(differing)}",
                hint=(
                    f"here {expected}, in the state {found}: make the dataset and the loader as they were "
                    "when it was saved"
                ),
            )
        epoch, consumed = check_epoch(state.get("epoch")), as_integer("consumed", state.get("consumed"))
        total = order.length(epoch)
        if not 0 <= consumed <= total:
            raise UsageError(option="state", expected=f"0 to {total} samples consumed", found=consumed)
        self.order, self.undecided, self.reason = order, undecided, reason
        self._epoch, self._consumed = epoch, consumed
        self.running, self._chosen = None, False


class Resumable:
    """Public methods of objects that iterate over the epochs of an order: `readers.Loader` and the sampler."""

    _progress: EpochProgress

    @property
    def order(self) -> str | bool:
        """``"full"``, ``"blocks"``, False, ``"weighted"`` or ``"custom"``; ``"auto"`` until it is decided."""
        return self._progress.shuffle

    @property
    def order_reason(self) -> str:
        """Reason for the order."""
        return self._progress.reason

    def decide_order(self, choice: ShuffleChoice) -> None:
        """Use an order that all ranks agreed on, before the first epoch. Weighted draws and custom orders are kept."""
        if self._progress.order.takes_shuffle:
            self._progress.decide(choice)
            if self._progress.cut.rank == 0:
                announce(choice)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of `epoch`."""
        self._progress.set_epoch(epoch)

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """Return the state from which `load_state_dict` continues, at any number of ranks, workers and batch size.

        Parameters
        ----------
        consumed : int, optional
            Samples of this epoch that the training loops of all ranks have consumed; for an order of batches, batches.
            The default is the number yielded here, times the number of ranks. It is right for a `Loader`, and for a
            sampler in a StatefulDataLoader, which keeps the state of every batch. The workers of torch's DataLoader run
            ahead of the loop, so there only the loop knows the number: steps × batch size × ranks, with the last batch
            counted by its samples.

        Raises
        ------
        UsageError
            If the epoch does not have that many.
        """
        return self._progress.state_dict(consumed)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state: the next iteration yields the rest of its epoch.

        Raises
        ------
        UsageError
            If the state belongs to another order.
        """
        self._progress.load_state_dict(state)


def _order_state(order: Order | CustomOrder, undecided: bool, epoch: Any) -> dict[str, int | str | bool | None]:
    """Return the state that a resume compares, in which an undecided order is called ``"auto"``."""
    return order.state(epoch) | ({"shuffle": "auto", "window": None, "lanes": None} if undecided else {})
