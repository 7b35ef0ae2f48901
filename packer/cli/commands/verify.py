"""``packer verify DATASET``."""

import argparse

import packer
from packer.cli.arguments import add_parameters, call, print_result
from shardspec.errors import VerifyError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_parameters(parser, packer.verify)


def run(options: argparse.Namespace) -> int:
    report = call(packer.verify, options)
    if report.problems and not options.json:
        raise VerifyError(report.describe())
    print_result(options, report)
    return 0 if report.ok else 1
