"""LitData's chunks: ``chunk-0-0.bin`` and ``index.json``, as ``litdata.optimize`` writes them."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packer.packed.export.leaves import Cut, Leaf, leaves_of
from shardspec.codecs import image_types
from shardspec.schema import Schema

_SERIALIZERS = {
    **dict.fromkeys([*image_types(), "blob"], "bytes"),
    "jpeg": "jpeg",
    "text": "str",
    "json": "str",
}
_DTYPES = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bool"),
)
"""LitData's numbers of numpy's dtypes."""


class LitDataShards:
    """Writes LitData's chunks (`packer.packed.export.export.Shards`).

    A sample is a dict. JPEGs are LitData's own kind, other images are bytes; integers and truth values are int64,
    floating numbers float64, JSON is text.
    """

    def __init__(self, folder: Path, schema: Schema, shard_bytes: int) -> None:
        self._folder, self._shard_bytes = folder, shard_bytes
        self._leaves = leaves_of(schema)
        self._kinds = [_serializer(leaf) for leaf in self._leaves]
        self._chunks: list[dict[str, Any]] = []
        self._cut = Cut(shard_bytes, self._write)

    def add(self, values: Mapping[str, Any]) -> None:
        """Append a sample of stored values."""
        data = [
            write(leaf.value(values[leaf.name])) for leaf, (_, write) in zip(self._leaves, self._kinds, strict=True)
        ]
        self._cut.add(np.array([len(value) for value in data], "<u4").tobytes() + b"".join(data))

    def close(self) -> int:
        """Write the last chunk and the index, and return the number of chunks."""
        self._cut.close()
        end: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
        names = [leaf.name for leaf in self._leaves]
        tree = {"type": "builtins.dict", "context": json.dumps(names), "children_spec": [end for _ in names]}
        config = {
            "chunk_bytes": self._shard_bytes,
            "chunk_size": None,
            "compression": None,
            "data_format": [kind for kind, _ in self._kinds],
            "data_spec": json.dumps([1, tree]),
            "encryption": None,
            "item_loader": "PyTreeLoader",
        }
        index = {"chunks": self._chunks, "config": config, "updated_at": "0"}  # a time would change the bytes
        (self._folder / "index.json").write_text(json.dumps(index, sort_keys=True))
        return len(self._chunks)

    def _write(self, samples: Sequence[bytes], offsets: Sequence[int]) -> None:
        begin = 4 * (1 + len(offsets))
        name = f"chunk-0-{len(self._chunks)}.bin"
        with (self._folder / name).open("xb") as file:
            file.write(np.array([len(samples), *(begin + offset for offset in offsets)], "<u4").tobytes())
            file.writelines(samples)
        found = {"chunk_bytes": offsets[-1], "chunk_size": len(samples), "dim": None, "filename": name}
        self._chunks.append(found)


def _serializer(leaf: Leaf) -> tuple[str, Callable[[Any], bytes]]:
    """The name of the serializer that reads a leaf, and how a value is written for it."""
    if leaf.kind in _SERIALIZERS:
        return _SERIALIZERS[leaf.kind], bytes
    if leaf.kind == "number" and leaf.dtype.kind == "f":
        return "float", lambda value: value.astype("<f8").tobytes()
    if leaf.kind == "number" and leaf.dtype != np.uint64:  # whose largest numbers int64 lacks
        return "int", lambda value: value.astype("<i8").tobytes()
    dtype = _DTYPES.index(leaf.dtype.name)
    return "numpy", lambda value: np.array([dtype, value.ndim, *value.shape], "<u4").tobytes() + value.tobytes()
