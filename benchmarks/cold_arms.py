"""Arms of `benchmarks.cold`: a Loader whose dataset was dropped from the page cache, one with little cache, their limit."""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.contender import Batches
from benchmarks.data import SIZE, SourceImages
from benchmarks.memory_group import memory_group
from benchmarks.reader_arms import loader
from readers.formats.machine import available_processors

_CHUNK = 4 << 20
_OWN_BYTES = 32 << 20
"""Memory for threads and page tables, in addition to batches and page cache."""


class ColdLoader:
    """A Loader over a dataset that is opened again for every epoch, with none of it in memory."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self._arm: Batches | None = None

    def prepare(self) -> None:
        """Drop the cache and open."""
        self._arm = None
        drop_cache(Path(self._options["root"]))
        self._arm = loader(**self._options)

    def run(self, epoch: int) -> int:
        """Consume an epoch, then drop the dataset, since pages that are mapped cannot be dropped from the cache."""
        assert self._arm is not None
        samples = self._arm.run(epoch)
        self._arm = None
        return samples

    def batches(self, epoch: int) -> Any:
        """The batches, for the check."""
        return loader(**self._options).batches(epoch)


def cold_loader(**options: Any) -> ColdLoader:
    """An arm."""
    return ColdLoader(options)


class LimitedLoader(ColdLoader):
    """The same in a memory group that leaves little room for the page cache beside the batches.

    Parameters
    ----------
    options : dict
        Arguments of the Loader, over raw crops.
    cache_mb : float
        Room for the page cache, MB.
    """

    def __init__(self, options: Mapping[str, Any], cache_mb: float) -> None:
        super().__init__(options)
        # Batches in the ring, in work and in the loop's hands.
        batches = available_processors() + 6
        own_bytes = batches * options["batch"] * SIZE * SIZE * 3 + _OWN_BYTES
        self._limit_bytes = own_bytes + int(cache_mb * 1e6)

    def run(self, epoch: int) -> int:
        """Consume an epoch within the limit."""
        with memory_group(self._limit_bytes):
            return super().run(epoch)


def limited_loader(cache_mb: float, **options: Any) -> LimitedLoader:
    """An arm."""
    return LimitedLoader(options, cache_mb)


def drop_cache(root: Path) -> None:
    """Drop the pages of all files below a folder, except those that a process has mapped."""
    for path in root.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


class ReadThrough:
    """Reads all files of a dataset from the first byte to the last."""

    def __init__(self, root: Path, rows: int, threads: int) -> None:
        self._root, self._rows, self._threads = root, rows, threads

    def prepare(self) -> None:
        """Drop the cache."""
        drop_cache(self._root)

    def run(self, epoch: int) -> int:
        """Read every byte once."""
        paths = [path for path in sorted(self._root.rglob("*")) if path.is_file()]
        chunks = [(path, at) for path in paths for at in range(0, path.stat().st_size, _CHUNK)]
        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(_read, chunks))
        return self._rows

    def batches(self, epoch: int) -> list[Any]:
        """Reads and gives nothing."""
        self.run(epoch)
        return []


def _read(chunk: tuple[Path, int]) -> None:
    path, at = chunk
    with path.open("rb", buffering=0) as file:
        file.seek(at)
        file.read(_CHUNK)


def read_through(source: str, kind: str, root: str, batch: int) -> ReadThrough:
    """An arm."""
    return ReadThrough(Path(root), len(SourceImages(Path(source), kind)), 2)
