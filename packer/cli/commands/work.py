"""``packer work OUT``."""

import argparse

from packer.cli.arguments import add_output_arguments, call, print_result
from packer.cluster.agent import work


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", help="folder of a build that 'packer submit' has planned")
    add_output_arguments(parser)
    parser.add_argument(
        "--workers",
        metavar="N",
        default="auto",
        help="number of worker processes; 'auto' depends on the usable cores and memory (default: auto)",
    )
    parser.add_argument(
        "--time-limit",
        metavar="MIN",
        default="auto",
        help="end within this many minutes; 'auto' takes the limit of the Slurm job (default: auto)",
    )


def run(options: argparse.Namespace) -> int:
    print_result(options, call(work, options))
    return 0
