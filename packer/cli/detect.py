"""``packer detect SOURCE OUT``."""

import argparse
import dataclasses

from packer.builds.detect import DETECT_OPTIONS, detect
from packer.cli.arguments import add_option, add_output_arguments
from packer.cli.build import print_build
from packer.recipe import Recipe
from packer.recipe.options import BuildOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the source, the folder, and the options of the build that matter here."""
    parser.add_argument(
        "source", metavar="SOURCE", help="a folder, or a table (.csv, .tsv, .jsonl, .parquet) with a path column"
    )
    parser.add_argument("out", metavar="OUT", help="folder of the dataset: new, empty, or with the job to resume")
    add_output_arguments(parser)
    for title, kind in (("what is made", Recipe), ("how it runs", BuildOptions)):
        group = parser.add_argument_group(title)
        for spec in dataclasses.fields(kind):
            if spec.name in DETECT_OPTIONS:
                add_option(group, spec)


def run(options: argparse.Namespace) -> int:
    """Detect, and print what was packed."""
    chosen = {name: value for name, value in vars(options).items() if name in DETECT_OPTIONS}
    return print_build(options, lambda: detect(options.source, options.out, progress=not options.quiet, **chosen))
