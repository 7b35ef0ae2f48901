"""What the sampler and the Loader have in common: an order, its epochs, and a state to go on from."""

from typing import Any

from readers.order.auto import Choice, announce
from readers.order.progress import Progress


class Resumable:
    """Something that iterates over the epochs of an order.

    Attributes
    ----------
    _progress : Progress
    """

    _progress: Progress

    @property
    def order(self) -> str | bool:
        """``"full"``, ``"blocks"``, False or ``"weighted"``; ``"auto"`` until it is decided."""
        return self._progress.shuffle

    @property
    def order_reason(self) -> str:
        """Why that order."""
        return self._progress.reason

    def decide_order(self, choice: Choice) -> None:
        """Take an order that all ranks have agreed on, before the first epoch. Draws with replacement stay as they are."""
        if self._progress.order.weights is None:
            self._progress.decide(choice)
            if self._progress.cut.rank == 0:
                announce(choice)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of `epoch`."""
        self._progress.set_epoch(epoch)

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """The state from which `load_state_dict` goes on, at any number of ranks and workers and any batch size.

        Parameters
        ----------
        consumed : int, optional
            Samples of this epoch that the training loops of all ranks together have consumed; by default what was handed out
            here, times the ranks. That is right for a `Loader`, and for a sampler in a StatefulDataLoader, which keeps the state
            of every batch. The workers of torch's DataLoader run ahead of the loop, so only the loop knows: steps × batch
            size × ranks, the last batch by what it holds.

        Raises
        ------
        UsageError
            The epoch has not so many.
        """
        return self._progress.state_dict(consumed)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state: the next iteration gives the rest of its epoch.

        Raises
        ------
        UsageError
            The state is of another order.
        """
        self._progress.load_state_dict(state)
