"""``packer inspect DATASET …``."""

import argparse
import json
from pathlib import Path

from packer.packed.inspect import describe, find_leaks, render, render_leaks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The datasets, and the form of the answer."""
    parser.add_argument("datasets", metavar="DATASET", nargs="+", type=Path, help="folder of a packed dataset")
    parser.add_argument(
        "--by",
        metavar="FIELD",
        help="of several datasets, name the values of this field (source, say) that occur in more than one; "
        "exit status 1 if there are any",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (a list for several datasets)")


def run(options: argparse.Namespace) -> int:
    """Print what the manifests say, or the leaks between the datasets."""
    paths: list[Path] = options.datasets
    if options.by is not None:
        leaks = find_leaks(paths, options.by)
        facts = {
            "by": options.by,
            "datasets": [str(path) for path in paths],
            "leaks": [leak.to_json() for leak in leaks.found],
            "samples_without_value": leaks.without,
        }
        print(json.dumps(facts) if options.json else render_leaks(leaks, paths, options.by))
        return 1 if leaks.found else 0
    if options.json:
        found = [describe(path) for path in paths]
        print(json.dumps(found[0] if len(found) == 1 else found))
    else:
        print("\n\n".join(render(path) for path in paths))
    return 0
