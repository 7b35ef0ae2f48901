"""How much of some files is in the page cache."""

import ctypes
import mmap
from pathlib import Path

import numpy as np

from readers.formats.mapping import map_file


def resident_share(root: Path) -> float | None:
    """The share of the pages of a folder's files that are in memory; None if the system does not say (`mincore`)."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "mincore"):
        return None
    library.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    resident = pages = 0
    for path in root.rglob("*"):
        if not path.is_file() or path.stat().st_size == 0:
            continue
        data = map_file(path)
        found = np.zeros(-(-len(data) // mmap.PAGESIZE), np.uint8)
        if library.mincore(data.ctypes.data, len(data), found.ctypes.data) != 0:
            return None
        resident += int((found & 1).sum())
        pages += len(found)
    return resident / pages if pages else None


def resident_shares(folder: Path) -> dict[str, float | None]:
    """`resident_share` of every dataset in a folder, by name."""
    return {path.name: resident_share(path) for path in sorted(folder.iterdir()) if path.is_dir()}
