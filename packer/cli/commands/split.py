"""``packer split DATASET OUT --by FIELD --ratios train=0.8,val=0.1,test=0.1``, ``--folds K``, or ``--into FIELD``."""

import argparse
from dataclasses import replace
from pathlib import Path

import packer
from packer.cli.arguments import add_parameters, call, print_result
from shardspec.layout import is_url


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_parameters(parser, packer.split)


def run(options: argparse.Namespace) -> int:
    result = call(packer.split, options)
    if not is_url(options.out):  # as the user typed it, so that it fits the next command
        parts = [replace(part, result=replace(part.result, path=Path(options.out, part.name))) for part in result.parts]
        result = replace(result, parts=tuple(parts))
    print_result(options, result)
    return 0
