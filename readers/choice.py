"""The order ``"auto"``: which one is taken, and how all ranks come to the same."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from readers.order import Shuffle
from readers.stores import Store, find_residence
from shardspec.errors import DatasetError

AnyShuffle = Shuffle | Literal["auto"]

_log = logging.getLogger("readers")


@dataclass(frozen=True)
class Choice:
    """An order, and why it is taken."""

    shuffle: Shuffle
    reason: str


def choose_shuffle(stores: Sequence[Store], has_blocks: bool) -> Choice:
    """``"full"`` where the data stay in memory and lie on a local file system, or have no blocks; else ``"blocks"``."""
    if not has_blocks:
        return Choice("full", "the dataset has no blocks")
    residence = find_residence(stores)
    return Choice("full" if residence.in_memory else "blocks", f"chosen for the dataset, since {residence}")


def choose_apart() -> Choice:
    """For ranks that cannot ask each other, and whose memory and mounts may differ."""
    return Choice(
        "full",
        "the same on all ranks, which were given by number and cannot agree: choose shuffle='blocks' for data larger than memory",
    )


def ranks_together() -> int:
    """Number of ranks of torch.distributed, 1 where it is not initialised."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return 1


def agree(stores: Sequence[Store], has_blocks: bool) -> Choice:
    """The choice of rank 0 of torch.distributed, on all of its ranks, which must all call this at the same point.

    Raises
    ------
    DatasetError
        Rank 0 could not choose.
    """
    if ranks_together() == 1:
        return choose_shuffle(stores, has_blocks)
    sent: list[Any] = [None]
    failure: Exception | None = None
    if torch.distributed.get_rank() == 0:
        try:
            sent[0] = choose_shuffle(stores, has_blocks)
        except Exception as error:  # the other ranks wait for an answer
            failure = error
    torch.distributed.broadcast_object_list(sent, src=0)
    if failure is not None:
        raise failure
    if not isinstance(sent[0], Choice):
        raise DatasetError(
            "shuffle: expected rank 0 to choose the order, found that it failed: its own message says why"
        )
    return sent[0]


def announce(choice: Choice) -> None:
    """Log it once per loader; blockwise order, which mixes less, as a warning."""
    level = logging.WARNING if choice.shuffle == "blocks" else logging.INFO
    _log.log(level, "shuffle='auto' is %r: %s", choice.shuffle, choice.reason)
