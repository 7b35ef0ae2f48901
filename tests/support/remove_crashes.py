"""Removals that are killed at every operation on files, one after another. Run as a program:
``remove_crashes.py DATASET FOLDER FIRST STEP WHERE``.

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
from packer.packed import remove as module
from packer.recipe.options import BuildOptions
from support.column_crashes import state
from support.crash_points import run_hooked
from support.packed import fingerprints


def main(dataset: Path, folder: Path, first: int, step: int, where: str) -> None:
    """Kill at every `step`-th operation from the `first` one on, until the removal comes to its end."""
    setattr(module, "BuildOptions", partial(BuildOptions, engine="inline"))  # noqa: B010 -- the operations of this process

    def call(out: Path) -> None:
        packer.remove(out, where=where, because="asked for", progress=False)

    for kill_at in range(first, 1000, step):
        out = folder / f"{kill_at}"
        shutil.copytree(dataset, out)
        _, operation = run_hooked(partial(call, out), out, kill_at)
        digest, problems = state(out)
        line = {"operation": operation, "digest": digest, "problems": problems}
        call(out)
        digest, problems = state(out)
        print(json.dumps({**line, "end": digest, "end_problems": problems, "files": fingerprints(out)}))
        shutil.rmtree(out)
        if not operation:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
