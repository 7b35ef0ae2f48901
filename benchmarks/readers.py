"""Our readers: formats × ways of reading × raw and JPEG images, beside the limits of the same run.

``python -m benchmarks.readers --folder /somewhere --json out.json``. The method is in ``benchmarks/README.md``. Ways of
reading:

- *Loader*: `readers.Loader` with its defaults; *unchecked*: without the format's own checksums; *blocks*: blockwise
  order; *fresh*: no buffer is used twice, as if the training loop kept its batches; *fast*: fast inverse transform and
  fast upsampling.
- *DataLoader*: torch's DataLoader over our dataset, two worker processes; *DataLoader over a memmap*: the same over the
  shortest dataset that anybody would write.
"""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.data import SourceImages, add_arguments, make_source, pack_ours, rows_of, settings_of
from benchmarks.limits import limits_of
from benchmarks.measure import Entry, artefact, document, measure_group, write
from benchmarks.tables import group_text
from shardspec.formats import FORMATS

BLOCKWISE = ("hdf5", "parquet", "tfrecord")
"""Formats whose single rows are expensive; they are read blockwise."""


def our_entry(
    name: str,
    kind: str,
    source: Path,
    root: Path,
    batch: int,
    facts: dict[str, float],
    arm: str = "loader",
    **more: Any,
) -> Entry:
    """A row of ours: an arm of `benchmarks.reader_arms` over a packed dataset."""
    options = {"source": str(source), "kind": kind, "root": str(root), "batch": batch} | more
    return Entry(name, f"benchmarks.reader_arms:{arm}", options, ours=True, facts=facts)


def entries_of(kind: str, folder: Path, source: Path, batch: int, formats: list[str]) -> list[Entry]:
    """Our rows of a kind."""
    entries = []
    for format in formats:
        root = folder / f"{kind}-{format}"
        given = (kind, source, root, batch, pack_ours(SourceImages(source, kind), root, format))
        blockwise = format in BLOCKWISE
        ways: dict[str, dict[str, Any]] = {"": {}}
        if blockwise and kind == "raw":
            ways["unchecked"] = {"checksums": False}
        if format == "npy":
            way = "fresh" if kind == "raw" else "fast"
            ways[way] = {way: True}
        for way, more in ways.items():
            name = f"Loader, {format}" + (", blocks" if blockwise else "") + (f", {way}" if way else "")
            entries.append(our_entry(name, *given, shuffle="blocks" if blockwise else "full", **more))
        if format in ("npy", "lmdb"):
            entries.append(our_entry(f"DataLoader over {format}", *given, arm="data_loader"))
    if kind == "raw":
        options = {"source": str(source), "kind": kind, "batch": batch}
        entries.append(Entry("DataLoader over a memmap", "benchmarks.reader_arms:memmap_loader", options))
    return entries


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--formats", nargs="*", choices=sorted(FORMATS), default=sorted(FORMATS))
    arguments = parser.parse_args()
    source = arguments.folder / "source"
    make_source(source, tuple(arguments.kinds), rows_of(arguments))
    groups = []
    for kind in arguments.kinds:
        formats = arguments.formats if kind == "raw" else [f for f in arguments.formats if f in ("npy", "lmdb")]
        entries = entries_of(kind, arguments.folder, source, arguments.batch, formats)
        if arguments.only:
            entries = [entry for entry in entries if entry.name.startswith(tuple(arguments.only))]
        entries = limits_of(kind, source, arguments.batch) + entries
        groups.append(measure_group(kind, entries, arguments.rounds, arguments.settle))
        print(group_text(groups[-1]) + "\n", flush=True)
    write(document("readers", settings_of(arguments), groups), artefact(arguments.json, "readers"))


if __name__ == "__main__":
    main()
