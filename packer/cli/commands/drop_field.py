"""``packer drop-field DATASET NAME …``."""

import argparse

from packer.cli.arguments import add_output_arguments, call, print_made
from packer.packed.columns import drop_field


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", metavar="DATASET", help="folder of a packed dataset")
    parser.add_argument("fields", metavar="NAME", nargs="+", help="field added by 'packer add'")
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    print_made(options, call(drop_field, options), options.dataset)
    return 0
