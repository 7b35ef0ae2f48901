"""``packer report DATASET … -o REPORT.html``."""

import argparse

from packer.cli.arguments import add_output_arguments, print_result
from packer.page.report import DEFAULT_COUNT, report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the datasets, the file, and how many samples it shows."""
    parser.add_argument(
        "datasets", metavar="DATASET", nargs="+", help="folder of a packed dataset; several are compared"
    )
    parser.add_argument(
        "-o", "--out", metavar="REPORT.html", required=True, help="file of the report; replaced if it exists"
    )
    parser.add_argument(
        "--count",
        metavar="N",
        type=int,
        default=DEFAULT_COUNT,
        help=f"samples of each dataset to show, drawn evenly over the classes (default {DEFAULT_COUNT})",
    )
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Write the report."""
    result = report(options.datasets, options.out, count=options.count, progress=not options.quiet)
    print_result(options, result)
    return 0
