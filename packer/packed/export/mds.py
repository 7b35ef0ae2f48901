"""MDS, the shards of MosaicML Streaming: ``shard.00000.mds`` and ``index.json``, version 2 of the format."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packer.packed.export.leaves import Cut, Leaf, leaves_of
from shardspec.codecs import image_types
from shardspec.schema import Schema

_ENCODINGS = {
    **dict.fromkeys([*image_types(), "blob"], "bytes"),
    "jpeg": "jpeg",
    "png": "png",
    "text": "str",
    "json": "json",
}


class MDSShards:
    """Writes MDS (`packer.packed.export.export.Shards`). Truth values are uint8, images other than JPEG and PNG bytes."""

    def __init__(self, folder: Path, schema: Schema, shard_bytes: int) -> None:
        self._folder = folder
        self._leaves = leaves_of(schema)
        columns = [_column(leaf) for leaf in self._leaves]
        self._sizes = [size for _, size, _ in columns]
        self._encode: list[Callable[[Any], bytes]] = [encode for _, _, encode in columns]
        self._config: dict[str, Any] = {
            "column_encodings": [encoding for encoding, _, _ in columns],
            "column_names": [leaf.name for leaf in self._leaves],
            "column_sizes": self._sizes,
            "compression": None,
            "format": "mds",
            "hashes": [],
            "size_limit": shard_bytes,
            "version": 2,
        }
        self._shards: list[dict[str, Any]] = []
        self._cut = Cut(shard_bytes, self._write)

    def add(self, values: Mapping[str, Any]) -> None:
        """Append a sample of stored values."""
        data = [encode(leaf.value(values[leaf.name])) for leaf, encode in zip(self._leaves, self._encode, strict=True)]
        varying = [len(value) for value, size in zip(data, self._sizes, strict=True) if size is None]
        self._cut.add(np.array(varying, "<u4").tobytes() + b"".join(data))

    def close(self) -> int:
        """Write the last shard and the index, and return the number of shards."""
        self._cut.close()
        (self._folder / "index.json").write_text(json.dumps({"shards": self._shards, "version": 2}, sort_keys=True))
        return len(self._shards)

    def _write(self, samples: Sequence[bytes], offsets: Sequence[int]) -> None:
        config = json.dumps(self._config, sort_keys=True).encode()
        begin = 4 * (1 + len(offsets)) + len(config)
        head = np.array([len(samples), *(begin + offset for offset in offsets)], "<u4").tobytes() + config
        name = f"shard.{len(self._shards):05d}.mds"
        with (self._folder / name).open("xb") as file:
            file.write(head)
            file.writelines(samples)
        raw = {"basename": name, "bytes": len(head) + offsets[-1], "hashes": {}}
        self._shards.append({**self._config, "samples": len(samples), "raw_data": raw, "zip_data": None})


def _column(leaf: Leaf) -> tuple[str, int | None, Callable[[Any], bytes]]:
    """A column's encoding, its size in bytes if that never varies, and how a value is written."""
    if leaf.kind in _ENCODINGS:
        return _ENCODINGS[leaf.kind], None, bytes
    dtype = np.dtype("|u1") if leaf.dtype == np.bool_ else leaf.dtype
    if leaf.kind == "number":
        return dtype.name, dtype.itemsize, lambda value: value.tobytes()
    if leaf.shape is not None and 0 not in leaf.shape:
        sides = ",".join(map(str, leaf.shape))
        size = int(np.prod(leaf.shape)) * dtype.itemsize
        return f"ndarray:{dtype.name}:{sides}", size, lambda value: value.tobytes()
    return f"ndarray:{dtype.name}", None, _array


def _array(value: np.ndarray[Any, Any]) -> bytes:
    """An array with its shape before it: the number of axes and the width of their sizes in one byte, then the sizes."""
    width = next(n for n in range(4) if max(value.shape, default=0) < 1 << (8 << n))
    sizes = np.array(value.shape, f"<u{1 << width}")
    return bytes([value.ndim << 2 | width]) + sizes.tobytes() + value.tobytes()
