"""The datasets that a server shows."""

import threading
from collections.abc import Iterator, Sequence

from packer.page.dataset_view import DatasetView
from packer.page.summary import find_shared


class ViewedDatasets:
    """Datasets by number.

    Parameters
    ----------
    views : sequence of DatasetView
    """

    def __init__(self, views: Sequence[DatasetView]) -> None:
        self._views = list(views)
        self._lock = threading.Lock()
        self._shared: list[str] | None = None

    def __len__(self) -> int:
        return len(self._views)

    def __iter__(self) -> Iterator[DatasetView]:
        return iter(self._views)

    def __getitem__(self, number: int) -> DatasetView:
        """Return a dataset. Raise `LookupError` if there is none with this number."""
        return self._views[number]

    def shared_faults(self) -> list[str]:
        """Return faults that span datasets, such as a source in two of them. The datasets are compared once."""
        with self._lock:
            if self._shared is None:
                self._shared = list(find_shared([one.dataset for one in self]))
            return self._shared
