"""``packer compact DATASET``."""

import argparse

from packer.cli.arguments import add_job_arguments, add_output_arguments, job_options, print_made
from packer.packed.compact import compact


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the dataset, and how the job runs."""
    parser.add_argument("dataset", metavar="DATASET", help="folder of a packed dataset")
    add_output_arguments(parser)
    add_job_arguments(parser, ("workers", "engine"))


def run(options: argparse.Namespace) -> int:
    """Compact, and print what was removed."""
    print_made(options, compact(options.dataset, **job_options(options)), options.dataset)
    return 0
