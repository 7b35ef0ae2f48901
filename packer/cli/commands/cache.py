"""``packer cache [DIR]``."""

import argparse

from packer.cli.arguments import print_result
from packer.packed.copy.cache import cache


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="DIR", nargs="?", help="the cache folder; by default $FACEPACK_CACHE, or ~/.cache"
    )
    parser.add_argument("--clear", action="store_true", help="delete the cached files of all datasets")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace) -> int:
    print_result(options, cache(options.folder, clear=options.clear))
    return 0
