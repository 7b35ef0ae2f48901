"""LitData: chunks of 64 MB, StreamingDataset, StreamingDataLoader with two workers.

Images are bytes, since arrays are far slower.
"""

from functools import partial
from pathlib import Path
from typing import Any

from litdata import StreamingDataLoader, StreamingDataset, optimize

from benchmarks.contender import Batches
from benchmarks.data import Source
from benchmarks.peer_loaders.shared import NAMES, Decoded, encoded


def _sample(row: int, folder: str, kind: str) -> dict[str, Any]:
    source = _sources.setdefault((folder, kind), None) or Source(Path(folder), kind)
    _sources[folder, kind] = source
    return {"image": encoded(source, row), "landmarks": source.landmarks[row].tobytes(), "label": row}


_sources: dict[tuple[str, str], Any] = {}


def pack(source: Source, root: Path) -> None:
    """Write chunks."""
    function = partial(_sample, folder=str(source.folder), kind=source.kind)
    rows = list(range(len(source)))
    optimize(function, rows, output_dir=str(root / "data"), chunk_bytes="64MB", num_workers=2)


class _Dataset(StreamingDataset):  # type: ignore[misc] # no types there
    def __init__(self, kind: str, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._decode = Decoded(kind)

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        sample = super().__getitem__(index)
        return self._decode(sample["image"], sample["landmarks"], sample["label"])


def open(source: str, kind: str, root: str, batch: int) -> Batches:
    """The loader, shuffled, two workers."""
    dataset = _Dataset(kind, str(Path(root) / "data"), shuffle=True, drop_last=False)
    loader = StreamingDataLoader(dataset, batch_size=batch, num_workers=2, persistent_workers=True)
    return Batches(lambda epoch: loader, NAMES)
