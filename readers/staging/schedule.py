"""The order in which the stager downloads files, and deletes others for them. Bookkeeping without files or threads."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from operator import itemgetter
from typing import NamedTuple

_PATIENCE_S = 5.0
"""Time after which a client that was asked to release a file is no longer waited for, since it may be stopped."""

FileKey = tuple[str, str]
"""Key of a dataset, and name of a file in its manifest."""


@dataclass(eq=False)
class StagedFile:
    """A file of a remote dataset.

    Attributes
    ----------
    bytes : int
    state : {"absent", "unchecked", "fetching", "present"}
        An *unchecked* file is in the folder, but this stager has not written it: its digest is compared before its first
        use.
    pins : dict of int to int
        How often each client uses it.
    asked : dict of int to float
        Clients that were asked to release it, with the time in seconds.
    used : int
        When it was last used: a count of requests.
    """

    key: FileKey
    bytes: int
    state: str = "absent"
    pins: dict[int, int] = field(default_factory=dict)
    asked: dict[int, float] = field(default_factory=dict)
    used: int = 0

    @property
    def is_held(self) -> bool:
        """True if the file is in the folder."""
        return self.state in ("present", "unchecked")


@dataclass(eq=False)
class Request:
    """A client that waits for files, which it pins when all are present."""

    client: int
    number: int
    files: Sequence[StagedFile]
    pin: bool

    @property
    def is_ready(self) -> bool:
        """True if all files are present."""
        return all(file.state == "present" for file in self.files)


class Plan:
    """The files that one loader is going to use, in order, with the numbers of the batches that use them."""

    def __init__(self) -> None:
        self.position = 0
        self._uses: deque[tuple[int, int, StagedFile]] = deque()

    def extend(self, first: int, last: int, files: Iterable[StagedFile]) -> None:
        """Add files that some of the batches first … last use, after all others."""
        self._uses.extend((first, last, file) for file in files)

    def move(self, position: int) -> None:
        """Forget the batches before `position`."""
        self.position = max(self.position, position)
        while self._uses and self._uses[0][1] < self.position:
            self._uses.popleft()

    def first(self) -> Iterator[StagedFile]:
        """Yield the files of batch 0, until it has been read."""
        uses = takewhile(lambda use: use[0] == 0, self._uses if self.position == 0 else ())
        return (file for _, _, file in uses)

    def drop(self, file: StagedFile) -> None:
        """Forget all uses of a file."""
        self._uses = deque(use for use in self._uses if use[2] is not file)

    def __iter__(self) -> Iterator[tuple[int, StagedFile]]:
        """Yield the distance in batches and the file of every use, nearest first."""
        for first, last, file in self._uses:
            if last >= self.position:
                yield max(0, first - self.position), file


class Fetch(NamedTuple):
    """A file to download now, or to check if it is in the folder, after deleting others."""

    file: StagedFile
    evicted: Sequence[StagedFile]


class CacheSchedule:
    """The files in a cache, the clients that wait for some, and their plans.

    A file that a client waits for comes before files that are only planned, and a near use before a far one. While files
    of the first batch of a plan are downloaded, no download for later batches begins, so that they have the whole link.
    The file that is deleted is the one whose next use is farthest away, which is the best choice for a known order (Belady
    1966, doi:10.1147/sj.52.0078). A file in use is never deleted; clients are asked to release files that they no longer
    need.

    Parameters
    ----------
    limit : int
        Bytes that all files together may take.

    Attributes
    ----------
    held : int
        Bytes of the files that are in the folder or being downloaded.
    releases : list of (int, FileKey)
        Clients to be asked to release a file. The stager sends and clears them.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self.held = 0
        self.files: dict[FileKey, StagedFile] = {}
        self.requests: list[Request] = []
        self.plans: dict[tuple[int, int], Plan] = {}
        self.releases: list[tuple[int, FileKey]] = []
        self._count = 0
        self._lacking: set[StagedFile] = set()  # absent and unchecked files

    def add(self, key: FileKey, size: int, held: bool) -> None:
        """Add a file of a dataset that was opened, or one that an earlier stager has left in the folder."""
        if key not in self.files:
            self.files[key] = file = StagedFile(key, size, "unchecked" if held else "absent")
            self.held += size if held else 0
            self._lacking.add(file)

    def request(self, client: int, number: int, keys: Iterable[FileKey], pin: bool) -> Request:
        """Add a request; `ready` returns it when its files are present."""
        request = Request(client, number, [self.files[key] for key in keys], pin)
        self.requests.append(request)
        return request

    def ready(self) -> list[Request]:
        """Remove and return the requests whose files are all present, after pinning these."""
        found = [request for request in self.requests if request.is_ready]
        for request in found:
            self.requests.remove(request)
            self._count += 1
            for file in request.files:
                file.used = self._count
                if request.pin:
                    file.pins[request.client] = file.pins.get(request.client, 0) + 1
                    file.asked.pop(request.client, None)
        return found

    def free(self, client: int, keys: Iterable[FileKey]) -> None:
        """Undo one pin of some files."""
        for key in keys:
            file = self.files.get(key)
            if file is not None and client in file.pins:
                file.pins[client] -= 1
                if not file.pins[client]:
                    del file.pins[client]
                    file.asked.pop(client, None)

    def forget(self, client: int) -> None:
        """Remove everything of a client that has ended."""
        self.requests = [request for request in self.requests if request.client != client]
        self.plans = {key: plan for key, plan in self.plans.items() if key[0] != client}
        for file in self.files.values():
            file.pins.pop(client, None)
            file.asked.pop(client, None)

    def next(self, now: float) -> Fetch | None:
        """Return the download or check to start now, and mark it as begun; None if there is none, or no room yet.

        If files in use must go for it, their clients are added to `releases`.
        """
        if not self._lacking:
            return None
        first = {file for plan in self.plans.values() for file in plan.first()}
        allowed = self._lacking & first if any(file.state == "fetching" for file in first) else self._lacking
        for request in self.requests:
            for file in request.files:
                if file in allowed:
                    return self._fetch(file, -1.0, now)
        nearest = [next((use for use in plan if use[1] in allowed), None) for plan in self.plans.values()]
        distance, planned = min((use for use in nearest if use is not None), key=itemgetter(0), default=(0, None))
        return None if planned is None else self._fetch(planned, distance, now)

    def _next_uses(self) -> dict[StagedFile, float]:
        """Return the distance of the next use of every planned file, in the order of the plans."""
        found: dict[StagedFile, float] = {}
        for plan in self.plans.values():
            for distance, file in plan:
                if distance < found.get(file, math.inf):
                    found[file] = distance
        return found

    def _fetch(self, file: StagedFile, distance: float, now: float) -> Fetch | None:
        """Return the download of a file for which others with a later use are deleted, if that makes enough room."""
        # A full disk lowers the limit, but what the first client waits for must fit.
        needed = sum(one.bytes for one in self.requests[0].files) if self.requests else 0
        lacking = self.held + (0 if file.is_held else file.bytes) - max(self.limit, needed)
        evicted: list[StagedFile] = []
        promised = False
        for other in self._later(distance) if lacking > 0 else ():
            if other is file:
                continue
            if not other.pins:
                evicted.append(other)
            elif self._ask(other, now):
                promised = True
            else:
                continue
            lacking -= other.bytes
            if lacking <= 0:
                break
        if promised or lacking > 0:
            return None
        for other in evicted:
            self.lose(other)
        self.held += 0 if file.is_held else file.bytes
        file.state = "fetching"
        self._lacking.discard(file)
        return Fetch(file, evicted)

    def _later(self, distance: float) -> list[StagedFile]:
        """Return the files that may be deleted for one with its next use at `distance`, the best choice first."""
        next_use, kept = self._next_uses(), self.requests[0].files if self.requests else ()
        later = [
            file
            for file in self.files.values()
            if file.is_held and next_use.get(file, math.inf) > distance and file not in kept
        ]
        return sorted(later, key=lambda file: (-next_use.get(file, math.inf), file.used))

    def _ask(self, file: StagedFile, now: float) -> bool:
        """Ask the users of a file to release it; return False if one of them does not answer."""
        for client in file.pins:
            if client not in file.asked:
                file.asked[client] = now
                self.releases.append((client, file.key))
        return all(now - since < _PATIENCE_S for since in file.asked.values())

    def finish(self, file: StagedFile, present: bool) -> None:
        """Record the end of a download."""
        file.state = "present" if present else "absent"
        self.held -= 0 if present else file.bytes
        self._lacking |= set() if present else {file}
        self._count += 1
        file.used = self._count

    def lose(self, file: StagedFile) -> None:
        """Record that a file is no longer there: it was deleted, to make room or by a user."""
        if file.is_held:
            file.state = "absent"
            self.held -= file.bytes
            self._lacking.add(file)

    def doubt(self, file: StagedFile) -> None:
        """Have a file checked again before its next use."""
        if file.state == "present":
            file.state = "unchecked"
            self._lacking.add(file)

    def drop_plans(self, file: StagedFile) -> None:
        """Do not download a file until it is requested."""
        for plan in self.plans.values():
            plan.drop(file)

    def evict_one(self, now: float) -> tuple[StagedFile | None, bool]:
        """Remove the file that is best deleted and not in use, and return it.

        If all are in use, return None, and whether clients were asked to release one.
        """
        later = self._later(-1.0)
        found = next((file for file in later if not file.pins), None)
        if found is not None:
            self.lose(found)
        return found, found is None and any(self._ask(file, now) for file in later)
