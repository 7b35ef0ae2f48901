"""``packer split DATASET OUT --by FIELD --ratios train=0.8,val=0.1,test=0.1``, ``--folds K``, or ``--into FIELD``."""

import argparse
from dataclasses import replace
from pathlib import Path

from packer.cli.arguments import add_row_arguments, print_result, row_options
from packer.packed.split.split import split
from shardspec.formats import FORMATS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the dataset, what must stay together, and the shares."""
    parser.add_argument("dataset", metavar="DATASET", help="folder of a packed dataset")
    parser.add_argument("out", metavar="OUT", help="folder: each split becomes a dataset OUT/NAME")
    parser.add_argument(
        "--by",
        metavar="FIELD",
        action="append",
        help="keep samples with the same value of this field together: source, or a column of groups (repeatable: "
        "samples that share a value of any of the fields stay together)",
    )
    parser.add_argument(
        "--into", metavar="FIELD", help="make each value of this field a dataset OUT/VALUE: a column of official splits"
    )
    parser.add_argument(
        "--ratios",
        metavar="NAME=SHARE,…",
        help="share of the samples for each split (default train=0.8,val=0.1,test=0.1)",
    )
    parser.add_argument(
        "--folds", metavar="K", type=int, help="instead of --ratios, K folds of equal shares: OUT/fold-0, OUT/fold-1, …"
    )
    parser.add_argument(
        "--stratify",
        metavar="FIELD",
        help="give every split its share of each value of this field: label, for example",
    )
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="seed of the splits (default 0)")
    parser.add_argument("--format", choices=sorted(FORMATS), help="format of the shards (default: the dataset's)")
    add_row_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Split, and print where every sample went."""
    chosen = {name: getattr(options, name) for name in ("by", "ratios", "folds", "stratify", "seed", "into")}
    result = split(options.dataset, options.out, **chosen, format=options.format, **row_options(options))
    parts = [replace(part, result=replace(part.result, path=Path(options.out, part.name))) for part in result.parts]
    print_result(options, replace(result, parts=tuple(parts)))
    return 0
