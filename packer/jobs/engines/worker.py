"""What an engine knows about a worker, wherever that runs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer.workspace import Workspace

if TYPE_CHECKING:
    from packer.jobs.plan import Unit


def worker_command(workspace: Workspace, place: int, decodes_ahead: bool) -> list[str]:
    """The module and the arguments of a worker on this host."""
    return ["packer.jobs.worker", str(workspace.root), str(place_file(workspace, place)), str(int(decodes_ahead))]


def place_file(workspace: Workspace, place: int) -> Path:
    """Where a worker notes its item (`packer.jobs.place`)."""
    return workspace.logs / f"worker-{place:03d}.item"


class Worker(ABC):
    """A worker, and what it is doing.

    Parameters
    ----------
    place : int
        Used again when the worker has ended.
    serial : int
        New for each worker.

    Attributes
    ----------
    unit : Unit or None
    seen : int or None
        The item that was under way when the worker was last looked at.
    used : bool
        Whether it has been given anything to do.
    pending : dict or None
        A request that waits until the worker is ready.
    ready : bool
    lost_detector : bool
        Whether it ends because it has lost its connection to the detecting process.
    log : Path
    """

    ready: bool
    log: Path

    def __init__(self, place: int, serial: int) -> None:
        self.place = place
        self.serial = serial
        self.unit: Unit | None = None
        self.seen: int | None = None
        self.used = False
        self.pending: dict[str, Any] | None = None
        self.lost_detector = False

    @property
    @abstractmethod
    def item(self) -> int | None:
        """The item that is under way; if the worker has died, the one that was."""

    @property
    @abstractmethod
    def frames(self) -> int:
        """How many frames of it were examined so far, if it is a video."""

    @abstractmethod
    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request. If the worker has died, the end of its answers reports that."""

    def kill(self) -> None:  # noqa: B027 -- not every worker can be killed so
        """Have the worker end soon, with all that it started, if nothing has to be waited for; `end` comes next."""

    @abstractmethod
    def end(self) -> None:
        """End the worker with all that it started, and wait until all its answers are read."""

    @abstractmethod
    def has_ended(self) -> bool:
        """Whether it has ended."""

    @abstractmethod
    def describe_death(self) -> str:
        """How it ended."""
