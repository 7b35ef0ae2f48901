"""How far an order has been consumed: what the sampler and the Loader both save, restore and count."""

from operator import index
from typing import Any

from readers.choice import Choice
from readers.order import Cut, Order
from readers.seeding import check_epoch
from shardspec.errors import UsageError


class Progress:
    """The epoch that runs or comes next, and how many of its samples all ranks together have consumed.

    Every `begin` after the first takes the next epoch, unless `set_epoch` or `load_state_dict` came between.

    Parameters
    ----------
    order : Order
    cut : Cut
    auto : bool
        Whether the shuffle of `order` is still to be chosen, by `decide` or by the state that is loaded.

    Attributes
    ----------
    undecided : bool
    reason : str
        Why the order is what it is.
    """

    def __init__(self, order: Order, cut: Cut, auto: bool = False) -> None:
        self.order = order
        self.cut = cut
        self.undecided = self._auto = auto and order.weights is None
        self.reason = "as asked for"
        self.epoch = 0
        self.consumed = 0
        self._begun = False
        self._chosen = False  # by set_epoch

    def decide(self, choice: Choice) -> None:
        """Take the order that was chosen."""
        self.order = self.order.with_shuffle(choice.shuffle, self.order.seed)
        self.undecided, self.reason = False, choice.reason

    @property
    def shuffle(self) -> str | bool:
        """The order's name; ``"auto"`` until it is decided."""
        name = _order_state(self.order, self.undecided)["shuffle"]
        return name if isinstance(name, bool) else str(name)

    def begin(self) -> tuple[int, int]:
        """Start an iteration: its epoch, and how much of it was consumed before."""
        if self._begun or (self.consumed >= len(self.order) and not self._chosen):
            if self._begun or self.consumed:
                self.epoch += 1
            self.consumed = 0
        self._begun, self._chosen = True, False
        return self.epoch, self.consumed

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of `epoch`. Setting the epoch that was just restored keeps its progress."""
        if self._begun or epoch != self.epoch:
            self.consumed = 0
        self.epoch = check_epoch(epoch)
        self._begun, self._chosen = False, True

    def length(self) -> int:
        """Samples that this rank takes of a whole epoch."""
        return self.cut.length(len(self.order))

    def state_dict(self, consumed: int) -> dict[str, Any]:
        """The state after all ranks together have consumed so many samples of the present epoch.

        Raises
        ------
        UsageError
            There are not so many; a few more than the order has may be repeated ones, that make the ranks' lengths equal.
        """
        total = len(self.order)
        if not 0 <= index(consumed) < total + self.cut.world_size:
            raise UsageError(
                f"consumed: expected 0 to {total} samples of this epoch, found {consumed}: count from the epoch's beginning, "
                "over all ranks, and of a smaller last batch what it holds"
            )
        return {
            **_order_state(self.order, self.undecided),
            "epoch": self.epoch,
            "consumed": min(index(consumed), total),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore: the next iteration goes on where the saved one was, at any number of ranks.

        Where the order was left to be chosen, it is from now on the one that was saved, whatever this machine would choose.

        Raises
        ------
        UsageError
            The state is of another order (the message shows both), or says that more was consumed than there is.
        """
        order, undecided, reason = self.order, self.undecided, self.reason
        if self._auto and state.get("shuffle") in ("full", "blocks"):
            order, undecided = order.with_shuffle(state["shuffle"], order.seed), False
            reason = "as in the state that was loaded"
        elif self._auto and state.get("shuffle") == "auto":
            undecided = True
        expected = _order_state(order, undecided)
        found = {name: state.get(name) for name in expected}
        if found != expected:
            differing = [name for name in expected if found[name] != expected[name]]
            raise UsageError(
                f"state: expected one of this order, found another; they differ in {', '.join(differing)}: "
                f"here {expected}, in the state {found}: make the dataset and the loader as they were when it was saved"
            )
        epoch, consumed = check_epoch(state["epoch"]), index(state["consumed"])
        if not 0 <= consumed <= len(self.order):
            raise UsageError(f"state: expected 0 to {len(self.order)} samples consumed, found {consumed}")
        self.order, self.undecided, self.reason = order, undecided, reason
        self.epoch, self.consumed = epoch, consumed
        self._begun = self._chosen = False


def _order_state(order: Order, undecided: bool) -> dict[str, int | str | bool | None]:
    """What a resume compares; an order that is not decided has no name yet."""
    return order.state() | ({"shuffle": "auto", "window": None} if undecided else {})
