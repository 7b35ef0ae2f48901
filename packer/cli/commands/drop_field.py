"""``packer drop-field DATASET NAME …``."""

import argparse

from packer.cli.arguments import add_output_arguments, print_made
from packer.packed.columns import drop_field


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the dataset and the fields."""
    parser.add_argument("dataset", metavar="DATASET", help="folder of a packed dataset")
    parser.add_argument("fields", metavar="NAME", nargs="+", help="field that 'packer add' has added")
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Drop the fields, and print which."""
    result = drop_field(options.dataset, options.fields, progress=not options.quiet)
    print_made(options, result, options.dataset)
    return 0
