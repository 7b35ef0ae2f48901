"""``packer copy DATASET OUT``."""

import argparse

from packer.cli.arguments import add_output_arguments, call, print_result
from packer.packed.copy.copy import copy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "dataset",
        metavar="DATASET",
        help="folder or URL (s3://, gs://, az://, https://, hf://datasets/ORG/NAME) of a packed dataset",
    )
    parser.add_argument(
        "out", metavar="OUT", help="folder or URL; must be new, empty, or hold an unfinished copy to resume"
    )
    parser.add_argument(
        "--where",
        metavar="EXPRESSION",
        help="copy only the samples for which this holds, such as \"label == 'fake' and score > 0.9\"",
    )
    parser.add_argument("--split", metavar="NAME", help="copy only the samples of this official split, such as train")
    parser.add_argument("--overwrite", action="store_true", help="replace another dataset")
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    print_result(options, call(copy, options))
    return 0
