"""``packer rejects DATASET …``."""

import argparse

from packer.cli.arguments import add_output_arguments, call, print_result
from packer.packed.rejects import rejects


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", metavar="DATASET", help="folder of a packed dataset, or of an unfinished build")
    parser.add_argument(
        "-o",
        "--out",
        metavar="TABLE",
        help="write the rejected items to a table (.csv or .jsonl) for 'packer build TABLE OUT --root SOURCE'",
    )
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    print_result(options, call(rejects, options))
    return 0
