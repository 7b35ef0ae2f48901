"""A memory group of the kernel (cgroup, version 1 or 2) that this process joins for a while.

Memory that the process had before stays charged elsewhere. The limit applies to what it adds while it is in the group:
its own new memory, and the page cache of the files that it reads.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


class NoMemoryGroupError(Exception):
    """A memory group cannot be made here."""


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """Join a new group with a limit; at the end, return to the former one.

    Raises
    ------
    NoMemoryGroupError
        If the system has no such groups, or this user may not make one.
    """
    former, root, limit_name = _own_group()
    name = f"readers-benchmark-{os.getpid()}"
    failure: OSError | None = None
    # In version 2, a group that holds processes cannot have groups with limits below it, except for the root.
    for parent in [folder for folder in (former, *former.parents) if folder.is_relative_to(root)]:
        group = parent / name
        try:
            group.mkdir()
        except OSError as error:
            failure = error
            continue
        try:
            if not (group / limit_name).exists():
                (parent / "cgroup.subtree_control").write_text("+memory")
            (group / limit_name).write_text(str(limit_bytes))
            (group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError as error:
            failure = error
            group.rmdir()
            continue
        try:
            yield group
        finally:
            (former / "cgroup.procs").write_text(str(os.getpid()))
            group.rmdir()
        return
    raise NoMemoryGroupError(f"not measured: no memory group can be made below {_ROOT} ({failure})")


def _own_group() -> tuple[Path, Path, str]:
    """The folders of this process's memory group and of the root group, and the name of a limit's file."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    groups = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    first = next((path for controllers, path in groups.items() if "memory" in controllers.split(",")), None)
    root, limit = (_ROOT, "memory.max") if first is None else (_ROOT / "memory", "memory.limit_in_bytes")
    path = groups.get("", "/") if first is None else first
    for folder in (root / path.lstrip("/"), root):  # in a container the path may be the host's
        if (folder / "cgroup.procs").exists():
            return folder, root, limit
    raise NoMemoryGroupError(f"not measured: no memory group is mounted at {root}")
