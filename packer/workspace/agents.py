"""Share the tasks of a build among agents: the options that they need, and their claims to blocks of tasks.

Agents on any hosts claim numbered jobs by creating files exclusively. An attempt at a job is the file
``KIND-NUMBER.ATTEMPT``, which holds the agent's name. An attempt that was given back has a name that ends in ``.free``.
A finished job has the file ``KIND-NUMBER.done``. If an agent's lease has expired, or it has given a job back, another
agent makes the next attempt. Claims need no lock, no link and no clock.
"""

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from packer.workspace.durable import read_record, write_record
from packer.workspace.leases import Agent, Observer
from packer.workspace.paths import Workspace
from packer.workspace.shared_files import host
from shardspec.errors import BuildLockedError
from shardspec.wording import counted, program

BLOCKS = 4096
"""A large plan has at least this number of blocks, and at most twice as many. Each claim is a file on a shared disk."""

_SHOWN = 3

_FREE = ".free"
_NAME = re.compile(rf"([a-z]+)-([0-9]+)\.(done|[0-9]+)({re.escape(_FREE)})?\Z")


class Claims:
    """Claims to jobs of one kind, made and observed by one agent.

    Parameters
    ----------
    folder : Path
        The folder of the claims.
    agent : str
        The name of the agent.
    kind : str
        Kind of the jobs, in lower-case letters.
    count : int
        Number of jobs, which are numbered from 0.

    Attributes
    ----------
    held : dict of int to int
        Jobs that this agent holds, with the number of the attempt.
    done : set of int
        Finished jobs, as of the last call of `look`.
    """

    def __init__(self, folder: Path, agent: str, kind: str, count: int) -> None:
        self._folder = folder
        self._agent = agent
        self._kind = kind
        self._count = count
        self._attempts: dict[int, int] = {}
        self._given_back: set[int] = set()
        self._owners: dict[tuple[int, int], str] = {}
        self.held: dict[int, int] = {}
        self.done: set[int] = set()

    @property
    def all_done(self) -> bool:
        """True if all jobs are finished."""
        return len(self.done) == self._count

    def look(self) -> None:
        """List the jobs that other agents have claimed and finished.

        Raises
        ------
        FileNotFoundError
            If the folder of the plan's claims is gone.
        """
        attempts: dict[int, int] = {}
        taken: set[tuple[int, int]] = set()
        for name in os.listdir(self._folder):  # noqa: PTH208 -- names are all that is needed
            match = _NAME.match(name)
            if match is None or match[1] != self._kind or not 0 <= (number := int(match[2])) < self._count:
                continue
            if match[3] == "done":
                self.done.add(number)
            else:
                attempts[number] = max(attempts.get(number, 0), int(match[3]))
                if not match[4]:
                    taken.add((number, int(match[3])))
        self._attempts = attempts
        # A listing may miss a file that is being renamed, so check for the name without `.free`, too.
        self._given_back = {number for number, attempt in attempts.items() if (number, attempt) not in taken}

    def fresh(self) -> list[int]:
        """Return the jobs that no agent has claimed, or that were given back."""
        taken = {*(self._attempts.keys() - self._given_back), *self.done, *self.held}
        return [number for number in range(self._count) if number not in taken] if len(taken) < self._count else []

    def freed(self, observer: Observer) -> list[int]:
        """Return the jobs of agents whose lease has expired. Call `observer.look` just before."""
        known = self.done | self.held.keys() | self._given_back
        return [n for n in sorted(self._attempts) if n not in known and observer.is_over(self.owner(n))]

    def take(self, number: int) -> bool:
        """Claim a job; return False if another agent was faster."""
        attempt = self._attempts.get(number, 0) + 1
        try:
            descriptor = os.open(self._path(number, str(attempt)), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "wb") as file:
            file.write(self._agent.encode("ascii"))
        self.held[number] = self._attempts[number] = attempt
        return True

    def finish(self, number: int) -> None:
        """Mark a job as finished, by this agent or another."""
        with self._path(number, "done").open("wb"):
            pass
        self.held.pop(number, None)
        self.done.add(number)

    def give_back(self, numbers: Collection[int]) -> None:
        """Give jobs back that this agent holds and has not finished."""
        for number in numbers:
            path = self._path(number, str(self.held.pop(number)))
            with suppress(OSError):  # otherwise others wait until the lease expires
                os.replace(path, path.with_name(path.name + _FREE))

    def forget(self) -> None:
        """Drop jobs from `held` that other agents took over because this agent's lease had expired."""
        for number, attempt in list(self.held.items()):
            if number in self.done or self._attempts.get(number) != attempt:
                del self.held[number]

    def owner(self, number: int) -> str:
        """Return the agent with the last claim to a job, or the name of the claim's file while it is being written."""
        attempt = self._attempts[number]
        path = self._path(number, str(attempt))
        owner = self._owners.get((number, attempt), "")
        if not owner:
            with suppress(OSError, ValueError):
                owner = self._owners[number, attempt] = path.read_text("ascii")
        return owner or path.name

    def _path(self, number: int, what: str) -> Path:
        return self._folder / f"{self._kind}-{number:06d}.{what}"


def count_blocks(tasks: int) -> int:
    """Return the number of blocks of tasks. Agents claim whole blocks."""
    return -(-tasks // block_size(tasks))


def block_size(tasks: int) -> int:
    """Return the number of tasks in a block."""
    return max(1, tasks // BLOCKS)


def open_to_agents(space: Workspace, terms: Mapping[str, Any], tasks: int, is_done: Callable[[int], bool]) -> None:
    """Open the plan to agents. The caller must hold the folder's lock, and no agent may be at work.

    Parameters
    ----------
    terms : mapping
        Options that agents need besides the plan, as JSON.
    tasks : int
        The number of tasks of the plan.
    is_done : callable
        Returns whether a task is done.
    """
    for folder in (space.claims, space.agents):
        if folder.exists():
            space.take_away(folder)
        folder.mkdir(parents=True)
    claims, size = Claims(space.claims, "", "task", count_blocks(tasks)), block_size(tasks)
    for block in range(count_blocks(tasks)):
        if all(map(is_done, range(block * size, min(tasks, (block + 1) * size)))):
            claims.finish(block)
    write_record(space.array, terms)


def read_terms(space: Workspace) -> dict[str, Any] | None:
    """Return the options for agents that `open_to_agents` wrote; None if the build is not open to agents."""
    try:
        return read_record(space.array)
    except FileNotFoundError:
        return None


def close_to_agents(space: Workspace, say: Callable[[str], None]) -> Callable[[], None]:
    """Wait until no agent is at work, and prevent new ones from starting. The caller must hold the folder's lock.

    Returns
    -------
    callable
        Opens the build to agents again if it was open before. Call it if the build is not continued here.

    Raises
    ------
    BuildLockedError
        If agents are at work.
    """
    terms = (
        read_terms(space) if space.plan.exists() else None
    )  # the mount may have cached the terms of a finished build

    def reopen() -> None:
        if terms is not None and space.array.exists():
            write_record(space.array, terms)

    if terms is None and not space.agents.exists():
        return reopen
    observer = Observer(space.agents)
    _wait(space, observer, say)
    if terms is not None:
        here = {"host": host(), "pid": os.getpid(), "since_s": round(time.time(), 3)}
        write_record(space.array, {**terms, "closed": here})
        try:  # an agent may have started before the build was closed; later ones find it closed
            _wait(space, observer, say)
        except BaseException:
            reopen()
            raise
    return reopen


def _wait(space: Workspace, observer: Observer, say: Callable[[str], None]) -> None:
    """Wait until the leases of all agents have expired. Raise if an agent is certainly at work."""

    def refuse(alive: Sequence[Agent]) -> BuildLockedError:
        return BuildLockedError(
            describe_agents(alive),
            place=space.out,
            hint=(
                f"wait for them ({program()} status {space.out} shows their progress), or stop them and "
                "run the same command again"
            ),
        )

    def announce(waiting: Sequence[Agent], limit_s: float) -> None:
        say(f"{program()}: waiting up to {limit_s:g} s, as {describe_agents(waiting, may=True)}")

    observer.wait(observer.at_work, refuse, announce)


def describe_closed(closed: Mapping[str, Any]) -> str:
    """Describe the process that has taken over a build, and how to continue if that process was killed."""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(closed["since_s"]))
    return (
        f"process {closed['pid']} on {closed['host']} has continued the build alone since {since}; if it was killed, "
        f"run {program()} submit or {program()} build again, with the same arguments"
    )


def describe_agents(agents: Iterable[Agent], *, may: bool = False) -> str:
    """Describe agents that are at work, or that may still be (`may`)."""
    known = list(agents)
    shown = "; ".join(agent.describe() for agent in known[:_SHOWN])
    more = f"; and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    verb = "may still be" if may else "is" if len(known) == 1 else "are"
    return f"{counted(len(known), 'agent')} {verb} at work here ({shown}{more})"
