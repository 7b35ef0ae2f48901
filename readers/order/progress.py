"""Count how many samples of an epoch were consumed, and save and restore this number."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from hashlib import blake2b
from operator import index
from typing import Any

import numpy as np

from readers.arguments import as_integer
from readers.order.custom import CustomEpoch, CustomOrder
from readers.order.order import Order, RankShare, SampledRows
from readers.order.shuffle_choice import OrderFingerprint, ShuffleChoice, StoredData, announce
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


@dataclass(frozen=True)
class _Position:
    """The position in the epochs. It is replaced as a whole, so a state saved by a signal handler is never half changed.

    Attributes
    ----------
    iteration : Iteration
        The newest iteration, or the next one.
    undecided : bool
        Whether the shuffle of `order` is still to be chosen.
    reason : str
        Reason for the order.
    begun : bool
        Whether the iteration was begun.
    chosen : bool
        Whether its epoch was chosen by `EpochProgress.set_epoch`.
    used : bool
        Whether samples of its epoch were taken, by any of the iterations over it.
    """

    order: Order | CustomOrder
    iteration: Iteration
    undecided: bool
    reason: str
    begun: bool = False
    chosen: bool = False
    used: bool = False


class EpochProgress:
    """The current or next epoch, and how many of its samples all ranks together have consumed.

    Every `begin` after the first takes the next epoch, unless `set_epoch` or `load_state_dict` was called in between.

    Parameters
    ----------
    order : Order or CustomOrder
        An order of batches counts batches instead of samples.
    auto : bool
        Whether the shuffle of `order` is still to be chosen, by `decide` or by a loaded state.
    """

    def __init__(self, order: Order | CustomOrder, cut: RankShare, auto: bool = False) -> None:
        self.cut = cut
        self._auto = auto and order.takes_shuffle
        self._now = _Position(order, Iteration(0, 0), self._auto, "as asked for")

    def __str__(self) -> str:
        return f"order {self.shuffle!r}, seed {self.order.seed}"

    def __copy__(self) -> "EpochProgress":
        """Return a copy at the same position, whose iteration is independent from then on."""
        other = EpochProgress.__new__(EpochProgress)
        vars(other).update(vars(self), _now=replace(self._now, iteration=copy(self._now.iteration)))
        return other

    @property
    def order(self) -> Order | CustomOrder:
        """The order of every epoch."""
        return self._now.order

    @property
    def undecided(self) -> bool:
        """True if the shuffle is still to be chosen."""
        return self._now.undecided

    @property
    def reason(self) -> str:
        """Reason for the order."""
        return self._now.reason

    def decide(self, choice: ShuffleChoice) -> None:
        """Use a chosen order."""
        order = self.order
        if isinstance(order, Order):
            window = order.window if choice.window is None else min(order.window, choice.window)
            order = order.with_shuffle(choice.shuffle, order.seed, window)
        self._now = replace(self._now, order=self._with_lanes(order), undecided=False, reason=choice.reason)

    def _with_lanes(self, order: Order | CustomOrder) -> Order | CustomOrder:
        """Return an order with as many lanes as there are ranks now, unless it has none, or a number already."""
        if isinstance(order, Order) and order.has_lanes and order.lanes is None:
            return replace(order, lanes=self.cut.world_size)
        return order

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
        now, last = self._now, self._now.iteration
        if now.begun:
            onward = now.used or not unused_again
        else:
            onward = last.consumed > 0 and not now.chosen and self.length(last.consumed) < least
        iteration = Iteration(last.epoch + 1, 0) if onward else Iteration(last.epoch, last.consumed)
        order = now.order if now.undecided else self._with_lanes(now.order)
        self._now = replace(now, order=order, iteration=iteration, begun=True, chosen=False, used=False)
        return iteration

    def use(self, iteration: Iteration) -> None:
        """Record that samples are taken from an iteration, even if a newer iteration exists."""
        if iteration.epoch == self.epoch:
            self._now = replace(self._now, used=True)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of `epoch`. Setting the epoch that was just restored keeps its progress."""
        epoch, now = check_epoch(epoch), self._now
        kept = not now.begun and epoch == now.iteration.epoch
        iteration = Iteration(epoch, now.iteration.consumed if kept else 0)
        self._now = replace(now, iteration=iteration, begun=False, chosen=True)

    def move_on_to(self, epoch: int) -> None:
        """Make the next iteration that of `epoch`, unless a later one is due."""
        if check_epoch(epoch) > self.epoch:
            self.set_epoch(epoch)

    def mark(self, origins: Callable[[SampledRows], SampledRows], stored: Sequence[StoredData]) -> OrderFingerprint:
        """Return the state that must be equal on all ranks when they start or continue the current epoch.

        Parameters
        ----------
        origins : callable
            `readers.dataset.base.SampleDataset.origins`: ranks may hold different parts of a dataset.
        stored : sequence of StoredData
            Packed datasets that hold the rows.
        """
        epoch, consumed = self.epoch, self._now.iteration.consumed
        sequence = self.order.epoch(epoch)
        coming = sequence.at(consumed + np.arange(min(_COMPARED, len(sequence)), dtype=np.int64))
        content = blake2b(origins(coming).rows.astype("<i8").tobytes(), digest_size=8)
        content.update(str(self.shuffle).encode())  # a rank with a loaded state does not take part in the choice
        if isinstance(sequence, CustomEpoch):
            content.update(sequence.digest().encode())
        return OrderFingerprint(f"epoch {epoch} after {consumed} of {self.total}", content.hexdigest(), stored)

    @property
    def epoch(self) -> int:
        """The current or next epoch."""
        return self._now.iteration.epoch

    @property
    def total(self) -> int:
        """Samples of the current epoch, over all ranks."""
        return self.order.length(self.epoch)

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

    def state_dict(self, consumed: int | None = None, epoch: int | None = None) -> dict[str, Any]:
        """Return the state after `consumed` samples of an epoch, by default the current one (`Resumable.state_dict`).

        A few more than the order's length are allowed, since samples are repeated to make the ranks' lengths equal.
        """
        now, iteration = self._now, self._now.iteration
        epoch = iteration.epoch if epoch is None else epoch
        total = now.order.length(epoch)
        if consumed is None:
            consumed = total if iteration.ended else iteration.consumed + iteration.taken * self.cut.world_size
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
            **_order_state(now.order, now.undecided, epoch),
            "epoch": epoch,
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
            missing = [name for name in expected if name not in state]
            if missing and {"epoch", "consumed"} <= set(state):
                raise UsageError(
                    option="state",
                    expected="a state of this version",
                    found=f"one of an earlier version, without {', '.join(missing)}",
                    hint="continue with the version that saved it, or load only the model and start at the next epoch "
                    "with set_epoch()",
                )
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
        self._now = _Position(order, Iteration(epoch, consumed), undecided, reason)


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
