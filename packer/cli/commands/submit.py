"""``packer submit SOURCE OUT``."""

import argparse
from pathlib import Path

import packer
from packer.cli.arguments import add_parameters, call, print_result
from packer.cli.commands.build import add_build_options, given_options, read_config
from packer.cli.line import CommandParser
from packer.recipe.command_line import option_words


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_parameters(parser, packer.submit, left_out=("recipe", "words"))
    if isinstance(parser, CommandParser):
        parser.take_options("--sbatch")
    add_build_options(parser)


def run(options: argparse.Namespace) -> int:
    given = given_options(options)
    words = option_words(given)
    chosen = {}
    if options.config is not None:
        chosen = read_config(options.config)
        words = [f"--config={Path(options.config).absolute()}", *words]
    print_result(options, call(packer.submit, options, words=words, **{**chosen, **given}))
    return 0
