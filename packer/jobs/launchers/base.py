"""What a launcher is: the way to other hosts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from packer.recipe.engines import Team
from packer.workspace import Workspace

Take = Callable[[dict[str, Any]], None]
"""Receives the messages of a worker and of its host process; ``{"event": "died"}`` is the last one of a link."""


@dataclass(frozen=True)
class Node:
    """A host that workers can be started on.

    Attributes
    ----------
    name : str
    places : int
        How many workers fit.
    cores : int
    is_well : bool
        Whether workers can be started there now, as far as the cluster knows.
    """

    name: str
    places: int
    cores: int
    is_well: bool = True


class Link(Protocol):
    """The connection to one worker, through the process that hosts it (`packer.jobs.launchers.host`)."""

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request to the worker. If the connection is lost, that is reported by `Take`."""
        ...

    def ask_to_end(self) -> None:
        """Have the worker end, without waiting."""
        ...

    def end(self, *, wait: bool = True) -> None:
        """End the worker with all that it started.

        It is gone, and all messages are taken, when this returns, unless its host does not answer any more. Without
        `wait`, for a lost host, nothing is waited for.
        """
        ...

    def has_ended(self) -> bool:
        """Whether the connection is at its end."""
        ...

    def describe_end(self) -> str:
        """How the connection ended."""
        ...


class Probe(Protocol):
    """A question to a host."""

    def answered(self) -> bool | None:
        """Whether the host is well; None as long as that is not known."""
        ...

    def close(self) -> None:
        """Forget the question."""
        ...


class Launcher(Protocol):
    """Starts workers on other hosts.

    Parameters
    ----------
    workspace : Workspace
    team : Team

    Raises
    ------
    BuildError
        If the cluster does not answer, or if no node has what the workers need.

    Attributes
    ----------
    nodes : sequence of Node
    again : str
        What a user can do once no host is left.
    """

    nodes: Sequence[Node]
    again: str

    def __init__(self, workspace: Workspace, team: Team) -> None: ...

    def start(self, node: Node, command: Sequence[str], log: str, variables: Mapping[str, str], take: Take) -> Link:
        """Start a worker on a host.

        Parameters
        ----------
        node : Node
        command : sequence of str
            A module of ours and its arguments.
        log : str
            The stem of its logs' names.
        variables : mapping of str to str
            Further environment variables.
        take : Take
        """
        ...

    def probe(self, node: Node) -> Probe:
        """Ask whether a host is well."""
        ...

    def close(self) -> None:
        """End all that was started, certainly."""
        ...
