"""``packer verify DATASET``."""

import argparse
import json
from pathlib import Path

from packer.packed.verify.verify import verify
from shardspec.errors import VerifyError
from shardspec.layout import BUILD_FOLDER, Layout
from shardspec.wording import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The dataset, and how closely to look."""
    parser.add_argument("dataset", metavar="DATASET", type=Path, help="folder of a packed dataset")
    parser.add_argument(
        "--deep", action="store_true", help="also decode every value: shapes, dtypes, ranges, unique keys, the index"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(options: argparse.Namespace) -> int:
    """Print what was compared; exit status 1 with every problem, if there is any."""
    report = verify(options.dataset, deep=options.deep, progress=not options.quiet)
    if options.json:
        print(json.dumps(report.to_json()))
        return 1 if report.problems else 0
    if report.problems:
        lines = "\n".join(f"  {problem}" for problem in report.problems)
        raise VerifyError(f"{options.dataset}: {counted(len(report.problems), 'problem')}:\n{lines}")
    how = "every value decoded" if report.deep else "--deep decodes every value as well"
    print(
        f"{options.dataset}: {counted(report.samples, 'sample')} in {counted(report.shards, 'shard')}, {counted(report.files, 'file')}, "
        f"{report.bytes / 1e6:.1f} MB as the manifest says ({how})"
    )
    if report.unlisted:
        print(f"not part of the dataset: {', '.join(report.unlisted)}")
    if BUILD_FOLDER in report.unlisted:
        held = Layout(options.dataset).describe_build()
        print(f"{BUILD_FOLDER} holds {held}; to drop it, delete {BUILD_FOLDER}")
    return 0
