"""``packer rejects DATASET …``."""

import argparse

from packer.cli.arguments import add_output_arguments, print_result
from packer.packed.rejects import rejects


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the dataset, the table to write, and the form of the answer."""
    parser.add_argument("dataset", metavar="DATASET", help="folder of a packed dataset, or of an unfinished build")
    parser.add_argument(
        "-o",
        "--out",
        metavar="TABLE",
        help="write the rejected items as a table (.csv or .jsonl) that 'packer build TABLE OUT --root SOURCE' takes",
    )
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Sum up the rejects, and print them."""
    print_result(options, rejects(options.dataset, out=options.out, progress=not options.quiet))
    return 0
