"""``packer submit SOURCE OUT``."""

import argparse
from pathlib import Path

from packer.cli.arguments import add_output_arguments, print_result
from packer.cli.commands.build import add_build_options, given_options, read_config
from packer.cli.line import CommandParser
from packer.cluster.slurm import ELEMENTS
from packer.cluster.submit import submit
from packer.recipe.command_line import option_words


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="as for packer build; all hosts need it at this path")
    parser.add_argument("out", metavar="OUT", help="output folder, on a file system that all hosts share")
    add_output_arguments(parser)
    group = parser.add_argument_group("how it is submitted")
    group.add_argument(
        "--slurm",
        action="store_true",
        help="submit a job array of agents and a final job (default: only plan, for agents started with packer work OUT)",
    )
    group.add_argument(
        "--array",
        metavar="N",
        help=f"number of agents, or N%%M for M at a time (default: {ELEMENTS})",
    )
    group.add_argument(
        "--sbatch", metavar="OPTIONS", default="", help='options for sbatch, such as "--partition=cpu --time=60"'
    )
    if isinstance(parser, CommandParser):
        parser.take_options("--sbatch")
    group.add_argument("--print", action="store_true", help="show the scripts, and neither submit nor write anything")
    add_build_options(parser)


def run(options: argparse.Namespace) -> int:
    given = given_options(options)
    words = option_words(given)
    chosen = {}
    if options.config is not None:
        chosen = read_config(options.config)
        words = [f"--config={Path(options.config).absolute()}", *words]
    how = {name: getattr(options, name) for name in ("slurm", "array", "sbatch", "print")}
    result = submit(options.source, options.out, words=words, progress=not options.quiet, **how, **{**chosen, **given})
    print_result(options, result)
    return 0
