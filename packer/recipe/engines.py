"""The table of engines: where the units of a job run, and what each engine can do."""

from collections.abc import Mapping
from dataclasses import dataclass

from shardspec.registry import Entry


@dataclass(frozen=True)
class EngineEntry(Entry):
    """One engine. Its target is called with the workspace, a function that opens the work, and a `Team`.

    Attributes
    ----------
    takes_functions : bool
        Whether it can run steps passed as functions and take arrays in the source, which exist in this process only.
    limits_items : bool
        Whether it can end an item that takes too long.
    shares_detector : bool
        Whether one process may run the detector for all workers.
    many_workers : bool
        Whether it runs several units at a time.
    """

    takes_functions: bool = False
    limits_items: bool = False
    shares_detector: bool = False
    many_workers: bool = False

    def describe(self, workers: int) -> str:
        """Where the work is done, in words."""
        if not self.many_workers:
            return "in this process"
        return f"by {workers} worker processes" if workers > 1 else "by 1 worker process"


ENGINES: Mapping[str, EngineEntry] = {
    "inline": EngineEntry("packer.jobs.engines.inline:InlineEngine", takes_functions=True),
    "processes": EngineEntry(
        "packer.jobs.engines.processes:ProcessesEngine", limits_items=True, shares_detector=True, many_workers=True
    ),
}

FOR_FUNCTIONS = next(name for name, engine in ENGINES.items() if engine.takes_functions)
"""The engine for a build with steps passed as functions."""


@dataclass(frozen=True)
class Team:
    """The workers of an engine.

    Attributes
    ----------
    workers : int
    item_timeout : float
        Seconds that one item may take.
    decodes_ahead : bool
        Whether a worker decodes the next frames while it detects (`packer.steps.chain.Equipment`).
    shares_detector : bool
        Whether one extra process runs the detector for all workers.
    """

    workers: int
    item_timeout: float
    decodes_ahead: bool = False
    shares_detector: bool = False
