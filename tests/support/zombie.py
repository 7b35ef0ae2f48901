"""A worker that is believed dead, and is not: it does one unit of the plan in a folder, and stops (SIGSTOP) just before
it publishes the result, until somebody continues it. Run as a program: ``zombie.py OUT DO NUMBER``.

It prints what became of its unit as one JSON line.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from packer.jobs.plan import Unit
from packer.jobs.worker import open_work
from packer.steps.chain import StepResources
from packer.workspace import Workspace
from shardspec.errors import ShardspecError


def main(out: Path, do: str, number: int) -> None:
    """Do the unit."""
    publishes = {"task": "os.link", "shard": "os.rename"}[do]
    stopped = False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal stopped
        named = [os.fsdecode(a) for a in arguments[:2] if isinstance(a, str | bytes | os.PathLike)]
        if event == publishes and not stopped and any(".zombie." in Path(name).name for name in named[:1]):
            stopped = True
            os.kill(os.getpid(), signal.SIGSTOP)

    work = open_work(Workspace(out / ".build", owner="zombie"), StepResources())
    sys.addaudithook(hook)
    try:
        found: dict[str, Any] = {"result": work.run(Unit(do, number), {}, lambda *_: None)}  # type: ignore[arg-type]
    except ShardspecError as error:
        found = {"error": str(error)}
    print(json.dumps({**found, "stopped": stopped}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
