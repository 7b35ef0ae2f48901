"""Shards of LitData and of MosaicML Streaming, in the same bytes for the same samples."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shardspec.codecs import codec_for, image_types
from shardspec.errors import BuildError
from shardspec.schema import Field, Schema

_FILE_MAX = 2**32 - 1
"""Both libraries have offsets of 32 bits in their files."""

_KINDS = {**dict.fromkeys([*image_types(), "blob"], "bytes"), "jpeg": "jpeg", "text": "str"}
_LITDATA_KINDS = {**_KINDS, "json": "str"}
_MDS_KINDS = {**_KINDS, "png": "png", "json": "json"}
_LITDATA_DTYPES = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bool"),
)
"""numpy's dtypes in the order of LitData's numbers."""


class Leaf(NamedTuple):
    """How the values of one field are written.

    Attributes
    ----------
    kind : str
        ``"text"``, ``"json"``, ``"blob"``, ``"number"``, ``"array"``; of encoded images, the name of their codec.
    dtype : dtype
        Of a number or an array.
    shape : tuple of int or None
        Of an array; None if it varies.
    value : callable
        Turns a stored value into bytes (UTF-8 for text), or into an array.
    """

    name: str
    kind: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None
    value: Callable[[Any], Any]


class Shards(ABC):
    """Writes samples into the shards of another library.

    Parameters
    ----------
    shard_bytes : int
        Bytes of samples in a shard. A larger sample has a shard to itself.
    """

    def __init__(self, folder: Path, schema: Schema, shard_bytes: int) -> None:
        self._folder, self._shard_bytes = folder, shard_bytes
        self._leaves = sorted(map(_leaf, schema), key=lambda leaf: leaf.name)
        self._samples: list[bytes] = []
        self._offsets = [0]
        self._index: list[dict[str, Any]] = []

    def add(self, values: Mapping[str, Any]) -> None:
        """Append a sample of stored values."""
        sample = self._encode([leaf.value(values[leaf.name]) for leaf in self._leaves])
        if len(sample) > _FILE_MAX // 2:
            raise BuildError(
                expected="samples of less than 2 GiB, which offsets of 32 bits reach", found=f"{len(sample)} bytes"
            )
        if self._samples and self._offsets[-1] + len(sample) > self._shard_bytes:
            self._end_shard()
        self._samples.append(sample)
        self._offsets.append(self._offsets[-1] + len(sample))

    def close(self) -> int:
        """Write the last shard and the index, and return the number of shards."""
        if self._samples:
            self._end_shard()
        (self._folder / "index.json").write_text(json.dumps(self._describe(), sort_keys=True))
        return len(self._index)

    def _end_shard(self) -> None:
        entry, name, header = self._begin(len(self._index), self._offsets)
        with (self._folder / name).open("xb") as file:
            file.write(header)
            file.writelines(self._samples)
        self._index.append(entry)
        self._samples, self._offsets = [], [0]

    @abstractmethod
    def _encode(self, values: Sequence[Any]) -> bytes:
        """Encode a sample, given the values of its leaves."""

    @abstractmethod
    def _begin(self, number: int, offsets: Sequence[int]) -> tuple[dict[str, Any], str, bytes]:
        """Return the shard's entry in the index, its name, and the bytes before its samples.

        `offsets` are the ends of the samples, counted from the first one's beginning, with 0 before them.
        """

    @abstractmethod
    def _describe(self) -> dict[str, Any]:
        """Return the content of ``index.json``."""


class LitDataShards(Shards):
    """LitData's chunks: ``chunk-0-0.bin`` and ``index.json``, as ``litdata.optimize`` writes them.

    A sample is a dict. JPEGs are LitData's own kind, other images are bytes. Integers and booleans are int64, floating
    point numbers float64, JSON is text.
    """

    def __init__(self, folder: Path, schema: Schema, shard_bytes: int) -> None:
        super().__init__(folder, schema, shard_bytes)
        self._kinds = list(map(self._serializer, self._leaves))

    def _encode(self, values: Sequence[Any]) -> bytes:
        data = [write(value) for value, (_, write) in zip(values, self._kinds, strict=True)]
        return np.array([len(value) for value in data], "<u4").tobytes() + b"".join(data)

    def _begin(self, number: int, offsets: Sequence[int]) -> tuple[dict[str, Any], str, bytes]:
        begin, name, samples = 4 * (1 + len(offsets)), f"chunk-0-{number}.bin", len(offsets) - 1
        entry = {"chunk_bytes": offsets[-1], "chunk_size": samples, "dim": None, "filename": name}
        return entry, name, np.array([samples, *(begin + offset for offset in offsets)], "<u4").tobytes()

    def _describe(self) -> dict[str, Any]:
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
        return {"chunks": self._index, "config": config, "updated_at": "0"}  # a time would change the bytes

    def _serializer(self, leaf: Leaf) -> tuple[str, Callable[[Any], bytes]]:
        """Return the name of the serializer that reads a leaf, and the function that writes a value for it."""
        if leaf.kind in _LITDATA_KINDS:
            return _LITDATA_KINDS[leaf.kind], bytes
        if leaf.kind == "number" and leaf.dtype.kind == "f":
            return "float", lambda value: value.astype("<f8").tobytes()
        if leaf.kind == "number" and leaf.dtype != np.uint64:  # int64 lacks its largest numbers
            return "int", lambda value: value.astype("<i8").tobytes()
        dtype = _LITDATA_DTYPES.index(leaf.dtype.name)
        return "numpy", lambda value: np.array([dtype, value.ndim, *value.shape], "<u4").tobytes() + value.tobytes()


class MDSShards(Shards):
    """MDS of MosaicML Streaming: ``shard.00000.mds`` and ``index.json``, version 2 of the format.

    Booleans are uint8, images other than JPEG and PNG are bytes.
    """

    def __init__(self, folder: Path, schema: Schema, shard_bytes: int) -> None:
        super().__init__(folder, schema, shard_bytes)
        columns = list(map(self._column, self._leaves))
        self._sizes = [size for _, size, _ in columns]
        self._encoders = [encode for _, _, encode in columns]
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

    def _encode(self, values: Sequence[Any]) -> bytes:
        data = [encode(value) for value, encode in zip(values, self._encoders, strict=True)]
        varying = [len(value) for value, size in zip(data, self._sizes, strict=True) if size is None]
        return np.array(varying, "<u4").tobytes() + b"".join(data)

    def _begin(self, number: int, offsets: Sequence[int]) -> tuple[dict[str, Any], str, bytes]:
        config, name, samples = (
            json.dumps(self._config, sort_keys=True).encode(),
            f"shard.{number:05d}.mds",
            len(offsets) - 1,
        )
        begin = 4 * (1 + len(offsets)) + len(config)
        head = np.array([samples, *(begin + offset for offset in offsets)], "<u4").tobytes() + config
        raw = {"basename": name, "bytes": len(head) + offsets[-1], "hashes": {}}
        return {**self._config, "samples": samples, "raw_data": raw, "zip_data": None}, name, head

    def _describe(self) -> dict[str, Any]:
        return {"shards": self._index, "version": 2}

    def _column(self, leaf: Leaf) -> tuple[str, int | None, Callable[[Any], bytes]]:
        """Return a column's encoding, its size in bytes if that is fixed, and the function that encodes a value."""
        if leaf.kind in _MDS_KINDS:
            return _MDS_KINDS[leaf.kind], None, bytes
        dtype = np.dtype("|u1") if leaf.dtype == np.bool_ else leaf.dtype
        if leaf.kind == "number":
            return dtype.name, dtype.itemsize, lambda value: value.tobytes()
        if leaf.shape is not None and 0 not in leaf.shape:
            sides = ",".join(map(str, leaf.shape))
            size = int(np.prod(leaf.shape)) * dtype.itemsize
            return f"ndarray:{dtype.name}:{sides}", size, lambda value: value.tobytes()
        return f"ndarray:{dtype.name}", None, _sized_array


SHARDS: Mapping[str, type[Shards]] = {"litdata": LitDataShards, "mds": MDSShards}


def _leaf(field: Field) -> Leaf:
    dtype, codec = field.numpy_dtype, field.codec.name
    if field.kind == "text":
        return Leaf(field.name, "json" if codec == "json" else "text", dtype, None, _utf8)
    if field.kind == "fixed":
        return Leaf(field.name, "array" if field.shape else "number", dtype, field.fixed_shape, np.asarray)
    if field.is_encoded_image:
        return Leaf(field.name, codec, dtype, None, bytes)
    if field.kind == "bytes" and len(field.shape) == 1:
        return Leaf(field.name, "blob", dtype, None, bytes)
    return Leaf(field.name, "array", dtype, None, codec_for(field).decode)


def _utf8(data: Any) -> bytes:
    """Return a text as valid UTF-8, with escapes for other bytes."""
    raw = bytes(data)
    try:
        raw.decode()
    except UnicodeDecodeError:
        return raw.decode("utf-8", "backslashreplace").encode()
    return raw


def _sized_array(value: np.ndarray[Any, Any]) -> bytes:
    """Encode an array with its shape: the number of axes and the width of their sizes in one byte, then the sizes."""
    width = next(n for n in range(4) if max(value.shape, default=0) < 1 << (8 << n))
    sizes = np.array(value.shape, f"<u{1 << width}")
    return bytes([value.ndim << 2 | width]) + sizes.tobytes() + value.tobytes()
