"""The nodes of a Ray cluster: one actor on each node runs an agent. Ray restarts nothing by itself."""

import logging
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from packer.jobs.hosts.base import Host, HostLimits, start_agent
from packer.jobs.process import inherited_environment
from packer.recipe.options import BuildOptions
from packer.workspace import Workspace
from shardspec.errors import BuildError
from shardspec.wording import shorten

# Ray reports each use to its makers unless this is set before it is imported.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_CONNECT_LIMIT_S = 20.0
_END_S = 5.0
_LOST = 255
"""Exit status of an agent whose actor or node was lost."""

_UNKNOWN = "InvalidAuthToken"
"""Part of the text of an error, since Ray hides the error's type in another error."""

_OF_ACTOR = ("CUDA_VISIBLE_DEVICES", "RAY_", "TMPDIR")
"""Prefixes of environment variables that an agent inherits from its actor. All others come from the build."""


class RayCluster:
    """The nodes of a Ray cluster (`packer.jobs.hosts.base.Cluster`).

    Raises
    ------
    BuildError
        If there is no cluster at the address, or no node has room.
    """

    def __init__(self, _workspace: Workspace, room: HostLimits, options: BuildOptions) -> None:
        self._gpus = int(room.gpus)
        self._connected = not ray.is_initialized()
        if self._connected:
            _check_reachable(options.ray_address or os.environ.get("RAY_ADDRESS", ""))
            try:
                ray.init(options.ray_address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
                raise BuildError(_describe_failure(error)) from None
        self._cores: dict[str, int] = {}
        try:
            found = [host for node in ray.nodes() for host in self._agents(node, room)]
            self.hosts: Sequence[Host] = room.limit(found)
            if not self.hosts:
                what = "a GPU and a core" if self._gpus else "a core"
                raise BuildError(expected=f"a Ray cluster with a node that has {what}", found="none")
        except BaseException:
            self.close()
            raise

    def start(self, host: Host, command: Sequence[str], log: Path) -> "_Actor":
        environment = inherited_environment()
        actor = _AGENT.options(
            num_cpus=self._cores[host.name],
            num_gpus=self._gpus,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=2,
            scheduling_strategy=NodeAffinitySchedulingStrategy(host.name.rpartition(" ")[2], soft=False),
            runtime_env={"env_vars": {"PYTHONPATH": environment["PYTHONPATH"]}},
        ).remote(list(command), str(log), environment)
        return _Actor(actor)

    def close(self) -> None:
        """Disconnect."""
        if self._connected:
            ray.shutdown()

    def _agents(self, node: Mapping[str, Any], room: HostLimits) -> list[Host]:
        """Return the places for agents on a node: one, or one for each GPU."""
        has = node["Resources"]
        cores, gpus, memory = int(has.get("CPU", 0)), int(has.get("GPU", 0)), has.get("memory")
        if not node["Alive"] or not cores or gpus < self._gpus:
            return []
        name = f"{node['NodeManagerAddress']} {node['NodeID']}"
        hosts = room.share(name, cores, None if memory is None else int(memory), gpus)
        self._cores[name] = cores // len(hosts)  # Ray takes whole numbers above 1 only
        return hosts


class _Agent:
    """Actor that runs an agent on its node. The agent ends when the actor does, because its input ends."""

    def __init__(self, command: list[str], log: str, environment: dict[str, str]) -> None:
        own = {name: value for name, value in os.environ.items() if name.startswith(_OF_ACTOR)}
        self._process = start_agent(command, Path(log), {**environment, **own})

    def wait(self) -> int:
        return abs(self._process.wait())

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()


_AGENT = ray.remote(_Agent)


class _Actor:
    """A running agent and its actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._status: int | None = None
        self._waiting = threading.Thread(target=self._wait, args=(actor.wait.remote(),), daemon=True)
        self._waiting.start()

    def poll(self) -> int | None:
        return self._status

    def end(self) -> None:
        """Close the agent's input and wait for its end; then kill the actor."""
        if self._status is None:
            self._actor.end.remote()
            self._waiting.join(_END_S)
        with suppress(ray.exceptions.RayError):
            ray.kill(self._actor, no_restart=True)

    def _wait(self, answer: Any) -> None:
        try:
            self._status = int(ray.get(answer))
        except ray.exceptions.RayError:
            self._status = _LOST


def _check_reachable(address: str) -> None:
    """Check that a server listens at ``host:port``. Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), _CONNECT_LIMIT_S).close()
    except (OSError, OverflowError) as error:
        raise BuildError(
            expected=f"a Ray cluster at {shorten(address)}",
            found=f"none ({error})",
            hint="begin with `ray start --head`",
        ) from None


def _describe_failure(error: Exception) -> str:
    """Return the reason why this process could not connect, and what to do."""
    if _UNKNOWN in f"{error} {error.__cause__}":
        return (
            "the Ray cluster asks for a token: set RAY_AUTH_MODE=token, and set RAY_AUTH_TOKEN unless "
            "~/.ray/auth_token holds the cluster's token"
        )
    return f"expected a Ray cluster, found none ({shorten(str(error))}): begin with `ray start --head`"
