"""``packer split DATASET OUT --by FIELD --ratios train=0.8,val=0.1,test=0.1``, or ``--into FIELD``."""

import argparse

from packer.cli.arguments import add_row_arguments, print_result, row_options
from packer.packed.split import split
from shardspec.formats import FORMATS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the dataset, what must stay together, and the shares."""
    parser.add_argument("dataset", metavar="DATASET", help="folder of a packed dataset")
    parser.add_argument("out", metavar="OUT", help="folder: each split becomes a dataset OUT/NAME")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument(
        "--by",
        metavar="FIELD",
        help="keep samples with the same value of this field together: source, or a column of groups",
    )
    how.add_argument(
        "--into", metavar="FIELD", help="make each value of this field a dataset OUT/VALUE: a column of official splits"
    )
    parser.add_argument(
        "--ratios",
        metavar="NAME=SHARE,…",
        help="with --by, the share of the samples for each split (default train=0.8,val=0.1,test=0.1)",
    )
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="with --by, seed of the splits (default 0)")
    parser.add_argument("--format", choices=sorted(FORMATS), help="format of the shards (default: the dataset's)")
    add_row_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Split, and print where every sample went."""
    chosen = {"by": options.by, "ratios": options.ratios, "seed": options.seed, "into": options.into}
    print_result(options, split(options.dataset, options.out, **chosen, format=options.format, **row_options(options)))
    return 0
