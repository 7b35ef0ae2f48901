"""``packer compact DATASET``."""

import argparse

from packer.cli.arguments import add_job_arguments, add_output_arguments, call, print_made
from packer.packed.compact import compact


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", metavar="DATASET", help="folder of a packed dataset")
    add_output_arguments(parser)
    add_job_arguments(parser, ("workers", "engine"))


def run(options: argparse.Namespace) -> int:
    print_made(options, call(compact, options), options.dataset)
    return 0
