"""Our Loader over data that are not in memory, in full and blockwise order, and plain reading of files.

    python -m benchmarks.cold --folder /somewhere
    python -m benchmarks.cold --folder /somewhere --rows 10000 --cache-mb 500 --formats npy

Raw crops. The page cache is dropped before every epoch, with ``posix_fadvise``, which needs no rights and leaves other
files alone; caches of the disk or of a host machine are not dropped. The limit reads the files of the first dataset from
the first byte to the last with two threads, 4 MB at a time.

With ``--cache-mb``, as if the dataset were larger than memory: an epoch runs in a memory group of its own
(`benchmarks.memory_group`; needs root, or a delegated group), whose limit is the size of the batches plus that much page
cache, with and without reading ahead. The limit is outside the group. Without the right to make groups every row says
that it was not measured.
"""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.data import SourceImages, add_arguments, make_source, pack_ours, rows_of, settings_of
from benchmarks.measure import Entry, artefact, document, measure_group, write
from benchmarks.readers import BLOCKWISE
from benchmarks.tables import group_text
from shardspec.formats import FORMATS


def entries_of(folder: Path, source: Path, batch: int, formats: list[str], cache_mb: float | None) -> list[Entry]:
    """The limit; every format in both orders, if its single rows are cheap."""
    options: dict[str, Any] = {"source": str(source), "kind": "raw", "batch": batch}
    arm, ways = "cold_loader", {"": {}}
    if cache_mb is not None:
        arm, ways = "limited_loader", {"": {"cache_mb": cache_mb}}
        ways[", nothing ahead"] = ways[""] | {"read_ahead": 0}
    entries = []
    for format in formats:
        root = folder / f"raw-{format}"
        facts = pack_ours(SourceImages(source, "raw"), root, format)
        options |= {"root": str(root)}
        if not entries:
            limit = "benchmarks.cold_arms:read_through"
            entries.append(Entry(f"read through, {format}", limit, dict(options), is_limit=True, checked=False))
        for shuffle in ("blocks",) if format in BLOCKWISE else ("full", "blocks"):
            for way, more in ways.items():
                name = f"Loader, {format}, {shuffle}{way}"
                given = options | {"shuffle": shuffle} | more
                entries.append(Entry(name, f"benchmarks.cold_arms:{arm}", given, ours=True, facts=facts))
    return entries


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    formats = ["npy", *sorted(set(FORMATS) - {"npy"})]
    parser.add_argument("--formats", nargs="*", choices=formats, default=formats)
    parser.add_argument("--cache-mb", type=float, help="page cache that an epoch may take, MB")
    arguments = parser.parse_args()
    source, cache_mb = arguments.folder / "source", arguments.cache_mb
    make_source(source, ("raw",), rows_of(arguments))
    entries = entries_of(arguments.folder, source, arguments.batch, arguments.formats, cache_mb)
    name = "raw, page cache dropped" if cache_mb is None else f"raw, no more than {cache_mb:g} MB of page cache"
    group = measure_group(name, entries, arguments.rounds, arguments.settle, timeout_s=1800)
    print(group_text(group))
    write(document("cold", settings_of(arguments) | {"cache_mb": cache_mb}, [group]), artefact(arguments.json, "cold"))


if __name__ == "__main__":
    main()
