"""The arm of `benchmarks.cold`, in a process of its own: a Loader whose dataset was dropped from the page cache."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.contender import Batches
from benchmarks.read_through import drop_cache
from benchmarks.reader_arms import loader


class ColdLoader:
    """A Loader over a dataset that is opened anew, with nothing of it in memory, for every epoch."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self._arm: Batches | None = None

    def prepare(self) -> None:
        """Drop the cache and open."""
        self._arm = None
        drop_cache(Path(self._options["root"]))
        self._arm = loader(**self._options)

    def run(self, epoch: int) -> int:
        """Consume an epoch, and let go of the dataset: what is mapped cannot be dropped."""
        assert self._arm is not None
        samples = self._arm.run(epoch)
        self._arm = None
        return samples

    def batches(self, epoch: int) -> Any:
        """The batches, for the check."""
        return loader(**self._options).batches(epoch)


def cold_loader(**options: Any) -> ColdLoader:
    """An arm."""
    return ColdLoader(options)
