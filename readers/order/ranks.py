"""Communication between the ranks of torch.distributed. All ranks must take part at the same point."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from readers.order.store import Store
from shardspec.errors import DatasetError
from shardspec.wording import list_some, program

_SHOWN_DIGITS = 12
_REPORTED_AFTER_S = 10.0
_LONGEST_PAUSE_S = 0.1

_log = logging.getLogger("readers")


def ranks_together() -> int:
    """Return the number of ranks of torch.distributed; 1 if it is not initialised."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return 1


def own_rank() -> int:
    """Return this process's rank in torch.distributed; 0 if it is not initialised."""
    return torch.distributed.get_rank() if ranks_together() > 1 else 0


def from_rank_0(value: Any, timeout_s: float, device: torch.device | None = None) -> Any:
    """Return rank 0's value on every rank; other ranks' values are ignored.

    Parameters
    ----------
    timeout_s : float
        Time limit in seconds for the wait until all ranks call this (`await_ranks`).
    device : torch.device, optional
        This rank's device, through which NCCL sends; by default torch's current device.
    """
    store = torch.distributed.distributed_c10d._get_default_store()
    if store is not None:  # MPI has none
        await_ranks(store.add, torch.distributed.get_rank(), ranks_together(), timeout_s)
    sent = [value]
    own_device = device if device is not None and device.type == "cuda" else None
    torch.distributed.broadcast_object_list(sent, src=0, device=own_device)
    return sent[0]


def await_ranks(
    add: Callable[[str, int], int],
    rank: int,
    ranks: int,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until every rank has called this as often as this rank. A collective would hang if a rank never joined it.

    Parameters
    ----------
    add : callable
        Adds a number to a counter that all ranks share, by name, and returns its value.
    rank, ranks : int
        This rank, and the number of ranks.
    timeout_s : float
        Time limit in seconds; then a DatasetError names the missing ranks.
    """
    call = add(f"readers/calls/{rank}", 1)
    arrived = f"readers/arrived/{call}"
    add(arrived, 1)
    begin, pause, reported = clock(), 0.001, False
    while add(arrived, 0) < ranks:
        waited = clock() - begin
        if waited >= timeout_s or (waited >= _REPORTED_AFTER_S and not reported):
            missing = [f"rank {other}" for other in range(ranks) if add(f"readers/calls/{other}", 0) < call]
            message = (
                f"Rank {rank} has waited {waited:.0f} s for {list_some(missing)} to begin an epoch of a shuffled "
                "Loader, for which all ranks compare what they are about to read. Iterate over the Loader on every "
                "rank. For a Loader that only one rank reads, give rank=0, world_size=1"
            )
            if waited >= timeout_s:
                add(arrived, -1)
                add(f"readers/calls/{rank}", -1)
                raise DatasetError(f"{message}. If the other ranks need longer, increase timeout_s ({timeout_s:g} s).")
            _log.warning("%s.", message)
            reported = True
        sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


@dataclass(frozen=True)
class Mark:
    """State that ranks compare to make sure that they are about to read the same sequence.

    Attributes
    ----------
    place : str
        Position and epoch.
    digest : str
        Digest of the next rows, over all ranks.
    stores : sequence of Store
        Stores of the rows. Each rank may have separate copies.
    """

    place: str
    digest: str
    stores: Sequence[Store]

    def check(self, theirs: "Mark") -> None:
        """Raise a DatasetError if rank 0 reads another sequence, so that samples would be lost, or other datasets."""
        for mine, its in zip(self.stores, theirs.stores, strict=False):
            if mine.digest != its.digest:
                raise DatasetError(
                    place="order",
                    expected="all ranks to read the same dataset",
                    found=f"{_describe(mine)}, and {_describe(its)} on rank 0",
                    hint=(
                        f"copy one of them to every node ({program()} inspect shows the digest), or give rank=0, "
                        "world_size=1 if each rank is to read a separate dataset"
                    ),
                )
        if (theirs.place, theirs.digest, len(theirs.stores)) != (self.place, self.digest, len(self.stores)):
            found = f"{self.place}, and {theirs.place}" if theirs.place != self.place else f"other rows in {self.place}"
            raise DatasetError(
                place="order",
                expected="all ranks to begin the same loader and to share one sequence",
                found=f"{found} on rank 0",
                hint=(
                    "give every rank the same dataset, seed, weights, order and state, iterate over loaders "
                    "in the same order on every rank, and give rank=0, world_size=1 if each is to read "
                    "separate samples"
                ),
            )


def check_ranks(mark: Mark, timeout_s: float, device: torch.device | None = None) -> None:
    """Check that all ranks have the same mark; all of them must call this at the same point (`from_rank_0`)."""
    theirs, _ = from_rank_0((mark, None), timeout_s, device)  # of the form that `readers.order.auto.agree` sends
    mark.check(theirs)


def _describe(store: Store) -> str:
    return f"{store.root} with the digest {store.digest[:_SHOWN_DIGITS]}"
