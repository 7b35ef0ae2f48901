"""``packer inspect DATASET …``."""

import argparse
import json

import packer
from packer.cli.arguments import add_output_arguments, print_result
from packer.cli.output import print_out
from shardspec.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("datasets", metavar="DATASET", nargs="+", help="folder of a packed dataset")
    parser.add_argument(
        "--by",
        metavar="FIELD",
        help="count samples, items and classes by this field; of several datasets, list values that occur in more than "
        "one (exit status 1 if there are any)",
    )
    parser.add_argument(
        "--history", action="store_true", help="list the generations: when, how and by which version each was made"
    )
    parser.add_argument(
        "--statistics",
        action="store_true",
        help="show mean and standard deviation of the channels of all images, and store the sums of each image as a column",
    )
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    if options.by is not None and options.history:
        raise UsageError("read only without `by`, which counts the values of a field", option="history")
    if options.statistics and (options.by is not None or options.history or len(options.datasets) > 1):
        raise UsageError("read only with one dataset, and without `by` and `history`", option="statistics")
    if options.statistics:
        print_result(options, packer.pixel_statistics(options.datasets[0], progress=not options.quiet))
        return 0
    if options.by is not None and len(options.datasets) == 1:
        print_result(options, packer.count_values(options.datasets[0], by=options.by))
        return 0
    if options.by is not None:
        leaks = packer.find_leaks(options.datasets, by=options.by, progress=not options.quiet)
        print_result(options, leaks)
        return 1 if leaks.found else 0
    reports = [packer.inspect(dataset) for dataset in options.datasets]
    if options.json and len(reports) > 1:
        print_out(json.dumps([report.to_json() for report in reports]))
        return 0
    for number, report in enumerate(reports):
        if number:
            print_out()
        if options.history and not options.json:
            print_out(report.describe_history())
        else:
            print_result(options, report)
    return 0
