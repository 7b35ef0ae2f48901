"""``packer list NAME ROOT -o TABLE``."""

import argparse

from packer.cli.arguments import add_output_arguments, print_result
from packer.known.listing import KNOWN, list_dataset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the dataset, its folder, the table, and what is listed."""
    parser.add_argument("name", metavar="NAME", choices=sorted(KNOWN), help=f"the dataset: {', '.join(sorted(KNOWN))}")
    parser.add_argument("root", metavar="ROOT", help="its folder, as it is published")
    parser.add_argument(
        "-o",
        "--out",
        metavar="TABLE",
        help="the table to write (.csv, .jsonl, .parquet), replaced if it exists; without it, only count",
    )
    which = parser.add_argument_group("what is listed")
    which.add_argument(
        "--compression", metavar="NAME,…", help="compressions to list, such as c23; needed where there are several"
    )
    which.add_argument(
        "--methods", metavar="NAME,…", help="methods of forgery to list (default: all that have official splits)"
    )
    which.add_argument("--splits", metavar="NAME,…", help="splits to list (default: all)")
    which.add_argument(
        "--lists",
        metavar="PATH",
        help="the official lists, where they do not lie in ROOT: a file or a folder; none lists without them",
    )
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """List, and say what there is, what is missing, and how to pack it."""
    chosen = {name: getattr(options, name) for name in ("compression", "methods", "splits", "lists")}
    print_result(options, list_dataset(options.name, options.root, options.out, **chosen, progress=not options.quiet))
    return 0
