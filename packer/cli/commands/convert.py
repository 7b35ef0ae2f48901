"""``packer convert DATASET OUT --format F``."""

import argparse

from packer.cli.arguments import add_row_arguments, print_made, row_options
from packer.packed.convert import convert
from shardspec.formats import FORMATS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the dataset, the new folder, and the new format."""
    parser.add_argument("dataset", metavar="DATASET", help="folder of a packed dataset")
    parser.add_argument(
        "out", metavar="OUT", help="folder of the new dataset: new, empty, or with the conversion to resume"
    )
    parser.add_argument("--format", required=True, choices=sorted(FORMATS), help="format of the new shards")
    add_row_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Convert, and print what was made."""
    result = convert(options.dataset, options.out, format=options.format, **row_options(options))
    print_made(options, result, options.out)
    return 0
