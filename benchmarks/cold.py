"""Our Loader with the page cache dropped before every epoch: full and blockwise order, beside reading the files through.

``python -m benchmarks.cold --folder /somewhere`` measures raw crops of all formats. The files' pages are dropped with
``posix_fadvise``, which needs no rights and leaves other files alone; what the disk or the machine below keeps stays. The limit
reads the files of the npy dataset from the first byte to the last with two threads, 4 MB at a time.
"""

import argparse
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.contender import Batches
from benchmarks.data import Source, add_arguments, make_source, pack_ours, rows_of
from benchmarks.measure import Entry, document, measure_group, table, write
from benchmarks.readers import loader
from shardspec.formats import FORMATS

_CHUNK = 4 << 20


def drop_cache(root: Path) -> None:
    """Drop the pages of all files below a folder. Those that a process has mapped stay."""
    for path in root.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


class ColdLoader:
    """A Loader over a dataset that is opened anew, with nothing of it in memory, for every epoch."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self._arm: Batches | None = None

    def prepare(self) -> None:
        """Drop the cache and open."""
        self._arm = None
        drop_cache(Path(self._options["root"]))
        self._arm = loader(**self._options)

    def run(self, epoch: int) -> int:
        """Consume an epoch, and let go of the dataset: what is mapped cannot be dropped."""
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


class ReadThrough:
    """Reads all files of a dataset through."""

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


def entries_of(folder: Path, source: Path, batch: int, formats: list[str]) -> list[Entry]:
    """The limit, and every format in both orders where single rows are cheap."""
    options: dict[str, Any] = {"source": str(source), "kind": "raw", "batch": batch}
    entries = []
    for format in formats:
        root = folder / f"raw-{format}"
        facts = pack_ours(Source(source, "raw"), root, format)
        if not entries:
            through = options | {"root": str(root)}
            entries.append(
                Entry(f"read through, {format}", "benchmarks.cold:read_through", through, is_limit=True, checked=False)
            )
        for shuffle in ("full", "blocks") if format in ("npy", "lmdb") else ("blocks",):
            more = options | {"root": str(root), "shuffle": shuffle}
            entries.append(
                Entry(f"Loader, {format}, {shuffle}", "benchmarks.cold:cold_loader", more, ours=True, facts=facts)
            )
    return entries


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    formats = ["npy", *sorted(set(FORMATS) - {"npy"})]
    parser.add_argument("--formats", nargs="*", choices=formats, default=formats)
    arguments = parser.parse_args()
    source = arguments.folder / "source"
    make_source(source, ("raw",), rows_of(arguments))
    entries = entries_of(arguments.folder, source, arguments.batch, arguments.formats)
    group = measure_group("raw, page cache dropped", entries, arguments.rounds)
    print(table(group))
    settings = {"rows": rows_of(arguments), "batch": arguments.batch, "rounds": arguments.rounds}
    write(document("cold", settings, [group]), arguments.json)


if __name__ == "__main__":
    main()
