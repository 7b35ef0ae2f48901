"""``packer duplicates DATASET …``."""

import argparse

import packer
from packer.cli.arguments import add_parameters, call, print_result

_LEAKS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_parameters(parser, packer.duplicates)


def run(options: argparse.Namespace) -> int:
    result = call(packer.duplicates, options)
    print_result(options, result)
    return _LEAKS if result.leaks else 0
