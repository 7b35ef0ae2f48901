"""``packer export DATASET DIR``."""

import argparse

from packer.packed.export.export import export
from packer.packed.export.tables import TABLES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The dataset, and where its pictures go."""
    parser.add_argument("dataset", metavar="DATASET", help="folder of a packed dataset")
    parser.add_argument(
        "out", metavar="DIR", help="folder: new or empty; gets pictures in class folders, and the table"
    )
    parser.add_argument("--table", choices=sorted(TABLES), default="csv", help="form of the table (default csv)")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(options: argparse.Namespace) -> int:
    """Export, and say what was written."""
    print(export(options.dataset, options.out, table=options.table, progress=not options.quiet).describe())
    return 0
