"""``packer detect SOURCE OUT``."""

import argparse

from packer.builds.build import DETECT_OPTIONS, detect
from packer.cli.arguments import add_output_arguments
from packer.cli.commands.build import add_options, print_build


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="SOURCE", help="a folder, or a table (.csv, .tsv, .jsonl, .parquet) with a path column"
    )
    parser.add_argument(
        "out",
        metavar="OUT",
        help="output folder, or a URL that begins with s3://, gs:// or az://; must be new, empty, or hold an unfinished "
        "job to resume",
    )
    add_output_arguments(parser)
    add_options(parser, DETECT_OPTIONS)


def run(options: argparse.Namespace) -> int:
    chosen = {name: value for name, value in vars(options).items() if name in DETECT_OPTIONS}
    return print_build(options, lambda: detect(options.source, options.out, progress=not options.quiet, **chosen))
