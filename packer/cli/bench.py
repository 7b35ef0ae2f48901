"""``packer bench SOURCE PACKED``."""

import argparse
import json
from pathlib import Path

from packer.packed.bench.bench import DEFAULT_BATCH_SIZE, DEFAULT_RUNS, DEFAULT_SECONDS, bench
from shardspec.registry import import_target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Both sides, how long, and the form of the answer."""
    parser.add_argument("source", metavar="SOURCE", type=Path, help="what was packed: a folder or a table")
    parser.add_argument("packed", metavar="PACKED", type=Path, help="the dataset that `packer build` made of it")
    parser.add_argument(
        "--workers",
        metavar="N",
        default="auto",
        help="processes (raw) and threads (packed): 'auto' or a number (default auto)",
    )
    parser.add_argument(
        "--batch-size", metavar="N", type=int, default=DEFAULT_BATCH_SIZE, help=f"default {DEFAULT_BATCH_SIZE}"
    )
    parser.add_argument(
        "--runs", metavar="N", type=int, default=DEFAULT_RUNS, help=f"of each side (default {DEFAULT_RUNS})"
    )
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=float,
        default=DEFAULT_SECONDS,
        help=f"length of a run (default {DEFAULT_SECONDS:g})",
    )
    parser.add_argument(
        "--root", metavar="DIR", action="append", default=[], help="of a table: as for packer build (repeatable)"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw a picture of them (.png, .svg, .pdf)")


def run(options: argparse.Namespace) -> int:
    """Measure, and print the table."""
    # Before the measurement, which takes a while.
    plot = (
        import_target("packer.packed.bench.plot:plot", what="--plot", extra="plot")
        if options.plot is not None
        else None
    )
    report = bench(
        options.source,
        options.packed,
        workers=options.workers,
        batch_size=options.batch_size,
        runs=options.runs,
        seconds=options.seconds,
        root=options.root,
    )
    print(json.dumps(report.to_json()) if options.json else report.describe())
    if plot is not None:
        plot(report, options.plot)
    return 0
