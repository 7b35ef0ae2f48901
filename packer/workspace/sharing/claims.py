"""Claims: agents on any hosts claim numbered jobs by creating files exclusively.

An attempt at a job is the file ``KIND-NUMBER.ATTEMPT``, which holds the agent's name. An attempt that was given back
has a name that ends in ``.free``. A finished job has the file ``KIND-NUMBER.done``. If an agent's lease has expired, or
it has given a job back, another agent makes the next attempt. Nothing here needs a lock, a link or a clock.
"""

import os
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from packer.workspace.sharing.leases import Observer

_FREE = ".free"
_NAME = re.compile(rf"([a-z]+)-([0-9]+)\.(done|[0-9]+)({re.escape(_FREE)})?\Z")


class Claims:
    """The claims to jobs of one kind, as one agent sees and makes them.

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
        Finished jobs, as of the last look.
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
        # A listing may miss a file that is being renamed, so look for names without the mark of a job given back.
        self._given_back = {number for number, attempt in attempts.items() if (number, attempt) not in taken}

    def fresh(self) -> list[int]:
        """Return the jobs that no agent has claimed, or that were given back."""
        taken = {*(self._attempts.keys() - self._given_back), *self.done, *self.held}
        return [number for number in range(self._count) if number not in taken] if len(taken) < self._count else []

    def freed(self, observer: Observer) -> list[int]:
        """Return the jobs of agents whose lease has expired; `observer` must have looked just before."""
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
        """Forget jobs that others have taken, as of the last look, because this agent's lease had expired."""
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
