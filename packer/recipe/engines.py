"""The table of engines, which run the units of a job, and the number of workers of this host.

``auto`` workers are resolved from the cores and memory that this process may use. The limits come from CPU affinity,
cgroups and, in a Slurm job, from the job, even if Slurm does not enforce them.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from numbers import Integral

from readers.formats.machine import available_memory, available_processors
from shardspec.errors import BuildError, MissingDependencyError, UsageError
from shardspec.registry import ImportTarget
from shardspec.wording import shorten


@dataclass(frozen=True)
class EngineEntry(ImportTarget):
    """An engine.

    Its target is called with the workspace, a function that opens the work, and a `WorkerSettings`.

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
        Whether the workers are on the hosts of a cluster.
    library : str or None
        Library that must be installed.
    """

    takes_functions: bool = False
    limits_items: bool = False
    shares_detector: bool = False
    many_workers: bool = False
    many_hosts: bool = False
    library: str | None = None

    def check_usable(self, name: str) -> None:
        """Raise `MissingDependencyError` if a library that the engine needs is not installed."""
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
    "ray": EngineEntry(
        "packer.jobs.engines.ray:RayEngine",
        extra="ray",
        limits_items=True,
        shares_detector=True,
        many_workers=True,
        many_hosts=True,
        library="ray",
    ),
}

FOR_FUNCTIONS = next(name for name, engine in ENGINES.items() if engine.takes_functions)
"""Engine for builds with functions as steps."""


@dataclass(frozen=True)
class ClusterSettings:
    """Workers of an engine with many hosts.

    Attributes
    ----------
    address : str or None
        Address of the cluster; None for its own default.
    per_node : int or None
        Workers on each node; None for as many as its cores and memory allow.
    in_all : int or None
        Workers on all nodes together; None for no limit.
    worker_bytes : int
        Memory that one worker needs.
    gpus : float
        GPUs for each group of workers that share a detector; 0 if the work needs no GPU.
    one_per_gpu : bool
        Whether each group is a single worker by default, because each worker holds a model on the GPU.
    """

    address: str | None
    per_node: int | None
    in_all: int | None
    worker_bytes: int
    gpus: float
    one_per_gpu: bool = False


@dataclass(frozen=True)
class WorkerSettings:
    """Workers of an engine.

    Attributes
    ----------
    workers : int
        Number of workers on this host.
    item_timeout : float
        Time limit of one item in seconds.
    decodes_ahead : bool
        Whether workers decode the next frames while they detect (`packer.steps.chain.StepResources`).
    shares_detector : bool
        Whether one extra process runs the detector for all workers of a host.
    cluster : ClusterSettings or None
        Given to an engine with many hosts.
    """

    workers: int
    item_timeout: float
    decodes_ahead: bool = False
    shares_detector: bool = False
    cluster: ClusterSettings | None = None


WORKER_BYTES: Mapping[str, int] = {
    "faces": 1500 * 10**6,
    "images": 400 * 10**6,
    "sound": 400 * 10**6,
    "rows": 300 * 10**6,
}
"""Memory of one worker by preset, and for ``"rows"``, work over packed datasets.

It is enough for 1080p frames and the detector, or for images of tens of megapixels.
"""

_DIGITS = 16

_CONNECT_LIMIT_S = 20.0

MOST_WORKERS = 100_000
"""Largest number of workers; more must be a mistake."""


_RAYS_OWN = ("auto", "local")
"""Addresses that Ray itself knows: the cluster of this machine, and a new one."""


def check_reachable(address: str | None) -> None:
    """Check that a server listens at ``host:port``, the address of a Ray cluster. Ray itself would try for minutes.

    Parameters
    ----------
    address : str or None
        None for the address in ``RAY_ADDRESS``.

    Raises
    ------
    UsageError
        If the address has another form.
    BuildError
        If no server listens there.
    """
    address = address or os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.rpartition(":")
    if not address or address in _RAYS_OWN:
        return
    if not host or "/" in host or not port.isdecimal():
        raise UsageError(
            option="ray_address",
            expected="HOST:PORT of the cluster's head, such as 10.0.0.1:6379",
            found=shorten(address),
        )
    try:
        socket.create_connection((host, int(port)), _CONNECT_LIMIT_S).close()
    except (OSError, OverflowError) as error:
        raise BuildError(
            expected=f"a Ray cluster at {shorten(address)}",
            found=f"none ({error})",
            hint="begin with `ray start --head`",
        ) from None


def refuse_main(name: str, engine: str) -> None:
    """Raise `UsageError` if worker processes would have to import a function from the calling script."""
    if name.startswith("__main__:") and not ENGINES[engine].takes_functions:
        raise UsageError(
            expected="'module:function' that worker processes can import",
            found=f"{shorten(name)}, a function of the calling script",
            hint=f"move it to a module, or use engine={FOR_FUNCTIONS!r}",
        )


def check_workers(requested: str | int) -> None:
    """Raise `UsageError` unless the number of workers is ``"auto"`` or 1 to `MOST_WORKERS`."""
    if isinstance(requested, str) and requested.isdecimal() and len(requested) < _DIGITS:
        requested = int(requested)
    is_number = isinstance(requested, Integral) and not isinstance(requested, bool)
    if requested != "auto" and not (is_number and 1 <= int(requested) <= MOST_WORKERS):
        raise UsageError(
            option="workers", expected=f"'auto' or a number from 1 to {MOST_WORKERS:,}", found=shorten(requested)
        )


def count_workers(requested: str | int, preset: str, units: int) -> int:
    """Return the requested number of workers, or for ``"auto"`` what cores, memory and units of work allow.

    Parameters
    ----------
    preset : str
        Preset of a recipe, or ``"rows"`` for work over packed datasets.
    """
    check_workers(requested)
    if requested != "auto":
        return int(requested)
    memory, cores = free_memory(), usable_processors()
    per_worker = WORKER_BYTES[preset]
    fitting = cores if memory is None else min(cores, memory // per_worker)
    return max(1, min(fitting, units))


def has_core_to_spare(workers: int) -> bool:
    """Return whether each worker can have two cores."""
    return usable_processors() >= 2 * workers


def usable_processors() -> int:
    """Return the number of processors that the system and Slurm let this process use."""
    return min(available_processors(), slurm_processors() or available_processors())


def free_memory() -> int | None:
    """Return the bytes of memory that the system and Slurm let this process use, or None if unknown."""
    found = [limit for limit in (available_memory(), slurm_memory()) if limit is not None]
    return min(found, default=None)


def slurm_processors() -> int | None:
    """Return the processors of a Slurm task, or of the job on this node; None outside Slurm."""
    return _number_of("SLURM_CPUS_PER_TASK") or _number_of("SLURM_CPUS_ON_NODE")


def slurm_memory() -> int | None:
    """Return the bytes of memory of the Slurm job on this node; None outside Slurm or without a limit."""
    node, processor = _number_of("SLURM_MEM_PER_NODE"), _number_of("SLURM_MEM_PER_CPU")
    if node is None and processor is not None:
        node = processor * (_number_of("SLURM_CPUS_ON_NODE") or slurm_processors() or 1)
    return None if node is None else node * 2**20


def _number_of(variable: str) -> int | None:
    """Read a positive number from the environment."""
    text = os.environ.get(variable, "")
    return int(text) or None if text.isascii() and text.isdecimal() and len(text) < _DIGITS else None
