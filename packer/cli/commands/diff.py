"""``packer diff A B``."""

import argparse

import packer
from packer.cli.arguments import add_parameters, call, print_result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_parameters(parser, packer.diff)


def run(options: argparse.Namespace) -> int:
    difference = call(packer.diff, options)
    print_result(options, difference)
    return 1 if difference.found else 0
