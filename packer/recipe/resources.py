"""The cores and memory that this process may really use, by affinity and cgroup."""

import os
from pathlib import Path

from packer.recipe.recipe import WORKER_BYTES
from shardspec.errors import UsageError

_CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Cores by affinity, or fewer where the cgroup's quota allows fewer; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _read_words(_CGROUP / "cpu.max")
    if len(quota) == 2 and quota[0] != "max":
        cores = min(cores, -(-int(quota[0]) // int(quota[1])))
    return max(1, cores)


def usable_memory() -> int | None:
    """Available bytes, or fewer where the cgroup allows fewer; None if neither is known."""
    found = [value for value in (_available_memory(), _cgroup_memory()) if value is not None]
    return min(found) if found else None


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
    memory = usable_memory()
    per_worker = WORKER_BYTES[preset]
    fitting = usable_cores() if memory is None else min(usable_cores(), memory // per_worker)
    return max(1, min(fitting, units))


def has_core_to_spare(workers: int) -> bool:
    """Whether there are two cores for each of this many workers."""
    return usable_cores() >= 2 * workers


def _available_memory() -> int | None:
    for line in _read_words(Path("/proc/meminfo"), "\n"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_memory() -> int | None:
    limit, used = _read_words(_CGROUP / "memory.max"), _read_words(_CGROUP / "memory.current")
    if limit and used and limit[0] != "max":
        return max(0, int(limit[0]) - int(used[0]))
    return None


def _read_words(path: Path, separator: str | None = None) -> list[str]:
    try:
        return path.read_text().split(separator)
    except OSError:
        return []
