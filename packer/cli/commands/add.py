"""``packer add DATASET TABLE``."""

import argparse

from packer.cli.arguments import add_output_arguments, print_made
from packer.packed.columns import add


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the dataset, the table, and how they are matched."""
    parser.add_argument("dataset", metavar="DATASET", help="folder of a packed dataset")
    parser.add_argument("table", metavar="TABLE", help="Parquet, CSV, TSV or JSON lines with a column of keys")
    parser.add_argument(
        "--on",
        metavar="FIELD",
        action="append",
        default=argparse.SUPPRESS,  # `add` has one; to a list here, fields would be appended
        help="field of the dataset that is compared with the keys (default key); source: one row for each video; "
        "--on source --on frame: one for each frame",
    )
    parser.add_argument(
        "--key",
        metavar="COLUMN",
        action="append",
        help="column of the table with the keys, one for each --on (default: called like --on)",
    )
    parser.add_argument("--fields", metavar="NAME,…", help="columns to add (default: all but the keys)")
    parser.add_argument(
        "--allow-missing", action="store_true", help="mark samples without a value in FIELD_valid, instead of refusing"
    )
    parser.add_argument(
        "--allow-unknown", action="store_true", help="leave out rows of the table whose key no sample has"
    )
    parser.add_argument("--replace", action="store_true", help="replace fields of the same name that were added before")
    parser.add_argument(
        "--unquoted", action="store_true", help="take quotation marks in a CSV or TSV file as ordinary characters"
    )
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Add the fields, and print what was added."""
    result = add(
        options.dataset,
        options.table,
        on=getattr(options, "on", "key"),
        key=options.key,
        fields=None if options.fields is None else [name.strip() for name in options.fields.split(",")],
        allow_missing=options.allow_missing,
        allow_unknown=options.allow_unknown,
        replace=options.replace,
        unquoted=options.unquoted,
        progress=not options.quiet,
    )
    print_made(options, result, options.dataset)
    return 0
