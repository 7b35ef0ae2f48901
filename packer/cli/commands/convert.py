"""``packer convert DATASET OUT --format F``."""

import argparse

from packer.cli.arguments import add_row_arguments, call, print_made
from packer.packed.convert import convert
from shardspec.formats import FORMATS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", metavar="DATASET", help="folder of a packed dataset")
    parser.add_argument(
        "out", metavar="OUT", help="output folder; must be new, empty, or hold an unfinished conversion to resume"
    )
    parser.add_argument("--format", required=True, choices=sorted(FORMATS), help="format of the new shards")
    add_row_arguments(parser)


def run(options: argparse.Namespace) -> int:
    print_made(options, call(convert, options), options.out)
    return 0
