"""``packer verify DATASET``."""

import argparse

from packer.cli.arguments import add_output_arguments, call, print_result
from packer.packed.verify.verify import verify
from shardspec.errors import VerifyError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", metavar="DATASET", help="folder of a packed dataset")
    parser.add_argument(
        "--deep",
        action="store_true",
        help="also decode every value and check shapes, dtypes, ranges, unique keys and the index",
    )
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    report = call(verify, options)
    if report.problems and not options.json:
        raise VerifyError(report.describe())
    print_result(options, report)
    return 0 if report.ok else 1
