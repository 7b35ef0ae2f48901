"""``packer inspect OUT``."""

import argparse
import json
from pathlib import Path

from packer.inspect import describe, render


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The dataset, and the form of the answer."""
    parser.add_argument("dataset", metavar="DATASET", type=Path, help="folder of a packed dataset")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print what the manifest says."""
    print(json.dumps(describe(options.dataset)) if options.json else render(options.dataset))
    return 0
