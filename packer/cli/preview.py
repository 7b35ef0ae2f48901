"""``packer preview DATASET -o SHEET.png``."""

import argparse
from pathlib import Path

from packer.packed.preview import DEFAULT_CELL, DEFAULT_COUNT, preview
from shardspec.wording import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The dataset, the sheet, and what is shown."""
    parser.add_argument("dataset", metavar="DATASET", type=Path, help="folder of a packed dataset")
    parser.add_argument(
        "-o", "--out", metavar="SHEET.png", type=Path, required=True, help="the sheet; replaced if there"
    )
    parser.add_argument(
        "--count", metavar="N", type=int, default=DEFAULT_COUNT, help=f"samples to show (default {DEFAULT_COUNT})"
    )
    parser.add_argument("--all", action="store_true", help="show all samples from --start on")
    parser.add_argument("--start", metavar="ROW", type=int, default=0, help="first row to show (default 0)")
    parser.add_argument("--seed", metavar="N", type=int, help="show rows drawn at random from this seed")
    parser.add_argument("--columns", metavar="N", type=int, help="pictures in a row of the sheet")
    parser.add_argument(
        "--cell", metavar="PX", type=int, default=DEFAULT_CELL, help=f"side of a picture (default {DEFAULT_CELL})"
    )
    parser.add_argument("--plain", action="store_true", help="do not draw landmarks, hull and regions")


def run(options: argparse.Namespace) -> int:
    """Write the sheet."""
    rows = preview(
        options.dataset,
        options.out,
        count=None if options.all else options.count,
        start=options.start,
        seed=options.seed,
        columns=options.columns,
        cell=options.cell,
        geometry=not options.plain,
    )
    print(f"{options.out}: {counted(len(rows), 'sample')}, rows {rows[0]} to {rows[-1]}, each above its key")
    return 0
