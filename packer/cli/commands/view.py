"""``packer view DATASET …``."""

import argparse

import packer
from packer.cli.arguments import add_parameters, call, print_result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_parameters(parser, packer.view)


def run(options: argparse.Namespace) -> int:
    with call(packer.view, options) as viewer:
        print_result(options, viewer)
        viewer.wait()
    return 0
