"""Progress of a job: the reports that a listener receives, and the listener that shows them on a terminal."""

import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Protocol

from packer.sources.base import counting
from shardspec.errors import UsageError
from shardspec.wording import counted, first_words, list_some, shorten

_LINE_INTERVAL_S = 5.0
_STEP_S = 1.0
_RECENT_S = 60.0
"""The rate is measured over the last `_RECENT_S` seconds, in steps."""

_LATE_S = 1.0
_LONG_S = 120
"""Longer times are shown in minutes or hours."""

_LEAST_ITEMS = 1000
"""The stages before the work are shown only if there are at least this many items."""

_REASONS = 20
_SHOWN = 2
_REASON_LENGTH = 60
_VALUE = re.compile(r"'[^']*'|\"[^\"]*\"|(?<![A-Za-z_])[0-9]+(?:[.,][0-9]+)*")
"""Parts in which reasons of one kind differ: quoted names, and numbers that are no part of a word."""


@dataclass(frozen=True)
class Progress:
    """Progress of one stage of a job.

    Attributes
    ----------
    stage : str
        ``"listing"`` (only if it takes a while), ``"packing"`` and ``"writing"`` of a build, and ``"uploading"`` if it
        packs into a store; ``"checking"`` and ``"writing"`` of convert, merge, split and a copied part;
        ``"copying"``; ``"splitting"`` of a split into many;
        ``"hashing"``, ``"examining damage"`` and ``"decoding"`` of verify; ``"exporting"``, ``"drawing"`` (preview),
        ``"comparing"`` (find_leaks), ``"listing"`` (list_dataset), ``"summing up"`` (rejects),
        ``"measuring"`` (bench), ``"trying"`` (dry_run).
    unit : str
        What is counted: ``"items"``, ``"shards"``, ``"files"``, ``"samples"``, ``"datasets"``, ``"passes"``,
        ``"parts"``; while a public dataset is listed, its own unit, such as ``"classes"``.
    total : int or None
        None while a source is being listed.
    done : int
    resumed : int
        Number of units done by an earlier call.
    samples, rejects : int
        Samples and rejects from the items of this call; 0 if no items are counted.
    seconds : float
        Seconds since the stage began.
    ended : bool
        Whether this is the last report of the stage.
    failed : bool
        Whether an exception ended the stage.
    bytes : int
        Bytes written by this call, if known: samples of finished tasks, or shards.
    reasons : dict of str to int
        Number of rejects by reason, the most frequent first. Names and numbers are left out of a reason. Of many
        reasons, only the first ones are counted.
    rate, sample_rate : float or None
        Units and samples per second over the last minute; None while unknown.
    frames : int
        Number of frames examined so far of the videos being processed, which shows that a long video is not stuck.
    """

    stage: str
    unit: str
    total: int | None
    done: int
    resumed: int = 0
    samples: int = 0
    rejects: int = 0
    seconds: float = 0.0
    ended: bool = False
    failed: bool = False
    bytes: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    rate: float | None = None
    sample_rate: float | None = None
    frames: int = 0

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the end of the stage at the rate of the last minute; None while unknown."""
        passed = self.done - self.resumed
        if self.total is None or passed <= 0:
            return None
        return (self.total - self.done) / (self.rate or passed / max(self.seconds, 1e-9))


class ProgressListener(Protocol):
    """Receives a job's progress, if passed as the argument ``progress`` of a call.

    Both methods are called in the thread of the call. An exception from them ends the job, as Ctrl-C does, and is
    raised by the call; the same call again resumes the job. Before the call ends, the listener receives a last report,
    with `ended` and `failed`.
    """

    def on_progress(self, progress: Progress) -> None:
        """Receive the state of a stage: at its start and end, when a unit is done, and about every second."""
        ...

    def on_message(self, line: str) -> None:
        """Receive a line for the user, such as the start of a stage, the loss of a worker process, or a warning."""
        ...


class Silent:
    """Ignores everything."""

    def on_progress(self, progress: Progress) -> None: ...

    def on_message(self, line: str) -> None: ...


class Terminal:
    """Shows progress on standard error: a bar for each stage on a terminal, otherwise a line every few seconds.

    Nothing more is shown once writing fails, because the reader of the pipe or the terminal is gone.
    """

    def __init__(self) -> None:
        self._is_open = sys.stderr is not None
        self._is_terminal = self._is_open and sys.stderr.isatty()
        self._bar: Any = None
        self._printed_s = 0.0

    def on_message(self, line: str) -> None:
        """Print a line, above the bar if there is one."""
        if not self._is_open:
            return
        with self._writing():
            if self._is_terminal:
                _tqdm().write(line, file=sys.stderr)
            else:
                print(line, file=sys.stderr, flush=True)

    def on_progress(self, progress: Progress) -> None:
        """Move the bar, or print a line every few seconds."""
        if progress.total == progress.resumed:  # nothing was left to do
            return
        if self._is_terminal:
            with self._writing():
                self._move_bar(progress)
        elif not progress.failed and (progress.ended or self._is_due(progress)):
            self._printed_s = 0.0 if progress.ended else progress.seconds
            self.on_message(describe_progress(progress))

    def _is_due(self, progress: Progress) -> bool:
        """Return whether to print a line before the last one, which repeats that of the last unit."""
        return progress.done != progress.total and progress.seconds - self._printed_s >= _LINE_INTERVAL_S

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Ignore an error while writing, and write no more, because a job must not end for want of a reader."""
        try:
            yield
        except OSError:
            self._is_open = self._is_terminal = False

    def _move_bar(self, progress: Progress) -> None:
        if self._bar is None:
            self._bar = _tqdm()(
                total=progress.total,
                initial=progress.resumed,
                desc=progress.stage,
                unit=f" {progress.unit}",
                dynamic_ncols=True,
            )
        details = _describe_details(progress)
        if details:
            self._bar.set_postfix_str(details, refresh=False)
        self._bar.update(progress.done - self._bar.n)
        if progress.ended:
            self._bar.close()
            self._bar = None


def _tqdm() -> Any:
    """Import the class of bars only when needed, because neither logs nor worker processes show bars."""
    from tqdm import tqdm

    return tqdm


def describe_progress(progress: Progress) -> str:
    """Format progress: ``packing: 12/40 items, 31.0 samples/s, 2.1 MB, 1 reject (decode: …), 9 s left``."""
    details = _describe_details(progress)
    seconds = progress.seconds_left if progress.total is None or progress.done < progress.total else None
    left = "" if seconds is None else f", {describe_seconds(seconds)} left"
    of = f"{progress.done:,}" if progress.total is None else f"{progress.done}/{progress.total}"
    return f"{progress.stage}: {of} {progress.unit}{', ' if details else ''}{details}{left}"


def _describe_details(progress: Progress) -> str:
    size = [f"{progress.bytes / 1e6:.1f} MB"] if progress.bytes else []
    under_way = [f"{counted(progress.frames, 'frame')} of videos under way"] if progress.frames else []
    if not progress.samples and not progress.rejects:  # none yet, or a stage without samples
        return ", ".join((*under_way, *size))
    rate = progress.samples / max(1e-9, progress.seconds) if progress.sample_rate is None else progress.sample_rate
    shown = list_some([reason if n == 1 else f"{n} × {reason}" for reason, n in progress.reasons.items()], _SHOWN)
    why = f" ({shown})" if shown else ""
    return ", ".join((f"{rate:.1f} samples/s", *under_way, *size, f"{counted(progress.rejects, 'reject')}{why}"))


def describe_seconds(seconds: float) -> str:
    """Format a duration, for example ``42 s``, ``3 min`` or ``1.5 h``."""
    if seconds < _LONG_S:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 60 * _LONG_S else f"{seconds / 3600:.1f} h"


def without_values(reason: str) -> str:
    """Replace names and numbers in a reason, which differ from item to item, by ``…``."""
    return _VALUE.sub("…", reason)


def reason_kind(reason: str) -> str:
    """Return the first words of a reason without its values."""
    return first_words(without_values(reason), _REASON_LENGTH)


def listener_of(progress: bool | ProgressListener) -> ProgressListener:
    """Return the listener for the argument ``progress`` of a call: the terminal for True, none for False.

    Raises
    ------
    UsageError
        If `progress` is none of these.
    """
    if isinstance(progress, bool):
        return Terminal() if progress else Silent()
    if not all(callable(getattr(progress, name, None)) for name in ("on_progress", "on_message")):
        raise UsageError(
            option="progress",
            expected="True, False, or an object with on_progress and on_message",
            found=shorten(progress),
        )
    return progress


class Stage:
    """One stage of a job. Use as a context manager.

    Parameters
    ----------
    listener : ProgressListener
    stage, unit : str
    total, done : int
        See `Progress`.
    least : int
        Report nothing before this number of units is done and a second has passed, so that short stages stay silent.
    """

    def __init__(
        self, listener: ProgressListener, stage: str, total: int | None, unit: str, done: int = 0, *, least: int = 0
    ) -> None:
        self._listener = listener
        self._least = least
        self._reported = False
        self._started_s = time.monotonic()
        self._recent = deque([(self._started_s, done, 0)])
        self._state = Progress(stage, unit, total, done, done)

    def __enter__(self) -> "Stage":
        self._report()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self._report(ended=True)
            return
        with suppress(Exception):  # another error of the listener must not replace the first one
            self._report(ended=True, failed=True)

    def advance(
        self,
        count: int = 1,
        samples: int = 0,
        rejects: int = 0,
        size: int = 0,
        reasons: Iterable[str] = (),
        frames: int | None = None,
    ) -> None:
        """Count units, and report. Call with 0 to report that time passes.

        Parameters
        ----------
        size : int
            Bytes.
        reasons : iterable of str
            Reasons of rejects.
        frames : int, optional
            Frames of the videos being processed, if they were just counted.
        """
        state = self._state
        found = state.reasons
        for kind in map(reason_kind, reasons):
            if kind in found or len(found) < _REASONS:
                found = {**found, kind: found.get(kind, 0) + 1}
        self._state = replace(
            state,
            done=state.done + count,
            samples=state.samples + samples,
            rejects=state.rejects + rejects,
            bytes=state.bytes + size,
            frames=state.frames if frames is None and not count else frames or 0,
            reasons=found if found is state.reasons else dict(sorted(found.items(), key=lambda entry: -entry[1])),
        )
        self._report()

    def _report(self, ended: bool = False, failed: bool = False) -> None:
        now_s = time.monotonic()
        state, recent = self._state, self._recent
        if now_s - recent[-1][0] >= _STEP_S:
            recent.append((now_s, state.done, state.samples))
            while len(recent) > 2 and now_s - recent[1][0] > _RECENT_S:
                recent.popleft()
        seconds, (since_s, done, samples) = now_s - self._started_s, recent[0]
        late = state.done - state.resumed >= self._least and seconds >= _LATE_S
        if self._least and not self._reported and not late:
            return
        self._reported = True
        passed_s = now_s - since_s
        known = passed_s > 0 and state.done > done
        rate = (state.done - done) / passed_s if known else None
        sample_rate = (state.samples - samples) / passed_s if passed_s > 0 else None
        self._listener.on_progress(
            replace(state, seconds=seconds, ended=ended, failed=failed, rate=rate, sample_rate=sample_rate)
        )


@contextmanager
def counted_stage(listener: ProgressListener, name: str, total: int | None = None) -> Iterator[None]:
    """Show a stage with the number of items that have been listed, or planned, inside the block."""
    with Stage(listener, name, total, "items", least=_LEAST_ITEMS) as stage, counting(stage.advance):
        yield
