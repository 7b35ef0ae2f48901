"""``packer view DATASET …``."""

import argparse

from packer.cli.arguments import add_output_arguments, call, print_result
from packer.page.view import DEFAULT_PORT, LOOPBACK, view


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("datasets", metavar="DATASET", nargs="+", help="folder of a packed dataset")
    parser.add_argument(
        "--source",
        metavar="FOLDER",
        help="folder or archive that the dataset was packed from, to show whole frames with their boxes, and rejects",
    )
    parser.add_argument(
        "--with",
        dest="table",
        metavar="TABLE",
        help="table with a column key (CSV, TSV, JSON lines, Parquet) whose columns to show; with a column loss or "
        "prediction, the worst samples come first",
    )
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        default=LOOPBACK,
        help=f"address to listen on (default: {LOOPBACK}, this machine only)",
    )
    parser.add_argument(
        "--port", metavar="N", type=int, help=f"port to listen on (default: {DEFAULT_PORT}, or another if it is taken)"
    )
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    with call(view, options) as viewer:
        print_result(options, viewer)
        viewer.wait()
    return 0
