"""The table of engines: where the units of a job run, and what each engine can do."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

from shardspec.errors import MissingDependencyError, UsageError
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
    many_hosts : bool
        Whether it finds its own hosts, and so decides how many workers there are.
    inside : tuple of str
        An environment variable that must be set, what it means, and how to get there; empty for none.
    library : str or None
        A library that must be installed.
    """

    takes_functions: bool = False
    limits_items: bool = False
    shares_detector: bool = False
    many_workers: bool = False
    many_hosts: bool = False
    inside: tuple[str, ...] = ()
    library: str | None = None

    def check_usable(self, name: str) -> None:
        """Check that the engine can work in this process.

        Raises
        ------
        UsageError
            If this process does not run where the engine works.
        MissingDependencyError
            If a library is not installed.
        """
        if self.inside and not os.environ.get(self.inside[0]):
            variable, what, advice = self.inside
            raise UsageError(f"engine: {name} works inside {what}, found none ({variable} is not set): {advice}")
        if self.library is not None and find_spec(self.library) is None:
            raise MissingDependencyError(
                f"engine {name!r} needs the library {self.library!r}, which is not installed: "
                f'pip install "facepack[{self.extra}]"'
            )


ENGINES: Mapping[str, EngineEntry] = {
    "inline": EngineEntry("packer.jobs.engines.inline:InlineEngine", takes_functions=True),
    "processes": EngineEntry(
        "packer.jobs.engines.processes:ProcessesEngine", limits_items=True, shares_detector=True, many_workers=True
    ),
    "srun": EngineEntry(
        "packer.jobs.engines.srun:SrunEngine",
        limits_items=True,
        many_workers=True,
        many_hosts=True,
        inside=("SLURM_JOB_ID", "a Slurm allocation", "begin with salloc or sbatch, as docs/cluster.md shows"),
    ),
    "ray": EngineEntry(
        "packer.jobs.engines.ray:RayEngine",
        extra="ray",
        limits_items=True,
        many_workers=True,
        many_hosts=True,
        library="ray",
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
        How many; for an engine that finds its own hosts, how many at most.
    item_timeout : float
        Seconds that one item may take.
    decodes_ahead : bool
        Whether a worker decodes the next frames while it detects (`packer.steps.chain.Equipment`).
    shares_detector : bool
        Whether one extra process runs the detector for all workers.
    per_node : int or None
        How many workers each host gets; None for as many as its cores and memory allow.
    worker_bytes : int
        Memory allowed for one worker.
    gpus : bool
        Whether each worker needs a GPU of its own.
    address : str or None
        Of the cluster, if the engine needs one; None for its own default.
    lost : set of str
        Hosts that were lost and are not back. The engine keeps it, also for the one that follows it in the same job.
    """

    workers: int
    item_timeout: float
    decodes_ahead: bool = False
    shares_detector: bool = False
    per_node: int | None = None
    worker_bytes: int = 0
    gpus: bool = False
    address: str | None = None
    lost: set[str] = field(default_factory=set)

    def fitting(self, cores: int, memory: int | None) -> int:
        """How many workers a host has room for, at least one.

        Parameters
        ----------
        cores : int
        memory : int or None
            Bytes; None if not known.
        """
        fitting = cores if memory is None or not self.worker_bytes else min(cores, memory // self.worker_bytes)
        return max(1, fitting)
