"""``packer add DATASET TABLE``."""

import argparse

from packer.cli.arguments import add_output_arguments, call, print_made, split_names
from packer.packed.columns import add


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", metavar="DATASET", help="folder of a packed dataset")
    parser.add_argument("table", metavar="TABLE", help="Parquet, CSV, TSV or JSON lines with a column of keys")
    parser.add_argument(
        "--on",
        metavar="FIELD",
        action="append",
        default=argparse.SUPPRESS,  # the default of `add` applies: argparse would append to a list given here
        help="field to match with the keys (default: key), such as source for one row per video, or --on source "
        "--on frame for one row per frame",
    )
    parser.add_argument(
        "--key",
        metavar="COLUMN",
        action="append",
        help="column of the table with the keys, one for each --on (default: the name given to --on)",
    )
    parser.add_argument(
        "--fields", metavar="NAME,…", type=split_names, help="columns to add (default: all except the keys)"
    )
    parser.add_argument(
        "--allow-missing", action="store_true", help="accept samples without a value, and mark them in FIELD_valid"
    )
    parser.add_argument("--allow-unknown", action="store_true", help="ignore rows of the table whose key no sample has")
    parser.add_argument("--replace", action="store_true", help="replace added fields of the same name")
    parser.add_argument(
        "--unquoted", action="store_true", help="take quotation marks in a CSV or TSV file as ordinary characters"
    )
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    print_made(options, call(add, options), options.dataset)
    return 0
