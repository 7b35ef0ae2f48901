"""Files that are there whole, or not at all, after a crash at any moment."""

import os
import uuid
from pathlib import Path


def write_durably(path: Path, data: bytes) -> None:
    """Replace `path` by a file with these bytes: temporary name, flush, rename, flush of the folder."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def fsync_folder(folder: Path) -> None:
    """Make renames inside a folder durable. Does nothing where folders cannot be opened (Windows)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(folder: Path) -> None:
    """Flush every file and folder below `folder` to the disk."""
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            fsync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    fsync_folder(folder)
