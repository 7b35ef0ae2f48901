"""``packer export DATASET DIR``."""

import argparse
from dataclasses import replace
from pathlib import Path

from packer.cli.arguments import add_output_arguments, print_made
from packer.packed.export.export import SHARDS, TARS, export
from packer.packed.export.names import NAMES
from packer.packed.export.tables import TABLES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the dataset, the folder, and what is written into it."""
    parser.add_argument("dataset", metavar="DATASET", help="folder of a packed dataset")
    parser.add_argument("out", metavar="DIR", help="new or empty folder")
    parser.add_argument(
        "--to",
        metavar="KIND",
        default="files",
        help="files: pictures in class folders and a table (the default); "
        f"{', '.join(sorted(SHARDS))} or {TARS}: shards of that library",
    )
    parser.add_argument("--table", choices=sorted(TABLES), help="with files: file type of the table (default csv)")
    parser.add_argument(
        "--names",
        choices=sorted(NAMES),
        default="key",
        help="with files: what the pictures are called: CLASS/KEY.jpg (key, the default), or as in the source",
    )
    parser.add_argument(
        "--shard-size",
        metavar="SIZE",
        help="with shards: bytes of samples in each (default 64MiB; of tar files, as the dataset was packed)",
    )
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Export, and say what was written."""
    result = export(
        options.dataset,
        options.out,
        to=options.to,
        table=options.table,
        names=options.names,
        shard_size=options.shard_size,
        progress=not options.quiet,
    )
    if result.table is not None:
        result = replace(result, table=Path(options.out, result.table.name))
    print_made(options, result, options.out)
    return 0
