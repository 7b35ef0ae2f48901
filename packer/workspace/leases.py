"""Leases: a process shows other hosts that it is at work in a folder. If its lease expires, others may take over.

A process renews its lease by rewriting its record every few seconds. The clocks of two hosts are never compared: a lease
has expired once an observer has seen no renewal for the length of the lease, by its own clock. Agents of a submitted build
hold leases, and so does the one process that holds a build's folder (`packer.workspace.lock`). If an agent loses its
lease, some work is done twice and nothing else happens: only the first published result counts
(`packer.workspace.durable.publish`).
"""

import json
import math
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from packer.workspace.shared_files import host, refresh_listing
from shardspec.wording import LENGTH, LONG, cut

LEASE_S = 90.0
"""Seconds without a renewal after which a lease expires: longer than a shared file system caches files."""

RENEWALS = 6
"""Number of renewals within the length of a lease."""

_PAUSE_S = 1.0
_RECORD_BYTES = 2**16

_MARK_PARTS = 4
_START_WORD = 18
"""Position of the start time among the words of ``/proc/PID/stat`` after the state."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def lease_s() -> float:
    """Return the length of this process's leases in seconds. Tests set the environment variable ``PACKER_LEASE_S``."""
    try:
        chosen = float(os.environ.get("PACKER_LEASE_S", ""))
    except ValueError:
        return LEASE_S
    return chosen if math.isfinite(chosen) and chosen > 0 else LEASE_S


@dataclass(frozen=True)
class Agent:
    """Record about an agent, or about the holder of a folder, which the process itself publishes.

    Attributes
    ----------
    name : str
        Unique name, also used as `Workspace.owner`.
    host, node : str
        Name of the host, and Slurm's name of the node (the host's name outside Slurm).
    pid : int
    process : str
        See `process_mark`.
    job : str
        Slurm's number of the job, such as ``"17_3"``; empty outside Slurm.
    began_s : float
        Start in seconds since 1970 by the agent's own clock, for display only.
    lease_s : float
    beat : int
        Number of renewals.
    ended : str
        Why the agent has ended; empty while it is at work.
    workers : int
    doing : tuple of str
        Units and items that the agent's workers are processing.
    tasks : int
        Number of finished tasks.
    failed : str
        Error that must end all agents; empty if there is none.
    command : str
        The command line of the holder of a folder.
    """

    name: str
    host: str = ""
    node: str = ""
    pid: int = 0
    process: str = ""
    job: str = ""
    began_s: float = 0.0
    lease_s: float = field(default_factory=lease_s)
    beat: int = 0
    ended: str = ""
    workers: int = 0
    doing: tuple[str, ...] = ()
    tasks: int = 0
    failed: str = ""
    command: str = ""

    @classmethod
    def here(cls) -> "Agent":
        """Return the record of the calling process, under a new name."""
        here, pid = host().partition(".")[0], os.getpid()
        plain = re.sub(r"[^A-Za-z0-9]+", "-", here).strip("-")[:32] or "host"
        return cls(
            name=f"{plain}-{pid}-{uuid.uuid4().hex[:6]}",
            host=here,
            node=os.environ.get("SLURMD_NODENAME", here),
            pid=pid,
            process=process_mark(),
            job=slurm_job(os.environ),
            began_s=round(time.time(), 3),
        )

    @classmethod
    def from_json(cls, document: Any) -> "Agent | None":
        """Read a record from JSON. Return None if the document is not a record."""
        if not isinstance(document, dict) or not isinstance(document.get("name"), str):
            return None
        kinds: dict[str, Any] = {"doing": (list, tuple), "began_s": (int, float), "lease_s": (int, float)}
        values: dict[str, Any] = {}
        default = cls("")
        for spec in fields(cls):
            value: Any = document.get(spec.name, getattr(default, spec.name))
            plain: Any = spec.type if isinstance(spec.type, type) else str
            if not isinstance(value, kinds.get(spec.name, plain)):
                return None
            values[spec.name] = tuple(map(_printable, value)) if spec.name == "doing" else _printable(value)
        return cls(**values)

    def describe(self) -> str:
        """Describe process, host and start."""
        host, node = cut(self.host, LENGTH), cut(self.node, LENGTH)
        where = node if node == host else f"{node} ({host})"
        job = f", Slurm job {cut(self.job, LENGTH)}" if self.job else ""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.began_s))
        command = f": {cut(self.command, LONG)}" if self.command else ""
        return f"process {self.pid} on {where}{job}, since {since}{command}"

    def write(self, path: Path) -> None:
        """Write the record to a file and replace an earlier one. Neither flush the file nor make the folder."""
        new = path.with_name(f"{path.name}.{self.name}.new")
        new.write_text(json.dumps(asdict(self)), "ascii")
        os.replace(new, path)

    @classmethod
    def read(cls, path: Path) -> "Agent | None":
        """Read a record from a file. Return None if the file holds no record."""
        try:
            with path.open("rb") as file:
                return cls.from_json(json.loads(file.read(_RECORD_BYTES)))
        except (OSError, ValueError, RecursionError):
            return None


class Lease:
    """A lease that is renewed in a thread. Use as a context manager; at the end, the record says why the agent ended.

    Parameters
    ----------
    folder : Path
        The folder of the records of all agents.
    agent : Agent
    watch : callable
        Called in the thread before each renewal; returns changed attributes of the agent.

    Attributes
    ----------
    lost : bool
        Whether the lease was not renewed in time, so that other agents may have taken over.
    gone : bool
        Whether the folder has been removed.
    """

    def __init__(self, folder: Path, agent: Agent, watch: Callable[[], Mapping[str, Any]] = dict) -> None:
        self._folder = folder
        self._agent = agent
        self._watch = watch
        self._why = "interrupted"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self.lost = self.gone = False

    def __enter__(self) -> Self:
        self._renewed_s = time.monotonic()
        self._write(self._agent)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        with suppress(OSError):
            self._write(replace(self._current(), ended=self._why, doing=()))

    def end(self, why: str) -> None:
        """Set the reason for the agent's end."""
        self._why = why

    def _renew(self) -> None:
        while not self._stop.wait(self._agent.lease_s / RENEWALS):
            self._agent = replace(self._current(), beat=self._agent.beat + 1)
            before_s = self._renewed_s
            try:
                self._write(self._agent)
            except FileNotFoundError:
                if not self._folder.is_dir():
                    self.gone = True
                    return
            except OSError:
                pass  # a server that does not answer: the next renewal may succeed in time
            else:
                self._renewed_s = time.monotonic()
            if time.monotonic() - before_s > self._agent.lease_s:  # the write itself may have taken too long
                self.lost = True

    def _current(self) -> Agent:
        """Return the updated record. An error of `watch` must not stop the renewal."""
        with suppress(Exception):
            return replace(self._agent, **self._watch())
        return self._agent

    def _write(self, agent: Agent) -> None:
        agent.write(record_of(self._folder, agent.name))


class Observer:
    """Observes which agents are at work, by reading their records again and again.

    Parameters
    ----------
    folder : Path
        The folder of the records.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._agents: dict[str, Agent] = {}
        self._still_s: dict[str, float] = {}
        self._renewed: set[str] = set()
        self._looked_s = time.monotonic()

    @property
    def agents(self) -> list[Agent]:
        """All agents that have ever started in this workspace, as of the last call of `look`."""
        return sorted(self._agents.values(), key=lambda agent: (agent.began_s, agent.name))

    def look(self) -> None:
        """Read the records."""
        now_s = time.monotonic()
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        found = read_agents(self._folder)
        for name in {*self._still_s, *found}:
            old, new = self._agents.get(name), found.get(name)
            renewed = old is not None and new is not None and old.beat != new.beat
            if renewed:
                self._renewed.add(name)
            if renewed or name not in self._still_s:
                self._still_s[name] = 0.0
            else:
                self._still_s[name] += watched_s(passed_s, (new or old or Agent(name)).lease_s)
        self._agents |= found

    def is_over(self, name: str) -> bool:
        """Return whether other agents may take over an agent's work. An agent without a record gets the same wait."""
        agent = self._agents.get(name)
        if agent is not None and (agent.ended or is_running(agent.process) is False):
            return True
        return self._still_s.setdefault(name, 0.0) >= (agent or Agent(name)).lease_s

    def is_alive(self, name: str) -> bool:
        """Return whether an agent is certainly at work: a renewal was seen, and its lease has not expired."""
        return name in self._renewed and not self.is_over(name)

    def at_work(self) -> list[Agent]:
        """Return the agents whose lease has not expired."""
        return [agent for agent in self.agents if not self.is_over(agent.name)]

    def wait(
        self,
        waiting: Callable[[], Sequence[Agent]],
        refuse: Callable[[Sequence[Agent]], Exception],
        say: Callable[[Sequence[Agent], float], None],
    ) -> None:
        """Wait until the leases of agents have expired.

        Parameters
        ----------
        waiting : callable
            Returns the agents whose leases have not expired, as of the last call of `look`.
        refuse : callable
            Returns the error to raise if an agent is certainly at work.
        say : callable
            Called once before waiting, with the agents and the longest wait in seconds.
        """
        said = False
        self.look()
        while found := waiting():
            alive = [agent for agent in found if self.is_alive(agent.name)]
            if alive:
                raise refuse(alive)
            limit_s = max(agent.lease_s for agent in found)
            if not said:
                say(found, limit_s)
            said = True
            time.sleep(min(_PAUSE_S, limit_s / 20))
            refresh_listing(self._folder.parent)
            self.look()


def record_of(folder: Path, name: str) -> Path:
    """Return the path of an agent's record."""
    return folder / f"{name}.json"


def read_agents(folder: Path) -> dict[str, Agent]:
    """Return the records of all agents, by name."""
    found = {}
    with suppress(FileNotFoundError):
        for path in sorted(folder.iterdir()):
            agent = Agent.read(path) if path.suffix == ".json" else None
            if agent is not None:
                found[agent.name] = agent
    return found


def slurm_job(environment: Mapping[str, str]) -> str:
    """Return Slurm's number of the job, such as ``"17"`` or, in an array, ``"17_3"``; empty outside Slurm."""
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID", "")


def _printable(value: Any) -> Any:
    """Replace control characters in text, since other users may have written the record."""
    if not isinstance(value, str):
        return value
    return "".join(character if character.isprintable() else "?" for character in value)


def watched_s(since_look_s: float, length_s: float) -> float:
    """Return the seconds since the last look that count towards the expiry of a lease.

    At most the time between two renewals counts, because this process itself may have been suspended.
    """
    return min(since_look_s, length_s / RENEWALS)


def process_mark() -> str:
    """Return a string that identifies this process until the machine restarts; empty outside Linux."""
    return _mark_of(os.getpid())


def is_running(mark: str) -> bool | None:
    """Return whether the process with a `process_mark` is running.

    Return None if the mark was made on another machine or in another container, or before this machine restarted.
    """
    ours, theirs = process_mark().split(":"), mark.split(":")
    if len(ours) != _MARK_PARTS or len(theirs) != _MARK_PARTS or ours[:2] != theirs[:2] or not theirs[2].isdecimal():
        return None
    return _mark_of(int(theirs[2])) == mark


def _mark_of(process: int) -> str:
    try:
        state, *words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        space = Path("/proc/self/ns/pid").stat().st_ino
        boot = _BOOT_ID.read_text("utf-8").strip()
        return "" if state in "ZX" else f"{boot}:{space}:{process}:{words[_START_WORD]}"
    except (OSError, IndexError, ValueError):
        return ""
