"""The limit of `benchmarks.cold`: reading whole files, after dropping them from the page cache."""

import os
import threading
from pathlib import Path
from typing import Any

from benchmarks.data import Source

_CHUNK = 4 << 20


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
        threads = [threading.Thread(target=_read, args=(chunks[t :: self._threads],)) for t in range(self._threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self._rows

    def batches(self, epoch: int) -> list[Any]:
        """Reads and gives nothing."""
        self.run(epoch)
        return []


def _read(chunks: list[tuple[Path, int]]) -> None:
    buffer = bytearray(_CHUNK)
    for path, at in chunks:
        with path.open("rb", buffering=0) as file:
            file.seek(at)
            file.readinto(buffer)


def read_through(source: str, kind: str, root: str, batch: int) -> ReadThrough:
    """An arm."""
    return ReadThrough(Path(root), len(Source(Path(source), kind)), 2)
