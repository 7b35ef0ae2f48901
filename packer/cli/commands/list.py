"""``packer list NAME ROOT -o TABLE``."""

import argparse

from packer.cli.arguments import add_output_arguments, call, print_result
from packer.known.listing import KNOWN, list_dataset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", choices=sorted(KNOWN), help=f"dataset: {', '.join(sorted(KNOWN))}")
    parser.add_argument("root", metavar="ROOT", help="folder of the dataset, laid out as published")
    parser.add_argument(
        "-o",
        "--out",
        metavar="TABLE",
        help="table to write (.csv, .jsonl, .parquet), replaced if it exists (default: only count)",
    )
    group = parser.add_argument_group("what is listed")
    group.add_argument(
        "--compression", metavar="NAME,…", help="compressions to list, such as c23; required if there are several"
    )
    group.add_argument(
        "--methods", metavar="NAME,…", help="forgery methods to list (default: all that have official splits)"
    )
    group.add_argument("--splits", metavar="NAME,…", help="splits to list (default: all)")
    group.add_argument(
        "--lists",
        metavar="PATH",
        help="file or folder with the official lists, if they are not in ROOT; none lists without splits",
    )
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    print_result(options, call(list_dataset, options))
    return 0
