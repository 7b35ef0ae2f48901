"""``packer split DATASET OUT --by FIELD --ratios train=0.8,val=0.1,test=0.1``, or ``--into FIELD``."""

import argparse
import json

from packer.cli.arguments import add_row_arguments, row_options
from packer.packed.split import SplitPart, parse_ratios, split
from shardspec.formats import FORMATS
from shardspec.wording import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The dataset, what must stay together, and the shares."""
    parser.add_argument("dataset", metavar="DATASET", help="folder of a packed dataset")
    parser.add_argument("out", metavar="OUT", help="folder: each split becomes a dataset OUT/NAME")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument(
        "--by", metavar="FIELD", help="samples with one value of it stay together: source, or a column of groups"
    )
    how.add_argument(
        "--into", metavar="FIELD", help="each value of it becomes a dataset OUT/VALUE: a column of official splits"
    )
    parser.add_argument(
        "--ratios",
        metavar="NAME=SHARE,…",
        help="with --by, shares of the samples (default train=0.8,val=0.1,test=0.1)",
    )
    parser.add_argument(
        "--seed", metavar="N", type=int, default=0, help="with --by, another seed gives other splits (default 0)"
    )
    parser.add_argument("--format", choices=sorted(FORMATS), help="format of the shards (default: the dataset's)")
    add_row_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Split, and print where every sample went."""
    ratios = None if options.ratios is None else parse_ratios(options.ratios)
    more = {"by": options.by, "ratios": ratios, "seed": options.seed, "into": options.into, "format": options.format}
    parts = split(options.dataset, options.out, **more, **row_options(options))
    if options.json:
        facts = {
            part.name: {
                "samples": part.samples,
                "groups": part.groups,
                **({"ratio": part.ratio} if part.value is None else {"value": part.value}),
                "digest": part.result.manifest.digest,
            }
            for part in parts
        }
        chosen = {"by": options.by} if options.into is None else {"into": options.into}
        print(json.dumps({"out": options.out, **chosen, "splits": facts}))
    else:
        print(_account(parts, options.by or options.into))
    return 0


def _account(parts: list[SplitPart], by: str) -> str:
    samples, groups = sum(part.samples for part in parts), sum(part.groups for part in parts)
    lines = [
        f"{part.result.describe()}, {part.samples / max(1, samples):.2%}{_wanted(part)}, {_values(part, by)}"
        for part in parts
    ]
    lines.append(f"samples: {' + '.join(str(part.samples) for part in parts)} = {samples}")
    lines.append(f"values of {by}: {' + '.join(str(part.groups) for part in parts)} = {groups}")
    return "\n".join(lines)


def _wanted(part: SplitPart) -> str:
    return "" if part.ratio is None else f" (wanted {part.ratio:.2%})"


def _values(part: SplitPart, by: str) -> str:
    return f"{counted(part.groups, 'value')} of {by}" if part.value is None else f"{by} {part.value}"
