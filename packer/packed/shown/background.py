"""Work that takes longer than a page may: done by a thread of its own, one job after another."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class NotReadyError(Exception):
    """The requested value is still being computed.

    Attributes
    ----------
    job : Job
        That makes it.
    """

    def __init__(self, job: "Job[Any]") -> None:
        super().__init__(f"{job.what}: {job.progress}")
        self.job = job


class Job(Generic[T]):
    """Something that is made once.

    Parameters
    ----------
    what : str
        What is being done, for people: ``"counting source"``.
    work : callable
        Makes it; called with the job, whose `share` it sets.

    Attributes
    ----------
    share : float
        How much of it is done, from 0 to 1.
    begun : bool
        Whether it no longer waits for others.
    error : Exception or None
        What ended it.
    """

    def __init__(self, what: str, work: "Callable[[Job[T]], T]") -> None:
        self.what = what
        self.share = 0.0
        self.begun = False
        self.error: Exception | None = None
        self._work = work
        self._result: T | None = None
        self._done = threading.Event()

    @property
    def progress(self) -> str:
        """How far it is, for people."""
        return f"{100 * self.share:.0f} %" if self.begun else "waiting"

    def report(self, share: float) -> None:
        """Note how much is done."""
        self.share = min(1.0, share)

    def run(self) -> None:
        """Do it."""
        self.begun = True
        try:
            self._result = self._work(self)
        except Exception as error:
            self.error = error
        self._done.set()

    @property
    def has_ended(self) -> bool:
        """True if it is made, or has failed."""
        return self._done.is_set()

    def wait(self) -> None:
        """Wait until it has ended."""
        self._done.wait()

    def result(self, patience_s: float | None) -> T:
        """Return the result of the job.

        Parameters
        ----------
        patience_s : float or None
            How long to wait for it at most; None waits until it is there.

        Raises
        ------
        NotReadyError
            If it is not there by then.
        Exception
            What ended the job.
        """
        if not self._done.wait(patience_s):
            raise NotReadyError(self)
        if self.error is not None:
            raise self.error
        return self._result  # type: ignore[return-value] # set by run


class Background:
    """Runs jobs in the order in which they were handed in. The thread exists only while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Job[Any]] = deque()
        self._busy = False

    def run(self, job: Job[Any]) -> None:
        """Hand in a job."""
        with self._lock:
            self._waiting.append(job)
            if not self._busy:
                self._busy = True
                threading.Thread(target=self._work, name="packer looking", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._busy = False
                    return
                job = self._waiting.popleft()
            job.run()
