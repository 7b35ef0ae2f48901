"""``packer card DATASET``."""

import argparse

from packer.cli.arguments import call, print_result
from packer.packed.publish.card import card


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", metavar="DATASET", help="folder of a packed dataset")
    parser.add_argument(
        "-o", "--out", metavar="FILE", help="Markdown file to write outside the dataset (default: print the card)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace) -> int:
    print_result(options, call(card, options))
    return 0
