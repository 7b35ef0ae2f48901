"""``packer work OUT``."""

import argparse

from packer.cli.arguments import add_output_arguments, print_result
from packer.cluster.agent import work


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder, the number of workers and the time limit."""
    parser.add_argument("out", metavar="OUT", help="folder of a dataset, with the build that packer submit has planned")
    add_output_arguments(parser)
    parser.add_argument(
        "--workers",
        metavar="N",
        default="auto",
        help="number of worker processes; 'auto' chooses it by the usable cores and memory (default auto)",
    )
    parser.add_argument(
        "--time-limit",
        metavar="MIN",
        default="auto",
        help="end in time before so many minutes have passed; 'auto' for the limit of the Slurm job (default auto)",
    )


def run(options: argparse.Namespace) -> int:
    """Work, and print what was done."""
    result = work(options.out, workers=options.workers, time_limit=options.time_limit, progress=not options.quiet)
    print_result(options, result)
    return 0
