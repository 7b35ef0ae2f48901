"""The order ``"auto"``: chosen by whether the data stay in memory, and the same on all ranks."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from readers.formats.machine import file_system_of, is_network_file_system, usable_memory
from readers.order.order import Shuffle
from readers.order.ranks import Mark, from_rank_0
from readers.order.store import Store
from shardspec.errors import DatasetError

MEMORY_SHARE = 0.75
"""Share of this process's memory limit that the page cache is expected to keep for a dataset during training."""

AnyShuffle = Shuffle | Literal["auto"]

_log = logging.getLogger("readers")


@dataclass(frozen=True)
class ShuffleChoice:
    """An order, and the reason for it."""

    shuffle: Shuffle
    reason: str


def choose_shuffle(stores: Sequence[Store], has_blocks: bool) -> ShuffleChoice:
    """Choose ``"full"`` if the data stay in memory on a local file system, or have no blocks; else ``"blocks"``."""
    if not has_blocks:
        return ShuffleChoice("full", "the dataset has no blocks")
    residence = find_residence(stores)
    return ShuffleChoice("full" if residence.in_memory else "blocks", f"chosen for the dataset, since {residence}")


def choose_apart() -> ShuffleChoice:
    """Choose for ranks that cannot communicate, and whose memory and mounts may differ."""
    return ShuffleChoice(
        "full",
        "the same on all ranks, which cannot communicate because rank and world_size were given: "
        "set shuffle='blocks' for data larger than memory",
    )


def agree(has_blocks: bool, mark: Mark, timeout_s: float, device: torch.device | None = None) -> ShuffleChoice:
    """Return rank 0's choice on all ranks of torch.distributed, which must all call this at the same point.

    A DatasetError is raised if rank 0 could not choose, or is about to read another sequence.

    Parameters
    ----------
    mark : Mark
        State of the sequence that the ranks are about to read, whatever its shuffle will be.
    timeout_s, device
        As for `from_rank_0`.
    """
    mine: tuple[Mark, ShuffleChoice] | None = None
    failure: Exception | None = None
    if torch.distributed.get_rank() == 0:
        try:
            mine = (mark, choose_shuffle(mark.stores, has_blocks))
        except Exception as error:  # the other ranks are waiting for an answer
            failure = error
    sent: tuple[Mark, ShuffleChoice] | None = from_rank_0(mine, timeout_s, device)
    if failure is not None:
        raise failure
    if sent is None:
        raise DatasetError(
            place="shuffle", expected="rank 0 to choose the order, but it failed", hint="see its error message"
        )
    theirs, choice = sent
    mark.check(theirs)
    return choice


def announce(choice: ShuffleChoice) -> None:
    """Log a choice, once per loader. ``"blocks"``, which mixes less, is logged as a warning."""
    level = logging.WARNING if choice.shuffle == "blocks" else logging.INFO
    _log.log(level, "shuffle='auto' is %r: %s", choice.shuffle, choice.reason)


@dataclass(frozen=True)
class Residence:
    """Estimate of whether stores stay in the page cache.

    Attributes
    ----------
    bytes : int
        Bytes of all stores.
    memory : int or None
        Bytes that the page cache may keep (`MEMORY_SHARE`); None if unknown.
    network : tuple of str
        ``"nfs4 at /data"`` for every network file system that holds a store.
    """

    bytes: int
    memory: int | None
    network: tuple[str, ...]

    @property
    def in_memory(self) -> bool:
        """True if all stores are on local file systems and expected to stay in memory."""
        return not self.network and (self.memory is None or self.bytes <= self.memory)

    def __str__(self) -> str:
        if self.network:
            return f"it is on a network file system ({', '.join(self.network)})"
        if self.memory is None:
            return f"it is on a local file system, and the amount of memory is not known ({_giga(self.bytes)} of data)"
        verb = "fit into" if self.in_memory else "are more than"
        return (
            f"its {_giga(self.bytes)} {verb} the {_giga(self.memory)} of memory that may hold them, "
            f"{MEMORY_SHARE:.0%} of what this process may use"
        )


def find_residence(stores: Sequence[Store]) -> Residence:
    """Examine the stores' file systems and this process's memory."""
    network = []
    for root in dict.fromkeys(store.root for store in stores):
        place, kind = file_system_of(root)
        if is_network_file_system(kind):
            network.append(f"{kind} at {place}")
    memory = usable_memory()
    kept = None if memory is None else int(memory * MEMORY_SHARE)
    return Residence(sum(store.bytes for store in stores), kept, tuple(dict.fromkeys(network)))


def _giga(number: int) -> str:
    return f"{number / 1e9:.1f} GB"
