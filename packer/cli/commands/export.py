"""``packer export DATASET DIR``."""

import argparse
from dataclasses import replace
from pathlib import Path

import packer
from packer.cli.arguments import add_parameters, call, print_made


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_parameters(parser, packer.export)


def run(options: argparse.Namespace) -> int:
    result = call(packer.export, options)
    print_made(options, replace(result, table=Path(options.out, result.table.name)), options.out)
    return 0
