"""How far an order has been consumed: what the sampler and the Loader both save, restore and count."""

from typing import Any

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
    """

    def __init__(self, order: Order, cut: Cut) -> None:
        self.order = order
        self.cut = cut
        self.epoch = 0
        self.consumed = 0
        self._begun = False
        self._chosen = False  # by set_epoch

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
        """The state after all ranks together have consumed so many samples of the present epoch."""
        if consumed < 0:
            raise UsageError(f"consumed: expected 0 samples or more, found {consumed}")
        return {**self.order.state(), "epoch": self.epoch, "consumed": min(consumed, len(self.order))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore: the next iteration goes on where the saved one was, at any number of ranks.

        Raises
        ------
        UsageError
            The state is of another order. The message shows both.
        """
        expected = self.order.state()
        found = {name: state.get(name) for name in expected}
        if found != expected:
            differing = [name for name in expected if found[name] != expected[name]]
            raise UsageError(
                f"state: expected one of this order, found another; they differ in {', '.join(differing)}: "
                f"here {expected}, in the state {found}: make the dataset and the loader as they were when it was saved"
            )
        self.epoch = check_epoch(state["epoch"])
        self.consumed = int(state["consumed"])
        self._begun = self._chosen = False
