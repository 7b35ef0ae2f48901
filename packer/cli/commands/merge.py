"""``packer merge A B … OUT``."""

import argparse

from packer.cli.arguments import add_row_arguments, call, print_made
from packer.packed.merge import CLASSES, merge
from shardspec.formats import FORMATS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("datasets", metavar="DATASET", nargs="+", help="packed datasets that have the same fields")
    parser.add_argument(
        "out", metavar="OUT", help="output folder; must be new, empty, or hold an unfinished merge to resume"
    )
    parser.add_argument(
        "--classes",
        choices=CLASSES,
        default="same",
        help="require the same list of classes (same, the default), or unite the lists and renumber the labels",
    )
    parser.add_argument("--format", choices=sorted(FORMATS), help="format of the shards (default: the first dataset's)")
    add_row_arguments(parser)


def run(options: argparse.Namespace) -> int:
    print_made(options, call(merge, options), options.out)
    return 0
