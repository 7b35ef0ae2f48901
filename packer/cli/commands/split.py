"""``packer split DATASET OUT --by FIELD --ratios train=0.8,val=0.1,test=0.1``, ``--folds K``, or ``--into FIELD``."""

import argparse
from dataclasses import replace
from pathlib import Path

from packer.cli.arguments import add_row_arguments, call, print_result
from packer.packed.split.split import split
from shardspec.formats import FORMATS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", metavar="DATASET", help="folder of a packed dataset")
    parser.add_argument("out", metavar="OUT", help="output folder; each split becomes a dataset OUT/NAME")
    parser.add_argument(
        "--by",
        metavar="FIELD",
        action="append",
        help="keep samples with the same value of this field together (repeatable: samples that share a value of any "
        "of the fields stay together)",
    )
    parser.add_argument(
        "--into", metavar="FIELD", help="make each value of this field, such as an official split, a dataset OUT/VALUE"
    )
    parser.add_argument(
        "--ratios", metavar="NAME=SHARE,…", help="share of each split (default: train=0.8,val=0.1,test=0.1)"
    )
    parser.add_argument("--folds", metavar="K", type=int, help="make K equal folds OUT/fold-0, OUT/fold-1, … instead")
    parser.add_argument(
        "--stratify", metavar="FIELD", help="give every split the same share of each value of this field, such as label"
    )
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="seed of the splits (default: 0)")
    parser.add_argument("--format", choices=sorted(FORMATS), help="format of the shards (default: as in the dataset)")
    add_row_arguments(parser)


def run(options: argparse.Namespace) -> int:
    result = call(split, options)
    parts = [replace(part, result=replace(part.result, path=Path(options.out, part.name))) for part in result.parts]
    print_result(options, replace(result, parts=tuple(parts)))
    return 0
