"""``packer doctor [FOLDER …]``."""

import argparse

from packer.cli.arguments import print_result
from packer.environment import doctor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folders, and the form of the answer."""
    parser.add_argument(
        "folders",
        metavar="FOLDER",
        nargs="*",
        default=(),
        help="folder whose file system is reported, such as that of the data",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(options: argparse.Namespace) -> int:
    """Print the report. Warnings do not change the exit status."""
    print_result(options, doctor(options.folders))
    return 0
