"""Our Loader with the page cache dropped before every epoch, in full and blockwise order, and plain reading of files.

``python -m benchmarks.cold --folder /somewhere`` measures raw crops of all formats. The files' pages are dropped with
``posix_fadvise``, which needs no rights and leaves other files alone; caches of the disk or of a host machine are not
dropped. The limit reads the files of the npy dataset from the first byte to the last with two threads, 4 MB at a time.
"""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.data import Source, add_arguments, make_source, pack_ours, rows_of, settings_of
from benchmarks.measure import Entry, artefact, document, measure_group, write
from benchmarks.readers import BLOCKWISE
from benchmarks.tables import group_text
from shardspec.formats import FORMATS


def entries_of(folder: Path, source: Path, batch: int, formats: list[str]) -> list[Entry]:
    """The limit, and every format, in both orders if its single rows are cheap."""
    options: dict[str, Any] = {"source": str(source), "kind": "raw", "batch": batch}
    entries = []
    for format in formats:
        root = folder / f"raw-{format}"
        facts = pack_ours(Source(source, "raw"), root, format)
        if not entries:
            through = options | {"root": str(root)}
            entries.append(
                Entry(
                    f"read through, {format}",
                    "benchmarks.read_through:read_through",
                    through,
                    is_limit=True,
                    checked=False,
                )
            )
        for shuffle in ("blocks",) if format in BLOCKWISE else ("full", "blocks"):
            more = options | {"root": str(root), "shuffle": shuffle}
            entries.append(
                Entry(f"Loader, {format}, {shuffle}", "benchmarks.cold_arms:cold_loader", more, ours=True, facts=facts)
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
    group = measure_group("raw, page cache dropped", entries, arguments.rounds, arguments.settle)
    print(group_text(group))
    write(document("cold", settings_of(arguments), [group]), artefact(arguments.json, "cold"))


if __name__ == "__main__":
    main()
