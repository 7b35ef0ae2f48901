"""Claims: numbered things to do, shared out among agents on any hosts by files that only one can make.

An attempt at a thing is the file ``KIND-NUMBER.ATTEMPT``, made exclusively, with the agent's name in it. One that was
given back gets ``.free`` at the end of its name. A thing that is done has the file ``KIND-NUMBER.done``. Once the lease
of an agent is over, or it has given a thing back, another makes the next attempt. Nothing here needs a lock, a link or
a clock.
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
    """The claims to things of one kind, as one agent sees and makes them.

    Parameters
    ----------
    folder : Path
        The folder of the claims.
    agent : str
        The name of the agent.
    kind : str
        Lower-case letters.
    count : int
        The things are numbered from 0.

    Attributes
    ----------
    held : dict of int to int
        The things that this agent has in hand, with the attempt.
    done : set of int
        As of the last look, or by this agent.
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
        """True if there is nothing left to do for anyone."""
        return len(self.done) == self._count

    def look(self) -> None:
        """List what others have claimed and done.

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
        # A listing may miss a name that is changed meanwhile, so that what was given back is taken under the same name.
        self._given_back = {number for number, attempt in attempts.items() if (number, attempt) not in taken}

    def fresh(self) -> list[int]:
        """Return the blocks that no agent holds."""
        taken = {*(self._attempts.keys() - self._given_back), *self.done, *self.held}
        return [number for number in range(self._count) if number not in taken] if len(taken) < self._count else []

    def freed(self, observer: Observer) -> list[int]:
        """Return the blocks held by agents whose lease has expired; `observer` must have looked just before."""
        known = self.done | self.held.keys() | self._given_back
        return [n for n in sorted(self._attempts) if n not in known and observer.is_over(self.owner(n))]

    def take(self, number: int) -> bool:
        """Claim a thing; False if another was faster."""
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
        """Say that a thing is done, by this agent or another."""
        with self._path(number, "done").open("wb"):
            pass
        self.held.pop(number, None)
        self.done.add(number)

    def give_back(self, numbers: Collection[int]) -> None:
        """Leave to others what this agent has in hand and has not finished."""
        for number in numbers:
            path = self._path(number, str(self.held.pop(number)))
            with suppress(OSError):  # nobody is kept waiting for longer than a lease
                os.replace(path, path.with_name(path.name + _FREE))

    def forget(self) -> None:
        """Leave to others what they have taken, as of the last look, since this agent's lease was over."""
        for number, attempt in list(self.held.items()):
            if number in self.done or self._attempts.get(number) != attempt:
                del self.held[number]

    def owner(self, number: int) -> str:
        """Return the agent that made the last claim to a thing, or the claim's file name while it is being written."""
        attempt = self._attempts[number]
        path = self._path(number, str(attempt))
        owner = self._owners.get((number, attempt), "")
        if not owner:
            with suppress(OSError, ValueError):
                owner = self._owners[number, attempt] = path.read_text("ascii")
        return owner or path.name

    def _path(self, number: int, what: str) -> Path:
        return self._folder / f"{self._kind}-{number:06d}.{what}"
