"""``packer status OUT``."""

import argparse

from packer.cli.arguments import print_result
from packer.cluster.status import status


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder."""
    parser.add_argument(
        "out", metavar="OUT", help="folder of a build under way, on this host or others, or of a dataset"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace) -> int:
    """Print how far the build is."""
    print_result(options, status(options.out))
    return 0
