"""Run one agent on each host of a cluster and wait until the tasks of a build are done."""

import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from packer.jobs.plan import JobPlan
from packer.jobs.process import module_command
from packer.jobs.progress import ProgressListener, Stage
from packer.recipe.engines import ENGINES, WORKER_BYTES
from packer.recipe.options import BuildOptions
from packer.workspace import Workspace
from packer.workspace.agents import read_terms
from packer.workspace.durable import NewLines, parse_line
from packer.workspace.leases import read_agents
from shardspec.errors import BuildError
from shardspec.registry import resolve
from shardspec.wording import PROGRAM, program

UNTIL_INPUT_ENDS = "PACKER_UNTIL_INPUT_ENDS"
"""Environment variable that makes ``packer work`` stop when its standard input ends: its starter is gone then."""

_ATTEMPTS = 5
"""Number of starts of an agent on one host before the host is given up."""

_PAUSE_S = 0.2
_LOOK_S = 2.0
_AGAIN_S = 3.0
"""Seconds before an agent is started again on a host where one has died."""

_SILENT_S = 10.0
"""Seconds after which an agent is reported that has not written anything."""

_GRACE_S = 10.0
"""Seconds that agents may take to end by themselves once all tasks are done."""

_SAID = f"{PROGRAM}: "
"""Prefix of an agent's messages, since it is started as ``python -m packer``."""

_ERROR = f"{PROGRAM} work: "
"""Prefix of the error that ends an agent. Starting it again would not help."""

_NOT_OF_AGENT = "srun: "
"""Prefix of lines that the agent's starter writes to the log."""


class Host(NamedTuple):
    """A place for one agent: the name of the host, and the number of the agent's workers."""

    name: str
    workers: int


@dataclass(frozen=True)
class HostLimits:
    """Limits on the number of workers on a host.

    Attributes
    ----------
    per_node : int or None
        Workers on each host; None for as many as its cores and memory allow.
    in_all : int or None
        Workers on all hosts together; None for no limit.
    worker_bytes : int
        Memory that one worker needs.
    gpus : bool
        Whether each agent needs a GPU.
    """

    per_node: int | None
    in_all: int | None
    worker_bytes: int
    gpus: bool

    def share(self, name: str, cores: int, memory: int | None, gpus: int) -> list[Host]:
        """Share the workers that fit into `cores` and `memory` (bytes, None if unknown) among the agents of a host.

        There is one agent, or one for each GPU if agents need GPUs. Agents without a worker are left out.
        """
        fitting = cores if memory is None else min(cores, memory // self.worker_bytes)
        workers, agents = self.per_node or max(1, fitting), max(1, gpus) if self.gpus else 1
        return [Host(name, (workers + number) // agents) for number in range(agents) if workers + number >= agents]

    def limit(self, hosts: Sequence[Host]) -> list[Host]:
        """Spread at most `in_all` workers over the hosts. Hosts without a worker are left out."""
        left = sum(host.workers for host in hosts) if self.in_all is None else self.in_all
        counts = [0] * len(hosts)
        while left and any(count < host.workers for count, host in zip(counts, hosts, strict=True)):
            for number, host in enumerate(hosts):
                if left and counts[number] < host.workers:
                    counts[number] += 1
                    left -= 1
        return [Host(host.name, count) for host, count in zip(hosts, counts, strict=True) if count]


class HostProcess(Protocol):
    """A running agent on a host."""

    def poll(self) -> int | None:
        """Return the exit status, or None while the agent runs."""
        ...

    def end(self) -> None:
        """Ask the agent to end, wait for a moment, and cancel it if it does not."""
        ...


class Cluster(Protocol):
    """The hosts of an allocation or a cluster. Called with the workspace, a `HostLimits` and the build's options."""

    hosts: Sequence[Host]

    def start(self, host: Host, command: Sequence[str], log: Path) -> HostProcess:
        """Start a command on a host, and append its output to a log on the shared file system."""
        ...

    def close(self) -> None:
        """Disconnect, and cancel agents that may still run."""
        ...


def start_agent(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Start an agent, or the program that starts it, in a new session. The agent ends when its input is closed."""
    with log.open("ab") as file:
        return subprocess.Popen(  # noqa: S603 -- our own module, or Slurm's command
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=file,
            env={**environment, UNTIL_INPUT_ENDS: "1"},
            start_new_session=True,
        )


class _Agents:
    def __init__(self, space: Workspace, cluster: Cluster, say: Callable[[str], None]) -> None:
        self._space = space
        self._cluster = cluster
        self._say = say
        self._running: dict[int, HostProcess] = {}
        self._again_s: dict[int, float] = dict.fromkeys(range(len(cluster.hosts)), 0.0)
        self._attempts: Counter[int] = Counter()
        self._lines = NewLines()
        self._silent_since_s: dict[int, float] = {}
        self._errors: dict[Path, str] = {}
        self.ended_well = False
        self.why = ""

    @property
    def is_over(self) -> bool:
        return not self._running and not self._again_s

    def look(self) -> None:
        """Start agents that are due, handle those that ended, and pass on their messages."""
        now_s = time.monotonic()
        for number in [number for number, due_s in self._again_s.items() if due_s <= now_s]:
            del self._again_s[number]
            self._start(number)
        for number, process in list(self._running.items()):
            status = process.poll()
            if status is not None:
                process.end()
                del self._running[number]
                self._pass_on(number)
                self._note_end(number, status)
        for number in self._running:
            self._pass_on(number)
            if number in self._silent_since_s and now_s - self._silent_since_s[number] > _SILENT_S:
                del self._silent_since_s[number]
                name = self._cluster.hosts[number].name
                self._say(
                    f"{program()}: the agent on {name} has not started yet; it may wait for resources that others use"
                )

    def end(self) -> None:
        self._again_s.clear()
        if self._running:
            with ThreadPoolExecutor(len(self._running)) as pool:  # each takes seconds
                list(pool.map(lambda process: process.end(), self._running.values()))
        self._running.clear()

    def _log(self, number: int) -> Path:
        return self._space.logs / f"agent-{number:03d}.log"

    def _start(self, number: int) -> None:
        host = self._cluster.hosts[number]
        if not self._attempts[number]:
            self._log(number).unlink(missing_ok=True)  # of an earlier call, which has reported its lines
        self._attempts[number] += 1
        command = [*module_command("packer"), "work", str(self._space.out), "--workers", str(host.workers)]
        self._running[number] = self._cluster.start(host, command, self._log(number))
        self._silent_since_s[number] = time.monotonic()

    def _note_end(self, number: int, status: int) -> None:
        if status == 0:
            self.ended_well = True
            self._again_s.clear()
            return
        name = self._cluster.hosts[number].name
        error = self._errors.get(self._log(number), "")
        last = error or _last_line(self._log(number))
        self.why = f"the agent on {name} ended with status {status}" + (f": {last}" if last else "")
        if error or self._attempts[number] >= _ATTEMPTS or self.ended_well:
            follows = "other agents continue its work"
        else:
            self._again_s[number] = time.monotonic() + _AGAIN_S
            follows = "its work is repeated"
        self._say(f"{program()}: {self.why}; {follows}")

    def _pass_on(self, number: int) -> None:
        """Report an agent's new messages, such as those about lost workers, but not its progress."""
        log = self._log(number)
        for line in (line.decode(errors="replace") for line in self._lines.read(log)):
            if not line.startswith(_NOT_OF_AGENT):
                self._silent_since_s.pop(number, None)
            if line.startswith(_SAID):
                self._say(f"{program()}: {line.removeprefix(_SAID)}")
            elif line.startswith(_ERROR):
                self._errors[log] = line.removeprefix(_ERROR)


def run_agents(plan: JobPlan, space: Workspace, options: BuildOptions, listener: ProgressListener) -> None:
    """Run agents on all hosts of the engine's cluster until no task is left.

    Parameters
    ----------
    plan : JobPlan
    space : Workspace
        Holds the plan, and is open to agents.
    options : BuildOptions
    listener : ProgressListener

    Raises
    ------
    BuildError
        If all agents ended before all tasks were done. The same command resumes the build.
    """
    in_all = None if str(options.workers) == "auto" else int(options.workers)
    settings = plan.settings
    room = HostLimits(options.workers_per_node, in_all, WORKER_BYTES[settings.preset], settings.needs_gpus)
    cluster: Cluster = resolve("engine", options.engine, ENGINES)(space, room, options)
    items = sum(task.stop - task.start for task in plan.tasks)
    with closing(cluster):
        agents = _Agents(space, cluster, listener.on_message)
        workers = sum(host.workers for host in cluster.hosts)
        listener.on_message(
            f"{settings.stage}: {workers} workers on {len({host.name for host in cluster.hosts})} nodes"
        )
        try:
            finished = _Finished(plan, space)
            before = finished.count()
            with Stage(listener, settings.stage, items, f"{settings.item}s", before[0]) as stage:
                _wait(agents, plan, space, stage, finished, before)
        finally:
            agents.end()
    terms = read_terms(space)
    if terms is None or "closed" in terms:  # another process finishes the build, or has finished it
        return
    if len(space.finished_tasks()) < len(plan.tasks):
        raise BuildError(
            f"{agents.why or 'the time is up'}, and no agent is left", hint="run the same command again to resume"
        )


def _wait(
    agents: _Agents, plan: JobPlan, space: Workspace, stage: Stage, finished: "_Finished", counted: tuple[int, int, int]
) -> None:
    """Wait until the agents have ended, or all tasks are done and one of them has found nothing left to do."""
    seen_s, until_s = 0.0, None
    while True:
        agents.look()
        now_s = time.monotonic()
        if now_s - seen_s > _LOOK_S or agents.is_over:
            seen_s = now_s
            failed = next((agent.failed for agent in read_agents(space.agents).values() if agent.failed), "")
            if failed:
                raise BuildError(failed)
            found = finished.count()
            items, samples, rejects = (new - old for new, old in zip(found, counted, strict=True))
            stage.advance(items, samples, rejects)
            counted = found
            if until_s is None and agents.ended_well and len(space.finished_tasks()) == len(plan.tasks):
                until_s = now_s + _GRACE_S
        if agents.is_over or (until_s is not None and now_s > until_s):
            return
        time.sleep(_PAUSE_S)


class _Finished:
    """Counts finished tasks in the journals of all agents. Each call reads only the new lines."""

    def __init__(self, plan: JobPlan, space: Workspace) -> None:
        self._plan = plan
        self._space = space
        self._lines = NewLines()
        self._tasks: dict[int, tuple[int, int, int]] = {}

    def count(self) -> tuple[int, int, int]:
        """Count items, samples and rejects."""
        for line in (line for path in self._space.journals() for line in self._lines.read(path)):
            entry = parse_line(line)
            if entry is not None and entry["did"] in ("task", "join"):
                task = self._plan.tasks[entry["number"]]
                rejects = sum(entry.get("rejected", {}).values())
                self._tasks[entry["number"]] = (task.stop - task.start, entry.get("rows", 0), rejects)
        items, samples, rejected = map(sum, zip(*self._tasks.values(), strict=True)) if self._tasks else (0, 0, 0)
        return items, samples, rejected


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""
