"""``packer bench SOURCE PACKED``."""

import argparse

from packer.cli.arguments import add_output_arguments, call, print_result
from packer.packed.bench.bench import DEFAULT_BATCH_SIZE, DEFAULT_RUNS, DEFAULT_SECONDS, bench


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="folder or table that was packed")
    parser.add_argument("packed", metavar="PACKED", help="dataset that 'packer build' made from it")
    parser.add_argument(
        "--workers",
        metavar="N",
        default="auto",
        help="number of processes (raw) and threads (packed), or 'auto' (default: auto)",
    )
    parser.add_argument(
        "--batch-size",
        metavar="N",
        type=int,
        default=DEFAULT_BATCH_SIZE,
        help=f"samples per batch (default: {DEFAULT_BATCH_SIZE})",
    )
    parser.add_argument(
        "--runs", metavar="N", type=int, default=DEFAULT_RUNS, help=f"runs of each side (default: {DEFAULT_RUNS})"
    )
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=float,
        default=DEFAULT_SECONDS,
        help=f"length of a run in seconds (default: {DEFAULT_SECONDS:g})",
    )
    parser.add_argument("--root", metavar="DIR", action="append", default=[], help="as for packer build (repeatable)")
    parser.add_argument("--boxes", metavar="BOXES", help="as for packer build, if the dataset was built with boxes")
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    print_result(options, call(bench, options))
    return 0
