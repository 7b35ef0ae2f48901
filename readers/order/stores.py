"""Where datasets lie, and whether they will stay in memory once they were read."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
"""Types as ``/proc/self/mounts`` names them; so are all that begin with ``fuse.``, whatever may be behind them."""

MEMORY_SHARE = 0.75
"""Of the memory that this process may use: what the page cache is reckoned to keep of a dataset beside the training."""

_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Store:
    """One packed dataset as far as it is read.

    Attributes
    ----------
    root : Path
    bytes : int
        Read in an epoch, whichever fields are read.
    """

    root: Path
    bytes: int


@dataclass(frozen=True)
class Residence:
    """What is expected of the page cache.

    Attributes
    ----------
    bytes : int
        Of all stores.
    memory : int or None
        Bytes that the page cache may keep (`MEMORY_SHARE`); None where that cannot be told.
    network : tuple of str
        ``"nfs4 at /data"`` for every network file system that a store lies on.
    """

    bytes: int
    memory: int | None
    network: tuple[str, ...]

    @property
    def in_memory(self) -> bool:
        """Whether all of it is expected to stay in memory and lies on a local file system."""
        return not self.network and (self.memory is None or self.bytes <= self.memory)

    def __str__(self) -> str:
        if self.network:
            return f"it lies on a network file system ({', '.join(self.network)})"
        if self.memory is None:
            return f"it lies on a local file system, and how much memory there is cannot be told ({_giga(self.bytes)} of data)"
        verb = "fit into" if self.in_memory else "are more than"
        return f"its {_giga(self.bytes)} {verb} the {_giga(self.memory)} of memory that may hold them, {MEMORY_SHARE:.0%} of what this process may use"


def find_residence(stores: Sequence[Store]) -> Residence:
    """Look at the stores' file systems and at this process's memory."""
    mounts = _mounts()
    network = []
    for root in dict.fromkeys(store.root for store in stores):
        place, kind = _mount_of(root, mounts)
        if kind in NETWORK_FILE_SYSTEMS or kind.startswith("fuse."):
            network.append(f"{kind} at {place}")
    memory = usable_memory()
    kept = None if memory is None else int(memory * MEMORY_SHARE)
    return Residence(sum(store.bytes for store in stores), kept, tuple(dict.fromkeys(network)))


def usable_memory() -> int | None:
    """Bytes of physical memory, less where a cgroup of either version allows fewer; None where that cannot be told."""
    found = list(_cgroup_limits())
    if hasattr(os, "sysconf") and {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} <= set(os.sysconf_names):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min((limit for limit in found if limit > 0), default=None)


def _cgroup_limits() -> Iterator[int]:
    """The limits of this process's memory groups and of those above them."""
    for line in _read(_PROC / "self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = (_CGROUP / "memory", "memory.limit_in_bytes") if controllers else (_CGROUP, "memory.max")
        # In a container the path may be the host's, while what is mounted begins at the container's own group.
        folder = root / group.lstrip("/")
        for above in (folder, *folder.parents):
            text = _read(above / name).strip()
            if text.isdecimal():
                yield int(text)
            if above == root:
                break


def _mounts() -> list[tuple[str, str]]:
    """Place and type of every mounted file system, in the order of mounting."""
    found = []
    for line in _read(_PROC / "self/mounts").splitlines():
        words = line.split(" ")
        if len(words) >= 3:
            found.append((re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), words[1]), words[2]))
    return found


def _mount_of(root: Path, mounts: list[tuple[str, str]]) -> tuple[str, str]:
    """Place and type of the file system that a folder lies on; a local one of no name where that cannot be told."""
    real, best = Path(os.path.realpath(root)), ("/", "")
    for place, kind in mounts:
        if real.is_relative_to(place) and len(place) >= len(best[0]):
            best = place, kind
    return best


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="surrogateescape")
    except OSError:
        return ""


def _giga(number: int) -> str:
    return f"{number / 1e9:.1f} GB"
