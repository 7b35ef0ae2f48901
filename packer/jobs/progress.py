"""The progress display: a bar for each stage on a terminal, plain lines every few seconds elsewhere."""

import sys
import time
from types import TracebackType
from typing import Any

from tqdm import tqdm

from shardspec.plurals import counted

_LINE_INTERVAL_S = 5.0


def say(line: str) -> None:
    """Print a line on standard error, above the bar if there is one."""
    if sys.stderr.isatty():
        tqdm.write(line, file=sys.stderr)
    else:
        print(line, file=sys.stderr, flush=True)


class Progress:
    """Shows one stage. Use as a context manager.

    Parameters
    ----------
    stage : str
    total : int
    unit : str
        What is counted: ``"items"``, ``"shards"``.
    shown : bool
    """

    def __init__(self, stage: str, total: int, unit: str, *, shown: bool, done: int = 0) -> None:
        self._stage, self._total, self._unit = stage, total, unit
        self._shown = shown and total > done
        self._terminal = sys.stderr.isatty()
        self._bar: Any = None
        self._done = self._resumed = done
        self._samples = self._rejects = 0
        self._started_s = self._printed_s = time.monotonic()

    def __enter__(self) -> "Progress":
        if self._shown and self._terminal:
            self._bar = tqdm(
                total=self._total, initial=self._done, desc=self._stage, unit=f" {self._unit}", dynamic_ncols=True
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._shown and kind is None:
            self._print()

    def advance(self, count: int = 1, samples: int = 0, rejects: int = 0) -> None:
        """Count what was done; call with 0 to let time pass."""
        self._done += count
        self._samples += samples
        self._rejects += rejects
        if self._bar is not None:
            self._bar.update(count)
            if self._unit == "items":
                self._bar.set_postfix_str(self._details(), refresh=False)
        elif self._shown and time.monotonic() - self._printed_s >= _LINE_INTERVAL_S:
            self._print()

    def _details(self) -> str:
        rate = self._samples / max(1e-9, time.monotonic() - self._started_s)
        return f"{rate:.1f} samples/s, {counted(self._rejects, 'reject')}"

    def _print(self) -> None:
        self._printed_s = time.monotonic()
        passed, done = self._printed_s - self._started_s, self._done - self._resumed
        left = f", {passed / done * (self._total - self._done):.0f} s left" if done and self._done < self._total else ""
        details = f", {self._details()}" if self._unit == "items" else ""
        say(f"{self._stage}: {self._done}/{self._total} {self._unit}{details}{left}")
