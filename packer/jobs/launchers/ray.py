"""Workers on the nodes of a Ray cluster: each beside an actor, which starts it, and to which no restart of Ray's applies."""

import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from packer.jobs.launchers.base import Link, Node, Take
from packer.jobs.launchers.host import Hosted
from packer.jobs.process import inherited_environment
from packer.recipe.engines import Team
from packer.workspace import Workspace
from shardspec.errors import BuildError
from shardspec.wording import shorten

# Ray reports each use to its makers unless it is told otherwise before it is imported.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_CONNECT_LIMIT_S = 20.0
_PROBE_LIMIT_S = 60.0
_END_S = 5.0
_UNKNOWN = "InvalidAuthToken"
"""In a text, since Ray hides the error's type in that of another error."""

_OF_ACTOR = ("CUDA_VISIBLE_DEVICES", "RAY_", "TMPDIR")
"""Variables, or beginnings of their names, that a worker gets from its actor; all others are those of the build."""


class RayLauncher:
    """Starts workers by actors, one for each, pinned to a node of the cluster (`Launcher`)."""

    again = "run the same command again, with a cluster whose nodes are well"

    def __init__(self, workspace: Workspace, team: Team) -> None:
        self._logs = workspace.logs
        self._team = team
        self._gpus = 1 if team.gpus else 0
        self._connected = not ray.is_initialized()
        if self._connected:
            _check_reachable(team.address or os.environ.get("RAY_ADDRESS", ""))
            try:
                ray.init(team.address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
                raise BuildError(_describe_failure(error)) from None
        self.nodes: Sequence[Node] = [node for node in map(self._node, ray.nodes()) if node is not None]
        if not self.nodes:
            self.close()
            what = "a GPU and a core" if self._gpus else "a core"
            raise BuildError(f"expected a Ray cluster with a node that has {what}, found none")

    def start(self, node: Node, command: Sequence[str], log: str, variables: Mapping[str, str], take: Take) -> Link:
        """See `Launcher`."""
        environment = {**inherited_environment(), **variables}
        actor = _WORKER.options(
            num_cpus=min(1.0, node.cores / node.places),
            num_gpus=self._gpus,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=4,
            scheduling_strategy=NodeAffinitySchedulingStrategy(_id_of(node), soft=False),
            runtime_env={"env_vars": {"PYTHONPATH": environment["PYTHONPATH"]}},
        ).remote(list(command), str(self._logs / f"{log}.log"), environment)
        return _Actor(actor, take)

    def probe(self, node: Node) -> "_Question":
        """Have the node run a function that does nothing."""
        return _Question(_id_of(node))

    def close(self) -> None:
        """See `Launcher`."""
        if self._connected:
            ray.shutdown()

    def _node(self, found: Mapping[str, Any]) -> Node | None:
        """A node of the cluster; None for one that is gone or has no room."""
        has = found["Resources"]
        cores, gpus, memory = int(has.get("CPU", 0)), int(has.get("GPU", 0)), has.get("memory")
        if not found["Alive"] or not cores or gpus < self._gpus:
            return None
        places = self._team.per_node or self._team.fitting(cores, None if memory is None else int(memory))
        name = f"{found['NodeManagerAddress']} {found['NodeID']}"
        return Node(name, min(places, gpus) if self._gpus else places, cores)


class _Worker:
    """The actor: it starts a worker on its node, and passes on what that says."""

    def __init__(self, command: list[str], log: str, environment: dict[str, str]) -> None:
        own = {name: value for name, value in os.environ.items() if name.startswith(_OF_ACTOR)}
        self._hosted = Hosted(command, Path(log), {**environment, **own})

    def serve(self) -> Iterator[dict[str, Any]]:
        messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

        def serve() -> None:
            try:
                self._hosted.serve(messages.put)
            finally:
                messages.put(None)

        threading.Thread(target=serve, daemon=True).start()
        while (message := messages.get()) is not None:
            yield message

    def send(self, request: dict[str, Any]) -> None:
        self._hosted.send(request)

    def end(self) -> None:
        self._hosted.end()


_WORKER = ray.remote(_Worker)


def _nothing() -> None:
    """What a node does that is asked whether it is well."""


_NOTHING = ray.remote(_nothing)


class _Actor:
    """See `Link`."""

    def __init__(self, actor: Any, take: Take) -> None:
        self._actor = actor
        self._take = take
        self._ready = False
        self._ended = threading.Event()
        self._how = "the actor ended"
        self._stream = actor.serve.options(num_returns="streaming").remote()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, request: Mapping[str, Any]) -> None:
        self._actor.send.remote(dict(request))

    def ask_to_end(self) -> None:
        self._actor.end.remote()

    def end(self, *, wait: bool = True) -> None:
        if wait and self._ready and not self._ended.is_set():
            with suppress(ray.exceptions.RayError):  # it has died, or does not answer
                ray.get(self._actor.end.remote(), timeout=_END_S)
        with suppress(ray.exceptions.RayError):
            ray.kill(self._actor, no_restart=True)
        if wait:
            self._reader.join(_END_S)

    def has_ended(self) -> bool:
        return self._ended.is_set()

    def describe_end(self) -> str:
        return self._how

    def _read(self) -> None:
        try:
            for one in self._stream:
                message = ray.get(one)
                self._ready |= message["event"] == "ready"
                self._take(message)
        except ray.exceptions.RayError as error:
            self._how = f"Ray: {type(error).__name__}"
        finally:
            self._ended.set()
            self._take({"event": "died"})


class _Question:
    """See `Probe`."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._until_s = time.monotonic() + _PROBE_LIMIT_S
        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        self._answer = _NOTHING.options(num_cpus=0, max_retries=0, scheduling_strategy=strategy).remote()

    def answered(self) -> bool | None:
        if not any(node["NodeID"] == self._node and node["Alive"] for node in ray.nodes()):
            return False
        if not ray.wait([self._answer], timeout=0)[0]:
            return None if time.monotonic() < self._until_s else False
        try:
            ray.get(self._answer)
        except ray.exceptions.RayError:
            return False
        return True

    def close(self) -> None:
        ray.cancel(self._answer)


def _check_reachable(address: str) -> None:
    """Check that something listens at ``host:port``: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), _CONNECT_LIMIT_S).close()
    except (OSError, OverflowError) as error:
        raise BuildError(
            f"expected a Ray cluster at {shorten(address)}, found none ({error}): begin with `ray start --head`"
        ) from None


def _describe_failure(error: Exception) -> str:
    """In words, why this process is not connected to a cluster."""
    if _UNKNOWN in f"{error} {error.__cause__}":
        return (
            "expected a Ray cluster that takes this build, found one that asks for a token: set RAY_AUTH_MODE=token, and "
            "RAY_AUTH_TOKEN unless ~/.ray/auth_token is the cluster's"
        )
    return f"expected a Ray cluster, found none ({shorten(str(error))}): begin with `ray start --head`"


def _id_of(node: Node) -> str:
    return node.name.rpartition(" ")[2]
