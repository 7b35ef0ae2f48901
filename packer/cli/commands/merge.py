"""``packer merge A B … OUT``."""

import argparse

from packer.cli.arguments import add_row_arguments, print_made, row_options
from packer.packed.merge import CLASSES, merge
from shardspec.formats import FORMATS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the datasets, and the folder of the merged one."""
    parser.add_argument(
        "datasets", metavar="DATASET", nargs="+", help="folders of packed datasets that have the same fields"
    )
    parser.add_argument("out", metavar="OUT", help="folder of the new dataset: new, empty, or with the merge to resume")
    parser.add_argument(
        "--classes",
        choices=CLASSES,
        default="same",
        help="lists of classes: must be the same (default), or unite them and renumber the labels",
    )
    parser.add_argument("--format", choices=sorted(FORMATS), help="format of the shards (default: the first dataset's)")
    add_row_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Merge, and print what was made."""
    result = merge(
        options.datasets, options.out, classes=options.classes, format=options.format, **row_options(options)
    )
    print_made(options, result, options.out)
    return 0
