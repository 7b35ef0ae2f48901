"""``packer cache``: list and delete the cached files of remote datasets."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import Timeout

from packer.jobs.result import Result
from packer.recipe.checks import checked
from packer.workspace.scratch import delete_abandoned
from readers.staging.folder import CachedDataset, CacheFolder
from readers.staging.layout import cache_folder
from shardspec.errors import BuildLockedError
from shardspec.wording import counted


@dataclass(frozen=True, repr=False)
class CacheReport(Result):
    """The remote datasets of which files are in a cache.

    Attributes
    ----------
    path : Path
        The part of the cache folder that belongs to facepack.
    datasets : tuple of CachedDataset
    cleared : bool
        Whether these files have been deleted.
    """

    path: Path
    datasets: tuple[CachedDataset, ...]
    cleared: bool

    def describe(self) -> str:
        """Describe the cache: one line, and one for each dataset."""
        size = sum(sum(dataset.files.values()) for dataset in self.datasets)
        done = "deleted: " if self.cleared else ""
        lines = [f"{self.path}: {done}{size / 1e9:.3f} GB of {counted(len(self.datasets), 'dataset')}"]
        for dataset in self.datasets:
            held = sum(dataset.files.values())
            if dataset.manifest is None:
                lines.append(
                    f"  {dataset.url}: {held / 1e9:.3f} GB with a manifest of a later version, or a damaged one"
                )
                continue
            entries = dataset.manifest.entries
            total = sum(entry.bytes for entry in entries)
            files = f"{len(dataset.files)} of {counted(len(entries), 'file')}"
            lines.append(f"  {dataset.url}: {files}, {held / 1e9:.3f} of {total / 1e9:.3f} GB")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the path and, for each dataset, URL, digest and sizes as JSON."""
        found = [
            {
                "url": dataset.url,
                "digest": None if dataset.manifest is None else dataset.manifest.digest,
                "files": len(dataset.files),
                "bytes": sum(dataset.files.values()),
                "path": str(dataset.root),
            }
            for dataset in self.datasets
        ]
        return {"path": str(self.path), "cleared": self.cleared, "datasets": found}


def cache(folder: str | os.PathLike[str] | None = None, *, clear: bool = False) -> CacheReport:
    """List the remote datasets of which files are in a cache folder, and delete these files with `clear`.

    Parameters
    ----------
    folder : path, optional
        The cache folder; by default ``$FACEPACK_CACHE``, or ``~/.cache``.
    clear : bool
        Whether to delete the files. Files that do not belong to a cached dataset stay.

    Returns
    -------
    CacheReport

    Raises
    ------
    BuildLockedError
        If the cache is to be cleared while a program reads datasets through it.
    """
    clear = checked("clear", clear, bool)
    place = CacheFolder(cache_folder(folder, "folder"))
    if not clear or not place.exists:
        return CacheReport(place.root, tuple(place.list()), cleared=False)
    try:
        with place.lock().acquire(timeout=3):  # a stager ends a second after its last client
            found = tuple(place.list())
            place.sweep()
            delete_abandoned(place.root)  # of `packer verify`
            for dataset in found:
                place.clear(dataset)
    except Timeout:
        raise BuildLockedError(
            "The cache is in use: end the programs that read datasets through it first", place=place.root
        ) from None
    return CacheReport(place.root, found, cleared=True)
