"""List nested folders of any depth."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path


def walk(
    root: Path, onerror: Callable[[OSError], None], *, followlinks: bool = False
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder with its subfolders and files, from the top, like ``os.walk`` but without a limit of depth.

    Parameters
    ----------
    onerror : callable
        Called with the error of a folder that cannot be listed.
    followlinks : bool
        Whether to enter folders behind links; the caller must prevent endless loops.
    """
    waiting = [os.fspath(root)]
    while waiting:
        folder = waiting.pop()
        failed: list[OSError] = []
        entries = list(scan(folder, failed.append))
        if failed:
            onerror(failed[0])
            continue
        folders = [name for name, is_folder, _ in entries if is_folder]
        links = {name for name, is_folder, is_link in entries if is_folder and is_link}
        yield folder, folders, [name for name, is_folder, _ in entries if not is_folder]
        below = [name for name in reversed(folders) if followlinks or name not in links]
        waiting += [os.path.join(folder, name) for name in below]  # noqa: PTH118 -- many


Entry = tuple[str, bool, bool]
"""Entry of a folder: its name, whether it is a folder, and whether it is a link. A plain tuple takes little memory."""


def scan(folder: str | Path, onerror: Callable[[OSError], None]) -> Iterator[Entry]:
    """Yield the entries of a folder. Call `onerror` if the folder cannot be listed."""
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
