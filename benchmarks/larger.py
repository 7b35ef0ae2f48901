"""Our Loader over a dataset larger than memory: full and blockwise order, with and without reading ahead.

``python -m benchmarks.larger --folder /somewhere --rows 10000 --cache-mb 500`` measures raw crops. An epoch runs in a
memory group of its own (`benchmarks.memory_group`; needs root, or a delegated group), whose limit is the size of the
batches plus that much page cache. Before each epoch the files' pages are dropped. The limit reads the files from the
first byte to the last, outside the group. Without the right to make groups every row says that it was not measured.
"""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.data import Source, add_arguments, make_source, pack_ours, rows_of, settings_of
from benchmarks.measure import Entry, artefact, document, measure_group, write
from benchmarks.tables import group_text

FORMATS = ("npy", "lmdb")
"""Formats whose single rows are cheap, so that both orders make sense."""


def entries_of(folder: Path, source: Path, batch: int, formats: list[str], cache_mb: float) -> list[Entry]:
    """The limit; every format in both orders, as ``read_ahead`` is chosen by default and without it."""
    options: dict[str, Any] = {"source": str(source), "kind": "raw", "batch": batch}
    entries = []
    for format in formats:
        root = folder / f"raw-{format}"
        facts = pack_ours(Source(source, "raw"), root, format)
        options |= {"root": str(root)}
        if not entries:
            arm = "benchmarks.read_through:read_through"
            entries.append(Entry(f"read through, {format}", arm, dict(options), is_limit=True, checked=False))
        for shuffle in ("full", "blocks"):
            for name, more in (("", {}), (", nothing ahead", {"read_ahead": 0})):
                limited = options | {"shuffle": shuffle, "cache_mb": cache_mb} | more
                arm = "benchmarks.cold_arms:limited_loader"
                entries.append(Entry(f"Loader, {format}, {shuffle}{name}", arm, limited, ours=True, facts=facts))
    return entries


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--cache-mb", type=float, default=500, help="page cache that an epoch may take, MB")
    arguments = parser.parse_args()
    source = arguments.folder / "source"
    make_source(source, ("raw",), rows_of(arguments))
    entries = entries_of(arguments.folder, source, arguments.batch, arguments.formats, arguments.cache_mb)
    name = f"raw, no more than {arguments.cache_mb:g} MB of page cache"
    group = measure_group(name, entries, arguments.rounds, arguments.settle, timeout_s=1800)
    print(group_text(group))
    settings = settings_of(arguments) | {"cache_mb": arguments.cache_mb}
    write(document("larger", settings, [group]), artefact(arguments.json, "larger"))


if __name__ == "__main__":
    main()
