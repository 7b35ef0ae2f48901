"""What a server shows: datasets, and builds until their datasets take their places."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from packer.packed.shown.background import Background, Job
from packer.packed.shown.dataset import ShownDataset
from packer.page.building import Building
from packer.page.cards import shown_text
from packer.page.facts import find_shared
from packer.page.looking import Looking
from shardspec.errors import DatasetError, UsageError
from shardspec.layout import Layout


class StillBuildingError(Exception):
    """A dataset was asked for, and there is only a build as yet."""


class Shown:
    """Datasets and builds, by number.

    Parameters
    ----------
    shown : sequence of Looking or Building
    opened : callable, optional
        Opens the dataset that a build has become, with what the user has given to show it with.
    """

    def __init__(self, shown: Sequence[Looking | Building], opened: Callable[[Path], Looking] | None = None) -> None:
        self._shown = list(shown)
        self._opened = opened or (lambda path: Looking(ShownDataset(path)))
        self._builds: dict[int, Building] = {}
        self._refused: dict[int, tuple[int, str]] = {}
        self._lock = threading.Lock()
        self._background = Background()
        self._comparing: tuple[list[ShownDataset], Job[list[str]]] | None = None

    def __len__(self) -> int:
        return len(self._shown)

    def __iter__(self) -> Iterator[Looking | Building]:
        return iter(self._shown)

    def __getitem__(self, number: int) -> Looking | Building:
        """A dataset, also if a build has become one meanwhile; or a build. `LookupError` if there is neither."""
        if number >= len(self._shown):
            raise LookupError(number)
        one = self._shown[number]
        if isinstance(one, Building):
            one = self._shown[number] = self._opened_if_done(number, one)
        return one

    def dataset(self, number: int) -> Looking:
        """A dataset.

        Raises
        ------
        LookupError
            If there is none with this number.
        StillBuildingError
            If it is only being built.
        """
        one = self[number]
        if isinstance(one, Building):
            raise StillBuildingError
        return one

    def build(self, number: int) -> Building:
        """A build, also one whose dataset is there already. `LookupError` if there is none."""
        one = self[number]
        if isinstance(one, Building):
            return one
        building = self._builds.setdefault(number, Building(one.dataset.path))
        if not building.is_there:
            raise LookupError(number)
        return building

    def why_refused(self, number: int) -> str:
        """Why the dataset that a build has become cannot be shown; empty if nothing is wrong."""
        return self._refused[number][1] if number in self._refused and isinstance(self[number], Building) else ""

    def shared_faults(self) -> list[str]:
        """What several of the datasets have in common, and should not; found once for those that are there."""
        there = [one.dataset for one in self._shown if isinstance(one, Looking)]
        if len(there) < 2:
            return []
        with self._lock:
            if self._comparing is None or self._comparing[0] != there:
                self._comparing = there, Job("comparing sources", lambda job: list(find_shared(there)))
                self._background.run(self._comparing[1])
            job = self._comparing[1]
        return job.result(there[0].patience_s)

    def _opened_if_done(self, number: int, build: Building) -> Looking | Building:
        """The dataset that a build has become; the build, and a reason, if it cannot be shown."""
        try:
            stamp = Layout(build.path).manifest.stat().st_mtime_ns
        except OSError:
            return build
        if self._refused.get(number, (0, ""))[0] != stamp:
            try:
                return self._opened(build.path)
            except (DatasetError, UsageError) as error:
                self._refused[number] = stamp, shown_text(str(error))
        return build
