"""Writers that are killed at every operation on files, one after another. Run as a program:
``writer_crashes.py FOLDER FIRST STEP [overwrite]``.

Each round forks, writes in the child, and has the child kill itself with a real SIGKILL just before its k-th operation;
then another writer writes the same samples into the same folder. It prints one JSON line per round: what a reader finds
after the crash, and the dataset in the end.
"""

import json
import shutil
import sys
from pathlib import Path

import packer
from packer.jobs.engines.inline import InlineEngine
from shardspec.errors import NotADatasetError
from shardspec.layout import Layout
from support.crash_points import run_hooked
from support.packed import fingerprints, read_samples


def write(out: Path, numbers: range, overwrite: bool) -> None:
    """A few samples in several shards."""
    with packer.Writer(out, overwrite=overwrite, shard_size=700, progress=False) as writer:
        for number in numbers:
            writer.write(key=f"sample {number}", x=number)


def main(folder: Path, first: int, step: int, overwrite: bool) -> None:
    """Crash at every `step`-th operation from the `first` one on."""
    assert InlineEngine.__module__ in sys.modules  # loaded before the forks, once for all
    write(folder / "old", range(3), overwrite=False)
    for kill_at in range(first, 10_000, step):
        out = folder / f"{kill_at:04d}"
        if overwrite:
            shutil.copytree(folder / "old", out)
        killed = run_hooked(lambda out=out: write(out, range(100, 140), overwrite), out, kill_at)[1]
        try:
            Layout(out).load()
            found = [row["x"].item() for row in read_samples(out)]
            assert not packer.verify(out, progress=False).problems
        except NotADatasetError:
            found = None
        committed = found is not None and 100 in found
        write(out, range(100, 140), overwrite or committed)
        assert not packer.verify(out, deep=True, progress=False).problems
        print(json.dumps({"killed": killed, "found": found, "after": fingerprints(out)}), flush=True)
        shutil.rmtree(out)
        if not killed:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] == ["overwrite"])
