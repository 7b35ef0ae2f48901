"""Changes of columns that are killed at every operation on files, one after another. Run as a program:
``column_crashes.py DATASET FOLDER add|drop FIRST STEP``.

Each round copies the dataset, forks, and has the child kill itself with a real SIGKILL just before its k-th operation.
It prints one JSON line per round: the operation, the dataset's digest and problems at that moment, and those after the
same call was made again, with the files that are there then.
"""

import json
import shutil
import sys
from functools import partial
from pathlib import Path

import packer
from readers import open_dataset
from shardspec.layout import Layout
from support.crash_points import run_hooked
from support.packed import fingerprints

TABLE = {"x": "new", "y": 2.5}
"""What a change gives every sample: `x` is there already, `y` is not."""


def change(out: Path, kind: str) -> None:
    """The change that is crashed."""
    if kind == "drop":
        packer.drop_field(out, "x")
        return
    keys = open_dataset(out).column("key")
    table = {"key": keys, **{name: [value] * len(keys) for name, value in TABLE.items()}}
    packer.add(out, table, replace=True, progress=False)


def state(out: Path) -> tuple[str, list[str]]:
    """The dataset's digest, and what is wrong with it."""
    open_dataset(out).read_batch(range(len(open_dataset(out))))
    return Layout(out).load().digest, list(packer.verify(out, progress=False).problems)


def main(dataset: Path, folder: Path, kind: str, first: int, step: int) -> None:
    """Kill at every `step`-th operation from the `first` one on, until the change comes to its end."""
    for kill_at in range(first, 1000, step):
        out = folder / f"{kind}-{kill_at}"
        shutil.copytree(dataset, out)
        _, operation = run_hooked(partial(change, out, kind), out, kill_at)
        digest, problems = state(out)
        line = {"operation": operation, "digest": digest, "problems": problems}
        if operation and not (kind == "drop" and "x" not in Layout(out).load().schema):
            change(out, kind)
        elif operation:
            packer.add(out, {"key": ["nobody"], "x": [1]}, progress=False, allow_unknown=True, allow_missing=True)
            packer.drop_field(out, "x")
        digest, problems = state(out)
        print(json.dumps({**line, "end": digest, "end_problems": problems, "files": fingerprints(out)}))
        shutil.rmtree(out)
        if not operation:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
