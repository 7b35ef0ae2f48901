"""Progress of a job: what a listener receives, and the listener that shows it on a terminal."""

import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from tqdm import tqdm

from packer.workspace.durable import code_of_others
from shardspec.errors import UsageError
from shardspec.wording import counted, shorten

_LINE_INTERVAL_S = 5.0


@dataclass(frozen=True)
class Progress:
    """How far one stage of a job is.

    Attributes
    ----------
    stage : str
        ``"packing"`` and ``"writing"`` of a build; ``"checking"`` and ``"writing"`` of convert, merge and split;
        ``"splitting"`` of a split into many;
        ``"hashing"``, ``"examining damage"`` and ``"decoding"`` of verify; ``"exporting"``, ``"drawing"`` (preview),
        ``"comparing"`` (find_leaks), ``"listing"`` (list_dataset), ``"summing up"`` (rejects),
        ``"measuring"`` (bench), ``"trying"`` (dry_run).
    unit : str
        What is counted: ``"items"``, ``"shards"``, ``"files"``, ``"samples"``, ``"datasets"``, ``"passes"``,
        ``"parts"``; of a listing, what the dataset consists of, such as ``"classes"``.
    total, done : int
    resumed : int
        How many of the done ones an earlier call did.
    samples, rejects : int
        Samples and rejects from the items of this call; 0 if no items are counted.
    seconds : float
        Seconds since the stage began.
    ended : bool
        Whether this is the last report of the stage.
    failed : bool
        Whether an exception ended the stage.
    """

    stage: str
    unit: str
    total: int
    done: int
    resumed: int = 0
    samples: int = 0
    rejects: int = 0
    seconds: float = 0.0
    ended: bool = False
    failed: bool = False

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the end of the stage at the rate so far; None while the rate is unknown."""
        passed = self.done - self.resumed
        return self.seconds / passed * (self.total - self.done) if passed > 0 else None


class ProgressListener(Protocol):
    """Receives a job's progress, if passed as the argument ``progress`` of a call.

    Both methods are called in the thread that made the call. An exception from them ends the job, as Ctrl-C does, and
    is raised by the call; the same call again resumes the job. Before the call ends, the listener is notified that the
    stage has ended and failed.
    """

    def on_progress(self, progress: Progress) -> None:
        """Receive the state of a stage: at its start and end, when something is done, and about every second."""
        ...

    def on_message(self, line: str) -> None:
        """Receive a line for the user: what begins, a worker process that was lost, a warning."""
        ...


class Silent:
    """Ignores everything."""

    def on_progress(self, progress: Progress) -> None:
        """See `ProgressListener`."""

    def on_message(self, line: str) -> None:
        """See `ProgressListener`."""


class Terminal:
    """Shows progress on standard error: a bar for each stage on a terminal, plain lines every few seconds elsewhere."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._bar: Any = None
        self._printed_s = 0.0

    def on_message(self, line: str) -> None:
        """Print a line, above the bar if there is one."""
        if self._is_terminal:
            tqdm.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)

    def on_progress(self, progress: Progress) -> None:
        """Move the bar, or print a line now and then."""
        if progress.total == progress.resumed:  # nothing was left to do
            return
        if self._is_terminal:
            self._move_bar(progress)
        elif not progress.failed and (progress.ended or progress.seconds - self._printed_s >= _LINE_INTERVAL_S):
            self._printed_s = 0.0 if progress.ended else progress.seconds
            self.on_message(describe_progress(progress))

    def _move_bar(self, progress: Progress) -> None:
        if self._bar is None:
            self._bar = tqdm(
                total=progress.total,
                initial=progress.resumed,
                desc=progress.stage,
                unit=f" {progress.unit}",
                dynamic_ncols=True,
            )
        if progress.unit == "items":
            self._bar.set_postfix_str(_describe_items(progress), refresh=False)
        self._bar.update(progress.done - self._bar.n)
        if progress.ended:
            self._bar.close()
            self._bar = None


def describe_progress(progress: Progress) -> str:
    """One line: ``packing: 12/40 items, 31.0 samples/s, 1 reject, 9 s left``."""
    details = f", {_describe_items(progress)}" if progress.unit == "items" else ""
    seconds = progress.seconds_left if progress.done < progress.total else None
    left = "" if seconds is None else f", {seconds:.0f} s left"
    return f"{progress.stage}: {progress.done}/{progress.total} {progress.unit}{details}{left}"


def _describe_items(progress: Progress) -> str:
    return f"{progress.samples / max(1e-9, progress.seconds):.1f} samples/s, {counted(progress.rejects, 'reject')}"


def listener_of(progress: bool | ProgressListener) -> ProgressListener:
    """The listener for the argument ``progress`` of a call: True for the terminal, False for none, or a listener.

    Raises
    ------
    UsageError
        If `progress` is none of these.
    """
    if isinstance(progress, bool):
        return Terminal() if progress else Silent()
    if not all(callable(getattr(progress, name, None)) for name in ("on_progress", "on_message")):
        raise UsageError(
            f"progress: expected True, False, or an object with on_progress and on_message, found {shorten(progress)}"
        )
    return _Guest(progress)


class _Guest:
    """A caller's listener, whose errors of the system are none of the job's files."""

    def __init__(self, listener: ProgressListener) -> None:
        self._listener = listener

    def on_progress(self, progress: Progress) -> None:
        """See `ProgressListener`."""
        with code_of_others():
            self._listener.on_progress(progress)

    def on_message(self, line: str) -> None:
        """See `ProgressListener`."""
        with code_of_others():
            self._listener.on_message(line)


class Stage:
    """One stage of a job. Use as a context manager.

    Parameters
    ----------
    listener : ProgressListener
    stage, unit : str
    total, done : int
        See `Progress`.
    """

    def __init__(self, listener: ProgressListener, stage: str, total: int, unit: str, done: int = 0) -> None:
        self._listener = listener
        self._stage, self._unit, self._total = stage, unit, total
        self._done = self._resumed = done
        self._samples = self._rejects = 0
        self._started_s = time.monotonic()

    def __enter__(self) -> "Stage":
        self._report()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self._report(ended=True)
            return
        with suppress(Exception):  # it may come from the listener, and the first error is the one that ended the job
            self._report(ended=True, failed=True)

    def advance(self, count: int = 1, samples: int = 0, rejects: int = 0) -> None:
        """Count what was done; call with 0 to report that time passes."""
        self._done += count
        self._samples += samples
        self._rejects += rejects
        self._report()

    def _report(self, ended: bool = False, failed: bool = False) -> None:
        self._listener.on_progress(
            Progress(
                self._stage,
                self._unit,
                self._total,
                self._done,
                self._resumed,
                self._samples,
                self._rejects,
                time.monotonic() - self._started_s,
                ended,
                failed,
            )
        )
