"""``packer croissant DATASET``."""

import argparse

from packer.cli.arguments import call, print_result
from packer.packed.publish.croissant import croissant


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", metavar="DATASET", help="folder of a packed dataset")
    parser.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        help="JSON file to write, in a folder above the dataset unless --url is given (default: print the description)",
    )
    parser.add_argument(
        "--url", metavar="BASE", help="URL of the published folder (default: file names relative to the description)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace) -> int:
    print_result(options, call(croissant, options))
    return 0
