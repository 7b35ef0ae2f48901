"""Which nodes of a cluster write the results of the stages of a job."""

import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

NODE = "PACKER_TEST_NODE"
"""Environment variable of each node of a cluster: its name. The coordinating process has none."""

PLACES = "PACKER_TEST_PLACES"
"""Environment variable: the file to which each process appends the stage and the node of its first result of a stage."""

NODES = "PACKER_TEST_NODES"
"""Environment variable: the number of nodes that must take part in each stage; a process waits until they do."""

COORDINATOR = "coordinator"

LIMIT_S = 300.0

_STAGES = {"parts": "tasks", "scans": "tasks", "staging": "shards"}
_WORKERS_ONLY = ("part-", "scan-", "shard-")


def read_places(log: Path) -> dict[str, set[str]]:
    """The nodes that have written results, by stage."""
    found = defaultdict(set)
    for line in log.read_text().splitlines():
        stage, node = line.split()
        found[stage].add(node)
    return found


def watch() -> None:
    """Log the first result of each stage that this process writes, and wait until all nodes have begun with one.

    Called in every Python process by the module ``sitecustomize`` in ``ray_hooks``.
    """
    if PLACES not in os.environ:
        return
    begun: set[tuple[str, str]] = set()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str) or arguments[1] not in ("wb", "xb", "w", "x", "r+b"):
            return
        path = Path(arguments[0])
        stages = {_STAGES[part] for part in path.parts if part in _STAGES}
        log = os.environ[PLACES]
        stages = {stage for stage in stages if (log, stage) not in begun}
        if not stages or not any(part.startswith(_WORKERS_ONLY) for part in path.parts):
            return
        begun.update((log, stage) for stage in stages)
        with Path(log).open("a") as file:
            file.writelines(f"{stage} {os.environ.get(NODE, COORDINATOR)}\n" for stage in stages)
        until_s = time.monotonic() + LIMIT_S
        while any(len(read_places(Path(log))[stage]) < int(os.environ.get(NODES, 1)) for stage in stages):
            if time.monotonic() > until_s:
                raise RuntimeError(f"not all nodes take part: {read_places(Path(log))}")
            time.sleep(0.02)

    sys.addaudithook(hook)
