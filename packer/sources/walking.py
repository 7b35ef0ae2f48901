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
        links: set[str] = set()
        for name, is_folder, is_link in scan(folder, failed.append):
            (folders if is_folder else files).append(name)
            if is_folder and is_link:
                links.add(name)
        if failed:
            onerror(failed[0])
            continue
        yield folder, folders, files
        below = [name for name in reversed(folders) if followlinks or name not in links]
        waiting += [os.path.join(folder, name) for name in below]  # noqa: PTH118 -- many


Entry = tuple[str, bool, bool]
"""An entry of a folder: its name, and whether it is a folder, or a link. There may be millions."""


def scan(folder: str | Path, onerror: Callable[[OSError], None]) -> Iterator[Entry]:
    """The entries of a folder; `onerror` is called if it cannot be listed. What the listing says is not asked again."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    is_folder = entry.is_dir()
                except OSError:
                    is_folder = False
                yield entry.name, is_folder, entry.is_symlink()
    except OSError as error:
        onerror(error)
