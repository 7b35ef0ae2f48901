"""``packer doctor [FOLDER …]``."""

import argparse

from packer.cli.arguments import call, print_result
from packer.environment import doctor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folders",
        metavar="FOLDER",
        nargs="*",
        default=(),
        help="folder whose file system to report, such as the one with the data",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(options: argparse.Namespace) -> int:
    print_result(options, call(doctor, options))
    return 0
