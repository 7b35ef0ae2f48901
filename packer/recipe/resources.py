"""What ``auto`` stands for: as many workers as the cores and the memory that this process may really use allow."""

from packer.recipe.recipe import WORKER_BYTES
from readers.formats.machine import available_memory, available_processors
from shardspec.errors import UsageError


def count_workers(requested: str | int, preset: str, units: int) -> int:
    """The number of worker processes: as requested, or for ``"auto"`` what cores and memory allow.

    ``"auto"`` gives no more workers than there are units of work.

    Parameters
    ----------
    preset : str
        A recipe's preset, or ``"rows"`` for work over packed datasets.

    Raises
    ------
    UsageError
        If `requested` is neither ``"auto"`` nor a number of 1 or more.
    """
    if str(requested) != "auto":
        if not str(requested).isdecimal() or int(requested) < 1:
            raise UsageError(f"workers: expected 'auto' or a number of 1 or more, found {requested!r}")
        return int(requested)
    memory, cores = available_memory(), available_processors()
    per_worker = WORKER_BYTES[preset]
    fitting = cores if memory is None else min(cores, memory // per_worker)
    return max(1, min(fitting, units))


def has_core_to_spare(workers: int) -> bool:
    """Whether there are two cores for each of this many workers."""
    return available_processors() >= 2 * workers
