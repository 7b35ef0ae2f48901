"""Listing of nested folders of any depth."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path


def walk(
    root: Path, onerror: Callable[[OSError], None], *, followlinks: bool = False
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder, the folders and the files in it, from the top, as ``os.walk`` does up to some 990 levels.

    Parameters
    ----------
    onerror : callable
        Called with the error of a folder that cannot be listed.
    followlinks : bool
        Whether folders behind links are entered; the caller must prevent endless loops.
    """
    waiting = [os.fspath(root)]
    while waiting:
        folder = waiting.pop()
        folders: list[str] = []
        files: list[str] = []
        failed: list[OSError] = []
        for name, is_folder in scan(folder, failed.append):
            (folders if is_folder else files).append(name)
        if failed:
            onerror(failed[0])
            continue
        yield folder, folders, files
        below = [os.path.join(folder, name) for name in reversed(folders)]  # noqa: PTH118 -- many
        waiting += [path for path in below if followlinks or not os.path.islink(path)]  # noqa: PTH114 -- many


def scan(folder: str | Path, onerror: Callable[[OSError], None]) -> Iterator[tuple[str, bool]]:
    """The name of each entry of a folder, and whether it is a folder; `onerror` is called if it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                yield entry.name, _is_folder(entry)
    except OSError as error:
        onerror(error)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
