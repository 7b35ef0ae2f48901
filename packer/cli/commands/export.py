"""``packer export DATASET DIR``."""

import argparse
from dataclasses import replace
from pathlib import Path

from packer.cli.arguments import add_output_arguments, call, print_made
from packer.packed.export.export import TARS, export
from packer.packed.export.names import NAMES
from packer.packed.export.shards import SHARDS
from packer.packed.export.tables import TABLES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", metavar="DATASET", help="folder of a packed dataset")
    parser.add_argument("out", metavar="DIR", help="new or empty folder")
    parser.add_argument(
        "--to",
        metavar="KIND",
        default="files",
        help=f"images in class folders and a table (files, the default), or shards for {', '.join(sorted(SHARDS))} "
        f"or {TARS}",
    )
    parser.add_argument("--table", choices=sorted(TABLES), help="with files: type of the table (default: csv)")
    parser.add_argument(
        "--names",
        choices=sorted(NAMES),
        default="key",
        help="with files: name images CLASS/KEY.jpg (key, the default) or as in the source",
    )
    parser.add_argument(
        "--shard-size",
        metavar="SIZE",
        help="with shards: bytes of samples in each (default: 64MiB; webdataset: as in the dataset)",
    )
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    result = call(export, options)
    if result.table is not None:
        result = replace(result, table=Path(options.out, result.table.name))
    print_made(options, result, options.out)
    return 0
