"""What the ranks of torch.distributed ask each other. All of them must ask at the same point."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from readers.order.store import Store
from shardspec.errors import DatasetError
from shardspec.wording import program

_SHOWN_DIGITS = 12


def ranks_together() -> int:
    """Number of ranks of torch.distributed; 1 if it is not initialised."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return 1


def from_rank_0(value: Any, device: torch.device | None = None) -> Any:
    """The value that rank 0 gives, on every rank.

    Parameters
    ----------
    device : torch.device, optional
        The rank's own device, through which NCCL sends; by default torch's current one.
    """
    sent = [value]
    own_device = device if device is not None and device.type == "cuda" else None
    torch.distributed.broadcast_object_list(sent, src=0, device=own_device)
    return sent[0]


@dataclass(frozen=True)
class Mark:
    """By what ranks see whether they are about to read the same sequence.

    Attributes
    ----------
    place : str
        Where in which epoch.
    digest : str
        Of rows that come next, over all ranks.
    stores : sequence of Store
        Where the rows are. Each rank may have copies of its own.
    """

    place: str
    digest: str
    stores: Sequence[Store]

    def check(self, theirs: "Mark") -> None:
        """Check that rank 0 reads the same sequence. Each rank takes its share of it, so samples would be lost.

        Raises
        ------
        DatasetError
            If it reads another, or one with the same rows out of other datasets.
        """
        for mine, its in zip(self.stores, theirs.stores, strict=False):
            if mine.digest != its.digest:
                raise DatasetError(
                    f"order: expected all ranks to read the same dataset, found {_describe(mine)}, and "
                    f"{_describe(its)} on rank 0: copy one of them to every node ({program()} inspect shows the digest), or "
                    "give rank=0, world_size=1 where each rank is to read samples of its own"
                )
        if (theirs.place, theirs.digest, len(theirs.stores)) != (self.place, self.digest, len(self.stores)):
            found = f"{self.place}, and {theirs.place}" if theirs.place != self.place else f"other rows in {self.place}"
            raise DatasetError(
                "order: expected all ranks to begin the same loader, and to read one sequence, of which each takes its "
                f"share, found {found} on rank 0: give every rank the same dataset, seed, weights, order and state, "
                "iterate over loaders in the same order on every rank, and give rank=0, world_size=1 where each is to "
                "read samples of its own"
            )


def check_ranks(mark: Mark, device: torch.device | None = None) -> None:
    """Check that all ranks have the same mark; all of them must call this at the same point.

    Raises
    ------
    DatasetError
        If rank 0 has another.
    """
    theirs, _ = from_rank_0((mark, None), device)  # as what `readers.order.auto.agree` sends
    mark.check(theirs)


def _describe(store: Store) -> str:
    return f"{store.root} with the digest {store.digest[:_SHOWN_DIGITS]}"
