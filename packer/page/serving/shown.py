"""The datasets that a server shows."""

import threading
from collections.abc import Iterator, Sequence

from packer.packed.shown.background import Background, Job
from packer.page.facts import find_shared
from packer.page.looking import Looking


class Shown:
    """Datasets by number.

    Parameters
    ----------
    shown : sequence of Looking
    """

    def __init__(self, shown: Sequence[Looking]) -> None:
        self._shown = list(shown)
        self._lock = threading.Lock()
        self._background = Background()
        self._comparing: Job[list[str]] | None = None

    def __len__(self) -> int:
        return len(self._shown)

    def __iter__(self) -> Iterator[Looking]:
        return iter(self._shown)

    def __getitem__(self, number: int) -> Looking:
        """Return a dataset. Raise `LookupError` if there is none with this number."""
        return self._shown[number]

    def shared_faults(self) -> list[str]:
        """Return faults that span datasets, such as a source in two of them. The datasets are compared once."""
        if len(self) < 2:
            return []
        datasets = [one.dataset for one in self]
        with self._lock:
            if self._comparing is None:
                self._comparing = Job("comparing sources", lambda job: list(find_shared(datasets)))
                self._background.run(self._comparing)
        return self._comparing.result(datasets[0].patience_s)
