"""Resources of the machine that this process may use: processors and memory; and the file system of a folder."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

NETWORK_FILE_SYSTEMS = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "fhgfs",
        "fuse",
        "gfs2",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "pvfs2",
        "smb3",
        "smbfs",
        "wekafs",
    ]
)
"""Types of file systems by their names in ``/proc/self/mounts``. Every type that begins with ``fuse.`` counts as one
too, whatever is behind it.
"""

_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


def available_processors() -> int:
    """Processors that this process may use: by affinity, or fewer if a cgroup's CPU quota allows fewer; at least 1."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([processors, *cgroup_processors()]))


def usable_memory() -> int | None:
    """Bytes of physical memory, or fewer if the limit of a cgroup allows fewer; None if neither is known."""
    found = list(_cgroup_memory())
    if hasattr(os, "sysconf") and {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} <= set(os.sysconf_names):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min((limit for limit in found if limit > 0), default=None)


def available_memory() -> int | None:
    """Bytes of memory that are free to take, or fewer if a cgroup's limit leaves fewer; None if neither is known.

    Files in a group's page cache that it has not used lately count as free.
    """
    found = [
        int(line.split()[1]) * 1024
        for line in _read(_PROC / "meminfo").splitlines()
        if line.startswith("MemAvailable:")
    ]
    for folder, version in _cgroups("memory"):
        limit, used = (
            _read(folder / name).strip()
            for name in (
                ("memory.limit_in_bytes", "memory.usage_in_bytes") if version == 1 else ("memory.max", "memory.current")
            )
        )
        if limit.isdecimal() and used.isdecimal():
            found.append(max(0, int(limit) - int(used) + _idle_cache(folder)))
    return min(found, default=None)


def file_system_of(folder: Path) -> tuple[str, str]:
    """Mount point and type of the file system that a folder lies on; ``("/", "")`` if the system does not say."""
    real, best = Path(os.path.realpath(folder)), ("/", "")
    for place, kind in _mounts():
        if real.is_relative_to(place) and len(place) >= len(best[0]):
            best = place, kind
    return best


def is_network_file_system(kind: str) -> bool:
    """Return whether a type of file system may be shared by several machines."""
    return kind in NETWORK_FILE_SYSTEMS or kind.startswith("fuse.")


def cgroup_processors() -> Iterator[int]:
    """The quotas of this process's CPU groups and of those above them, in processors, rounded up."""
    for folder, version in _cgroups("cpu"):
        if version == 1:
            words = [_read(folder / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
        else:
            words = _read(folder / "cpu.max").split()
        # Without a limit the quota is "max", or -1 in version 1.
        if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal() and int(words[1]):
            yield -(-int(words[0]) // int(words[1]))


def _cgroup_memory() -> Iterator[int]:
    """The limits of this process's memory groups and of those above them, in bytes."""
    for folder, version in _cgroups("memory"):
        text = _read(folder / ("memory.limit_in_bytes" if version == 1 else "memory.max")).strip()
        if text.isdecimal():
            yield int(text)


def _idle_cache(group: Path) -> int:
    """Bytes of files in a memory group's page cache that were not used lately."""
    words = [line.split() for line in _read(group / "memory.stat").splitlines()]
    found = {name: int(value) for name, value in (pair for pair in words if len(pair) == 2) if value.isdecimal()}
    return found.get("total_inactive_file", found.get("inactive_file", 0))


def _cgroups(controller: str) -> Iterator[tuple[Path, int]]:
    """Folder and version, 1 or 2, of each cgroup that a controller limits this process by, and of those above it."""
    for line in _read(_PROC / "self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root, version = (_CGROUP / controller, 1) if controllers else (_CGROUP, 2)
        # In a container the path may be the host's, while what is mounted begins at the container's own group.
        folder = root / group.lstrip("/")
        for above in (folder, *folder.parents):
            yield above, version
            if above == root:
                break


def _mounts() -> list[tuple[str, str]]:
    """Mount point and type of every mounted file system, in the order of mounting."""
    found = []
    for line in _read(_PROC / "self/mounts").splitlines():
        words = line.split(" ")
        if len(words) >= 3:
            found.append((re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), words[1]), words[2]))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="surrogateescape")
    except OSError:
        return ""
