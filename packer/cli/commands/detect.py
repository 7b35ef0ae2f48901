"""``packer detect SOURCE OUT``."""

import argparse

import packer
from packer.builds.detect import DETECT_OPTIONS
from packer.cli.arguments import add_parameters, call, print_job
from packer.cli.commands.build import add_options, given_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_parameters(parser, packer.detect)
    add_options(parser, DETECT_OPTIONS)


def run(options: argparse.Namespace) -> int:
    print_job(options, lambda: call(packer.detect, options, **given_options(options)), options.out)
    return 0
