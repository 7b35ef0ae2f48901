"""Table of engines, which run the units of a job, and their abilities."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from shardspec.errors import MissingDependencyError, UsageError
from shardspec.registry import ImportTarget


@dataclass(frozen=True)
class EngineEntry(ImportTarget):
    """An engine.

    Its target is called with the workspace, a function that opens the work, and a `Team`. The target of an engine with
    many hosts is a `packer.jobs.hosts.base.Cluster`, whose hosts run agents.

    Attributes
    ----------
    takes_functions : bool
        Whether it can run functions as steps and take arrays in the source, which exist only in this process.
    limits_items : bool
        Whether it enforces a time limit per item.
    shares_detector : bool
        Whether one process can run the detector for all workers.
    many_workers : bool
        Whether it runs several units at a time.
    many_hosts : bool
        Whether agents on the hosts of a cluster run the tasks.
    inside : tuple of str
        Environment variable that must be set, its meaning, and advice; empty for none.
    library : str or None
        Library that must be installed.
    """

    takes_functions: bool = False
    limits_items: bool = False
    shares_detector: bool = False
    many_workers: bool = False
    many_hosts: bool = False
    inside: tuple[str, ...] = ()
    library: str | None = None

    def check_usable(self, name: str) -> None:
        """Check that the engine works in this process.

        Raises
        ------
        UsageError
            If this process is not inside the engine's cluster.
        MissingDependencyError
            If a library is not installed.
        """
        if self.inside and not os.environ.get(self.inside[0]):
            variable, what, advice = self.inside
            raise UsageError(
                f"{name} works inside {what}, found none ({variable} is not set): {advice}", option="engine"
            )
        if self.library is not None and find_spec(self.library) is None:
            raise MissingDependencyError(
                f"engine {name!r} needs the library {self.library!r}, which is not installed",
                hint=f'pip install "facepack[{self.extra}]"',
            )


ENGINES: Mapping[str, EngineEntry] = {
    "inline": EngineEntry("packer.jobs.engines.inline:InlineEngine", takes_functions=True),
    "processes": EngineEntry(
        "packer.jobs.engines.processes:ProcessesEngine", limits_items=True, shares_detector=True, many_workers=True
    ),
    "srun": EngineEntry(
        "packer.jobs.hosts.srun:SrunCluster",
        limits_items=True,
        many_workers=True,
        many_hosts=True,
        inside=("SLURM_JOB_ID", "a Slurm allocation", "begin with salloc or sbatch, as docs/cluster.md shows"),
    ),
    "ray": EngineEntry(
        "packer.jobs.hosts.ray:RayCluster",
        extra="ray",
        limits_items=True,
        many_workers=True,
        many_hosts=True,
        library="ray",
    ),
}

FOR_FUNCTIONS = next(name for name, engine in ENGINES.items() if engine.takes_functions)
"""Engine for builds with functions as steps."""


@dataclass(frozen=True)
class Team:
    """Workers of an engine on this host.

    Attributes
    ----------
    workers : int
    item_timeout : float
        Time limit of one item in seconds.
    decodes_ahead : bool
        Whether workers decode the next frames while they detect (`packer.steps.chain.StepResources`).
    shares_detector : bool
        Whether one extra process runs the detector for all workers.
    """

    workers: int
    item_timeout: float
    decodes_ahead: bool = False
    shares_detector: bool = False
