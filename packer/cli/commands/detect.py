"""``packer detect SOURCE OUT``."""

import argparse

import packer
from packer.builds.build import DETECT_OPTIONS
from packer.cli.arguments import add_parameters, call
from packer.cli.commands.build import add_options, given_options, print_build


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_parameters(parser, packer.detect)
    add_options(parser, DETECT_OPTIONS)


def run(options: argparse.Namespace) -> int:
    return print_build(options, lambda: call(packer.detect, options, **given_options(options)))
