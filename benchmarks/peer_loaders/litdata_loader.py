"""LitData: chunks of 64 MB on the local disk or an S3 server, StreamingDataset, StreamingDataLoader with two workers.

Images are bytes, since arrays are far slower.
"""

from functools import partial
from pathlib import Path
from typing import Any

from litdata import StreamingDataLoader, StreamingDataset, optimize
from litdata.streaming import downloader
from litdata.streaming.cache import Dir

from benchmarks.contender import Batches
from benchmarks.data import SourceImages
from benchmarks.peer_loaders.shared import NAMES, Decoded, encoded


def _sample(row: int, folder: str, kind: str) -> dict[str, Any]:
    source = _sources.setdefault((folder, kind), None) or SourceImages(Path(folder), kind)
    _sources[folder, kind] = source
    return {"image": encoded(source, row), "landmarks": source.landmarks[row].tobytes(), "label": row}


_sources: dict[tuple[str, str], Any] = {}


def pack(source: SourceImages, root: Path, shard_bytes: int = 64_000_000) -> None:
    """Write chunks."""
    function = partial(_sample, folder=str(source.folder), kind=source.kind)
    rows = list(range(len(source)))
    optimize(function, rows, output_dir=str(root / "data"), chunk_bytes=shard_bytes, num_workers=2)


class _Dataset(StreamingDataset):  # type: ignore[misc] # no types there
    def __init__(self, kind: str, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._decode = Decoded(kind)

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        sample = super().__getitem__(index)
        return self._decode(sample["image"], sample["landmarks"], sample["label"])


def open(source: str, kind: str, root: str, batch: int, server: str = "", cache: str = "") -> Batches:
    """The loader, shuffled, two workers. The settings of an S3 server are in the environment."""
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # it has no option for a server without TLS
    place = Dir(cache, f"s3://{Path(root).name}/data") if server else str(Path(root) / "data")
    dataset = _Dataset(kind, place, shuffle=True, drop_last=False)
    loader = StreamingDataLoader(dataset, batch_size=batch, num_workers=2, persistent_workers=True)
    return Batches(lambda epoch: loader, NAMES)
