"""``packer export DATASET DIR``."""

import argparse

from packer.cli.arguments import add_output_arguments, print_result
from packer.packed.export.export import export
from packer.packed.export.tables import TABLES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the dataset, and the folder for its pictures."""
    parser.add_argument("dataset", metavar="DATASET", help="folder of a packed dataset")
    parser.add_argument(
        "out", metavar="DIR", help="new or empty folder for the pictures, in class folders, and the table"
    )
    parser.add_argument("--table", choices=sorted(TABLES), default="csv", help="file type of the table (default csv)")
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Export, and say what was written."""
    print_result(options, export(options.dataset, options.out, table=options.table, progress=not options.quiet))
    return 0
