"""Choose the order for ``shuffle="auto"``, and check that all ranks of a training read the same sequence.

All ranks of torch.distributed must take part in an agreement at the same point.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from readers.formats.machine import file_system_of, is_network_file_system, usable_memory
from readers.order.custom import CustomOrder
from readers.order.order import WINDOW_BLOCKS, Order, Shuffle
from shardspec.errors import DatasetError, UsageError
from shardspec.wording import counted, list_some, program

MEMORY_SHARE = 0.75
"""Share of this process's memory limit that the page cache is expected to keep for a dataset during training."""

AnyShuffle = Shuffle | Literal["auto"]
_SHOWN_DIGITS = 12
_REPORTED_AFTER_S = 10.0
_LONGEST_PAUSE_S = 0.1

_log = logging.getLogger("readers")


@dataclass(frozen=True)
class StoredData:
    """A packed dataset, or the part of it that is read.

    Attributes
    ----------
    bytes : int
        Bytes that an epoch reads if it reads all fields.
    digest : str
        Identity of the whole dataset (`shardspec.manifest.Manifest.digest`).
    url : str or None
        Place of a remote dataset, whose files are in a cache at `root` when they are used.
    shard_bytes : int
        Bytes of the largest shard of a remote dataset.
    fetched_bytes : int
        Bytes of all shards of a remote dataset of which an epoch reads anything.
    cache : Path or None
        Folder of its cache.
    cache_bytes : int
        Bytes that all datasets in this cache together may take.
    """

    root: Path
    bytes: int
    digest: str
    url: str | None = None
    shard_bytes: int = 0
    fetched_bytes: int = 0
    cache: Path | None = None
    cache_bytes: int = 0

    @property
    def largest_window(self) -> int:
        """Blocks that each rank of this machine can mix without downloading any shard twice.

        The shards of one window are in use until its last batch has been read, and the next batch needs all of the
        following window.
        """
        return self.cache_bytes // (2 * ranks_here() * max(1, self.shard_bytes))

    @property
    def holds_all(self) -> bool:
        """True if the cache holds every shard that an epoch reads, so that any window fits."""
        return self.cache_bytes >= self.fetched_bytes

    def bytes_to_mix(self, window: int) -> int:
        """Return the smallest cache size with this `largest_window`."""
        return 2 * window * ranks_here() * self.shard_bytes


@dataclass(frozen=True)
class ShuffleChoice:
    """An order, and the reason for it.

    Attributes
    ----------
    window : int or None
        Largest number of blocks to mix, for which the cache of a remote dataset has room. None if any number fits.
    """

    shuffle: Shuffle
    reason: str
    window: int | None = None


def choose_shuffle(stored: Sequence[StoredData], has_blocks: bool) -> ShuffleChoice:
    """Choose ``"full"`` if the data stay in memory on a local file system, or have no blocks; else ``"blocks"``."""
    if not has_blocks:
        return ShuffleChoice("full", "the dataset has no blocks")
    if _is_remote(stored):
        windows = [max(1, data.largest_window) for data in stored if not data.holds_all]
        window = min(windows, default=None)
        cached = ""
        if window is not None and window < WINDOW_BLOCKS:
            cached = f", and its cache holds {2 * window} shards for each rank"
        return ShuffleChoice("blocks", f"the dataset is in a store{cached}", window)
    residence = find_residence(stored)
    return ShuffleChoice("full" if residence.in_memory else "blocks", f"chosen for the dataset, since {residence}")


def choose_apart(stored: Sequence[StoredData], has_blocks: bool) -> ShuffleChoice:
    """Choose for ranks that cannot communicate, and whose memory, mounts and caches may differ."""
    if has_blocks and _is_remote(stored):
        return ShuffleChoice("blocks", "the dataset is in a store")
    return ShuffleChoice(
        "full",
        "the same on all ranks, which cannot communicate because rank and world_size were given: "
        "set shuffle='blocks' for data larger than memory",
    )


def _is_remote(stored: Sequence[StoredData]) -> bool:
    return bool(stored) and all(data.url is not None for data in stored)


def ranks_here() -> int:
    """Return the number of ranks on this machine, which share a cache, as torchrun and Lightning tell it; else 1."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(told)) if told.isdecimal() else 1


def check_cache(stored: Sequence[StoredData], window: int) -> None:
    """Raise `UsageError` if a cache does not hold what the ranks of this machine mix in the order ``"blocks"``."""
    for data in stored:
        if not data.holds_all and data.largest_window < window:
            most, needed = data.largest_window, data.bytes_to_mix(window)
            raise UsageError(
                option="window" if most else "cache_size",
                expected=f"at most {most} for a cache of {_giga(data.cache_bytes)}, because each of "
                f"{counted(ranks_here(), 'rank')} needs two windows of shards of up to {_giga(data.shard_bytes)}"
                if most
                else f"{_giga(needed)} or more for window={window} and {counted(ranks_here(), 'rank')}",
                found=window if most else _giga(data.cache_bytes),
                hint=f"give window={most}, or a cache_size of {needed} bytes or more"
                if most
                else f"give {needed} bytes or more, or a smaller window",
            )


def warn_of_small_cache(stored: Sequence[StoredData], order: Order | CustomOrder, under_way: int = 0) -> None:
    """Log a warning if the cache of remote datasets is so small that an epoch downloads shards more than once.

    Parameters
    ----------
    under_way : int
        Samples that this rank reads at the same time.
    """
    remote = [data for data in stored if data.url is not None]
    if isinstance(order, Order) and order.has_lanes and order.blocks is not None:
        for data in remote:
            _warn_of_small_windows(data, order, under_way * len(order.blocks) / max(1, order.blocks.rows))
    elif order.name is not False:
        mixable = isinstance(order, Order) and order.takes_shuffle and order.blocks is not None
        for cache in dict.fromkeys(data.cache for data in remote):
            together = [data for data in remote if data.cache == cache]
            _warn_of_full_cache(together, str(order.name), mixable)


def _warn_of_small_windows(data: StoredData, order: Order, shards_under_way: float) -> None:
    """Warn if the cache does not hold the shards of a window, and of the windows that are begun before its last batch."""
    begun = max(1, math.ceil(shards_under_way / order.window))
    needed = data.bytes_to_mix(order.window) // 2 * (1 + begun)
    needed = min(needed, data.fetched_bytes)
    if needed <= data.cache_bytes:
        return
    advice = (
        "smaller batches or fewer workers" if begun > 1 else f"window={max(1, data.largest_window)} in a new training"
    )
    _log.warning(
        "The order 'blocks' mixes %d shards of %s at a time, for which the cache is too small: it downloads shards more "
        "than once an epoch. Use a cache_size of %d bytes or more (now %d), or %s.",
        order.window,
        data.url,
        needed,
        data.cache_bytes,
        advice,
    )


def _warn_of_full_cache(stored: Sequence[StoredData], shuffle: str, mixable: bool) -> None:
    """Warn if an order reads all shards all the time, and their cache does not hold them."""
    needed, data = sum(data.fetched_bytes for data in stored), stored[0]
    if needed <= data.cache_bytes:
        return
    effect, advice, window = "each shard is downloaded many times", "", min(WINDOW_BLOCKS, data.largest_window)
    if mixable and window:
        effect, advice = "shards are downloaded again and again", f"shuffle='blocks' with window={window}, or "
    _log.warning(
        "The order %r reads all shards of %s all the time, and the cache holds %s of %s, so %s. Use %sa cache_size of %d "
        "bytes or more.",
        shuffle,
        list_some([str(data.url) for data in stored]),
        _giga(data.cache_bytes),
        _giga(needed),
        effect,
        advice,
        needed,
    )


def announce(choice: ShuffleChoice) -> None:
    """Log a choice, once per loader. ``"blocks"``, which mixes less, is logged as a warning."""
    level = logging.WARNING if choice.shuffle == "blocks" else logging.INFO
    _log.log(level, "shuffle='auto' is %r: %s", choice.shuffle, choice.reason)


@dataclass(frozen=True)
class CacheEstimate:
    """Estimate of whether stored data stay in the page cache.

    Attributes
    ----------
    bytes : int
        Bytes of all stored data.
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
        """True if all data are on local file systems and expected to stay in memory."""
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


def find_residence(stored: Sequence[StoredData]) -> CacheEstimate:
    """Examine the file systems of stored data and this process's memory."""
    network = []
    for root in dict.fromkeys(data.root for data in stored):
        place, kind = file_system_of(root)
        if is_network_file_system(kind):
            network.append(f"{kind} at {place}")
    memory = usable_memory()
    kept = None if memory is None else int(memory * MEMORY_SHARE)
    return CacheEstimate(sum(data.bytes for data in stored), kept, tuple(dict.fromkeys(network)))


def _giga(number: int) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB"


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


def await_ranks(add: Callable[[str, int], int], rank: int, ranks: int, timeout_s: float) -> None:
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
    begin, pause, reported = time.monotonic(), 0.001, False
    while add(arrived, 0) < ranks:
        waited = time.monotonic() - begin
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
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


@dataclass(frozen=True)
class OrderFingerprint:
    """State that ranks compare to make sure that they are about to read the same sequence.

    Attributes
    ----------
    place : str
        Position and epoch.
    digest : str
        Digest of the next rows, over all ranks.
    stored : sequence of StoredData
        Packed datasets that hold the rows. Each rank may have separate copies.
    """

    place: str
    digest: str
    stored: Sequence[StoredData]

    def check(self, theirs: "OrderFingerprint") -> None:
        """Raise a DatasetError if rank 0 reads another sequence, so that samples would be lost, or other datasets."""
        for mine, its in zip(self.stored, theirs.stored, strict=False):
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
        if (theirs.place, theirs.digest, len(theirs.stored)) != (self.place, self.digest, len(self.stored)):
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


def _describe(data: StoredData) -> str:
    return f"{data.root} with the digest {data.digest[:_SHOWN_DIGITS]}"


def check_ranks(mark: OrderFingerprint, timeout_s: float, device: torch.device | None = None) -> None:
    """Check that all ranks have the same mark; all of them must call this at the same point (`from_rank_0`)."""
    theirs, _ = from_rank_0((mark, None), timeout_s, device)  # `agree` of another rank sends this form
    mark.check(theirs)


def agree(
    has_blocks: bool, mark: OrderFingerprint, timeout_s: float, device: torch.device | None = None
) -> ShuffleChoice:
    """Return rank 0's choice on all ranks of torch.distributed, which must all call this at the same point.

    A DatasetError is raised if rank 0 could not choose, or is about to read another sequence.

    Parameters
    ----------
    mark : OrderFingerprint
        State of the sequence that the ranks are about to read, independent of the shuffle to be chosen.
    timeout_s, device
        As for `from_rank_0`.
    """
    mine: tuple[OrderFingerprint, ShuffleChoice] | None = None
    failure: Exception | None = None
    if torch.distributed.get_rank() == 0:
        try:
            mine = (mark, choose_shuffle(mark.stored, has_blocks))
        except Exception as error:  # the other ranks are waiting for an answer
            failure = error
    sent: tuple[OrderFingerprint, ShuffleChoice] | None = from_rank_0(mine, timeout_s, device)
    if failure is not None:
        raise failure
    if sent is None:
        raise DatasetError(
            place="shuffle", expected="rank 0 to choose the order, but it failed", hint="see its error message"
        )
    theirs, choice = sent
    mark.check(theirs)
    return choice
