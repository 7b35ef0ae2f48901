"""``packer view DATASET …``."""

import argparse

from packer.cli.arguments import add_output_arguments, print_result
from packer.page.view import DEFAULT_PORT, LOOPBACK, view


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the datasets, what is shown with them, and where the pages are served."""
    parser.add_argument("datasets", metavar="DATASET", nargs="+", help="folder of a packed dataset")
    parser.add_argument(
        "--source",
        metavar="FOLDER",
        help="the folder, or the archive, that it was packed from: draws whole frames with the box that was cut, and rejected items",
    )
    parser.add_argument(
        "--with",
        dest="table",
        metavar="TABLE",
        help="a table with a column key (CSV, TSV, JSON lines, Parquet): its columns are shown as further fields; with "
        "one called loss, or prediction, the worst samples come first",
    )
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        default=LOOPBACK,
        help=f"address to listen on (default {LOOPBACK}: this machine only)",
    )
    parser.add_argument(
        "--port", metavar="N", type=int, help=f"port to listen on (default {DEFAULT_PORT}, or another if it is taken)"
    )
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Serve the pages until Ctrl-C."""
    viewer = view(
        options.datasets,
        source=options.source,
        table=options.table,
        host=options.host,
        port=options.port,
        progress=not options.quiet,
    )
    with viewer:
        print_result(options, viewer)
        viewer.wait()
    return 0
