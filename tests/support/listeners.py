"""Listeners of progress that record what they hear, or end a build where a test wants it to end."""

import threading
from collections.abc import Callable

from packer import Progress


class StopError(Exception):
    """Ends a build where a test wants it to end."""


class Listener:
    """Records what it hears, and calls a function with each progress."""

    def __init__(self, act: Callable[[Progress], object] | None = None) -> None:
        self.heard: list[Progress] = []
        self.messages: list[str] = []
        self.threads: set[int] = set()
        self._act = act

    def on_progress(self, progress: Progress) -> None:
        """See `packer.ProgressListener`."""
        self.threads.add(threading.get_ident())
        self.heard.append(progress)
        if self._act is not None:
            self._act(progress)

    def on_message(self, line: str) -> None:
        """See `packer.ProgressListener`."""
        self.threads.add(threading.get_ident())
        self.messages.append(line)

    def stages(self) -> list[tuple[str, str]]:
        """The stages and their units, in order."""
        return list(dict.fromkeys((progress.stage, progress.unit) for progress in self.heard))

    def of(self, stage: str) -> list[Progress]:
        """What was heard of one stage."""
        return [progress for progress in self.heard if progress.stage == stage]


def stop_when(condition: Callable[[Progress], object]) -> Listener:
    """A listener that raises `StopError` as soon as a condition holds."""

    def act(progress: Progress) -> None:
        if condition(progress):
            raise StopError

    return Listener(act)
