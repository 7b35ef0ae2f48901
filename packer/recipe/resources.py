"""Resolve ``auto``: as many workers as the cores and the memory allow that this process may really use.

These are those of its affinity and of its cgroups; inside a Slurm job, where nothing may enforce it, what was asked for.
"""

import os
from collections.abc import Mapping
from numbers import Integral

from readers.formats.machine import available_memory, available_processors
from shardspec.errors import UsageError
from shardspec.wording import shorten

WORKER_BYTES: Mapping[str, int] = {"faces": 1500 * 10**6, "images": 400 * 10**6, "rows": 300 * 10**6}
"""Memory allowed for one worker, generously, by preset, and for ``"rows"``, work over packed datasets.

Enough for 1080p frames and the detector, or for pictures of tens of megapixels.
"""

_DIGITS = 16

MOST_WORKERS = 100_000
"""A larger number of workers is a mistake."""


def check_workers(requested: str | int) -> None:
    """Check a number of workers.

    Raises
    ------
    UsageError
        If it is neither ``"auto"`` nor a number from 1 to `MOST_WORKERS`.
    """
    if isinstance(requested, str) and requested.isdecimal() and len(requested) < _DIGITS:
        requested = int(requested)
    is_number = isinstance(requested, Integral) and not isinstance(requested, bool)
    if requested != "auto" and not (is_number and 1 <= int(requested) <= MOST_WORKERS):
        raise UsageError(f"workers: expected 'auto' or a number from 1 to {MOST_WORKERS:,}, found {shorten(requested)}")


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
        If `requested` is invalid (`check_workers`).
    """
    check_workers(requested)
    if requested != "auto":
        return int(requested)
    memory, cores = free_memory(), usable_processors()
    per_worker = WORKER_BYTES[preset]
    fitting = cores if memory is None else min(cores, memory // per_worker)
    return max(1, min(fitting, units))


def has_core_to_spare(workers: int) -> bool:
    """Return whether there are two cores for each of this many workers."""
    return usable_processors() >= 2 * workers


def usable_processors() -> int:
    """Processors that this process may use, by the system and by Slurm."""
    return min(available_processors(), slurm_processors() or available_processors())


def free_memory() -> int | None:
    """Bytes of memory that this process may use, by the system and by Slurm; None if neither says."""
    found = [limit for limit in (available_memory(), slurm_memory()) if limit is not None]
    return min(found, default=None)


def slurm_processors() -> int | None:
    """The processors of a task, or else of the job on this node; None outside Slurm."""
    return _number_of("SLURM_CPUS_PER_TASK") or _number_of("SLURM_CPUS_ON_NODE")


def slurm_memory() -> int | None:
    """Bytes of memory that the job may use on this node; None outside Slurm, or without a limit."""
    node, processor = _number_of("SLURM_MEM_PER_NODE"), _number_of("SLURM_MEM_PER_CPU")
    if node is None and processor is not None:
        node = processor * (_number_of("SLURM_CPUS_ON_NODE") or slurm_processors() or 1)
    return None if node is None else node * 2**20


def _number_of(variable: str) -> int | None:
    """A number of 1 or more in the environment; None for anything else."""
    text = os.environ.get(variable, "")
    return int(text) or None if text.isascii() and text.isdecimal() and len(text) < _DIGITS else None
