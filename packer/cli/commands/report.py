"""``packer report DATASET … -o REPORT.html``."""

import argparse

from packer.cli.arguments import add_output_arguments, call, print_result
from packer.page.report import DEFAULT_COUNT, report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "datasets", metavar="DATASET", nargs="+", help="folder of a packed dataset; several are compared"
    )
    parser.add_argument(
        "-o", "--out", metavar="REPORT.html", required=True, help="file to write, replaced if it exists"
    )
    parser.add_argument(
        "--count",
        metavar="N",
        type=int,
        default=DEFAULT_COUNT,
        help=f"samples to show per dataset, spread evenly over the classes (default: {DEFAULT_COUNT})",
    )
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    print_result(options, call(report, options))
    return 0
