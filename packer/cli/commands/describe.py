"""``packer describe DATASET``."""

import argparse

from packer.cli.arguments import call, print_made
from packer.packed.publish.describe import describe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", metavar="DATASET", help="folder of a packed dataset")
    parser.add_argument("--title", metavar="TEXT", help="title; an empty text removes this entry, and every other")
    parser.add_argument("--description", metavar="TEXT", help="what the dataset holds, in a few sentences")
    parser.add_argument(
        "--license",
        action="append",
        help="SPDX identifier such as CC-BY-4.0, or the URL of the terms (repeatable; replaces all old ones)",
    )
    parser.add_argument(
        "--citation",
        metavar="TEXT",
        action="append",
        help="BibTeX entry or text to cite the dataset by (repeatable; replaces all old ones)",
    )
    parser.add_argument("--homepage", metavar="URL", help="URL of the dataset's page")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace) -> int:
    print_made(options, call(describe, options), options.dataset)
    return 0
