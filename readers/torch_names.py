"""Arguments of torch's DataLoader, for those who give them to a `Loader` or a `PackedDataModule`."""

from collections.abc import Iterable

from shardspec.errors import UsageError
from shardspec.suggest import did_you_mean

_ORDER = "the order is chosen by shuffle=, seed= and weights=; for one of your own use torch's DataLoader with collate_fn=dataset.collate"
_NO_PROCESSES = "leave it out, since batches are made by threads, and no process is started"

_INSTEAD = {
    "batch_sampler": _ORDER,
    "collate_fn": "batches are collated as they are read: change samples by sample_transform=, whole batches by batch_transform=",
    "generator": "the order is a function of seed= and the epoch",
    "in_order": "leave it out, since batches always come in order",
    "multiprocessing_context": _NO_PROCESSES,
    "num_workers": "use workers=, the number of threads",
    "persistent_workers": _NO_PROCESSES,
    "pin_memory_device": "use device=",
    "prefetch_factor": "use prefetch=, the batches ahead of the training loop, of all threads together",
    "sampler": _ORDER,
    "timeout": "use timeout_s=",
    "worker_init_fn": _NO_PROCESSES,
}


def refuse_unknown(names: Iterable[str], known: Iterable[str], user: str = "Loader") -> None:
    """Refuse arguments that the Loader, or another `user` of these names, does not have.

    Raises
    ------
    UsageError
        There is one; the message says what takes its place.
    """
    for name in names:
        instead = _INSTEAD.get(name)
        if instead is not None:
            raise UsageError(f"{name}: expected an argument of {user}, found one of torch's DataLoader: {instead}")
        raise UsageError(f"{name}: expected an argument of {user}, found none of that name{did_you_mean(name, known)}")
