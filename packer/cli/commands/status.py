"""``packer status OUT``."""

import argparse

from packer.cli.arguments import call, print_result
from packer.cluster.status import status


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", help="folder of a dataset, or of a build running on this or other hosts")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace) -> int:
    print_result(options, call(status, options))
    return 0
