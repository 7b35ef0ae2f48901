"""Write shards in the format tfrecord: a file of ``tf.train.Example`` records with an index for other tools."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from packer.assembly.writers.base import RECORDS, IndexWriter, ShardSize, block_rows_of, check_rows, count_rows
from shardspec.columns import Columns
from shardspec.errors import BuildError
from shardspec.formats.tfrecord import Feature, entry_head, features, masked, pad_varints, varint, varint_bytes
from shardspec.schema import Field, Schema

BLOCK_BYTES = 1 << 20
"""Encoded bytes per block, which only makes disk reads sequential. With the index, reading a single row is cheap."""

_HEAD_BYTES = 12
"""Header of a record: its length and the checksum of the length."""
_RECORD_BYTES_MAX = 2**31 - 1
"""Largest record in bytes, a limit of Protobuf."""
_BOX_SIDES = ("xmin", "ymin", "xmax", "ymax")


class TFRecordShardWriter:
    """Writes one TFRecord file, its index, and an ``.idx`` for other tools (`packer.assembly.writers.base`).

    A record is a serialised ``tf.train.Example``. It starts with the fixed fields, whose features take the same number
    of bytes in every record, followed by the other fields. Last come features for other readers, which ours ignore:
    ``image/format``, ``image/height``, ``image/width``, ``image/channels``, ``image/class/text``, and the box of the
    face in the image, ``image/object/bbox/{xmin,ymin,xmax,ymax}``, from 0 to 1.
    """

    def __init__(self, folder: Path, name: str, schema: Schema, size: ShardSize) -> None:
        self.block_rows = block_rows_of(size, BLOCK_BYTES)
        self._name = name
        self._size = size
        self._schema = schema
        self._rows = 0
        self._end = 0
        stored = features(schema)
        self._fixed = [f for f in stored if f.field.is_fixed]
        self._varying = [f for f in stored if not f.field.is_fixed]
        self._derived = _Derived(schema)
        self._path = folder / f"{name}.tfrecord"
        self._records = self._path.open("xb")
        self._lines = (folder / f"{name}.idx").open("xb")
        self._index = IndexWriter("tfrecord", schema, size.samples, summed=[RECORDS])

    def write(self, rows: Columns) -> None:
        """Append rows."""
        count = count_rows(self._schema, rows)
        prefixes = np.concatenate([np.empty((count, 0), np.uint8), *(_fixed(f, rows) for f in self._fixed)], axis=1)
        derived = self._derived.entries(rows, count)
        firsts, records = [], []
        ends: dict[str, list[int]] = {feature.field.name: [] for feature in self._varying}
        sizes: dict[str, list[int]] = {feature.field.name: [] for feature in self._varying}
        for row in range(count):
            varying: list[bytes] = []
            place = prefixes.shape[1]
            for feature in self._varying:
                head, payload = _varying(feature, rows[feature.field.name][row])
                varying += head, payload
                place += len(head) + len(payload)
                ends[feature.field.name].append(place)
                sizes[feature.field.name].append(len(payload))
            entries = b"".join([prefixes[row].tobytes(), *varying, derived[row]])
            head = b"\x0a" + varint(len(entries))
            firsts.append(self._end + _HEAD_BYTES + len(head))
            records.append((self._end + _HEAD_BYTES, len(head) + len(entries)))
            self._record(head + entries)
        self._rows += count
        starts = np.array(firsts, np.int64)
        self._index.add(RECORDS, starts=[start for start, _ in records], sizes=[size for _, size in records])
        for name, found in sizes.items():
            self._index.add(name, starts=starts + np.array(ends[name], np.int64) - found, sizes=found)
        for feature in self._fixed:
            starts = starts + len(feature.head)
            self._index.add(feature.field.name, starts=starts)
            starts = starts + feature.payload_bytes

    def _record(self, example: bytes) -> None:
        if len(example) > _RECORD_BYTES_MAX:
            raise BuildError(
                place=self._name, expected=f"records of at most {_RECORD_BYTES_MAX} bytes", found=len(example)
            )
        length = len(example).to_bytes(8, "little")
        head, tail = _crc(length), _crc(example)
        self._records.writelines((length, head, example, tail))
        size = len(length) + len(head) + len(example) + len(tail)
        self._lines.write(b"%d %d\n" % (self._end, size))
        self._end += size

    def close(self) -> None:
        """Finish the files."""
        self._records.close()
        self._lines.close()
        check_rows(self._name, self._size, self._rows)
        self._index.write(self._path, self.block_rows)


def _crc(data: bytes) -> bytes:
    return masked(google_crc32c.value(data)).to_bytes(4, "little")


def _fixed(feature: Feature, rows: Columns) -> Any:
    """Return the map entries of a fixed field, (n, size), uint8."""
    values = rows[feature.field.name]
    count = len(values)
    if feature.kind == "int64":
        payload = pad_varints(values.reshape(count, -1), varint_bytes(feature.field)).reshape(
            count, feature.payload_bytes
        )
    else:
        little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
        payload = little.reshape(-1).view(np.uint8).reshape(count, feature.payload_bytes)
    head = np.broadcast_to(np.frombuffer(feature.head, np.uint8), (count, len(feature.head)))
    return np.concatenate([head, payload], axis=1)


def _varying(feature: Feature, value: Any) -> tuple[bytes, bytes]:
    """Return the map entry of a varying field's encoded value as header and payload."""
    numbers = feature.kind == "int64"
    payload = _varints(np.frombuffer(value, feature.field.numpy_dtype)) if numbers else bytes(value)
    return entry_head(feature.key, feature.kind, len(payload)), payload


def _varints(numbers: Any) -> bytes:
    """Encode integers as varints of minimal length."""
    padded = pad_varints(numbers, 10)
    used = 10 - np.argmax((padded & 0x7F)[:, ::-1] != 0, axis=1)
    used[(padded & 0x7F).sum(axis=1) == 0] = 1
    padded[np.arange(len(padded)), used - 1] &= 0x7F
    out: bytes = padded[np.arange(10) < used[:, None]].tobytes()
    return out


class _Derived:
    """Features for other readers, derived from the fields."""

    def __init__(self, schema: Schema) -> None:
        self._label = _named(schema, "label", lambda f: f.classes is not None)
        image = _named(schema, "image", lambda f: f.is_image)
        self._constant = b""
        self._size: tuple[int, int] | None = None
        if image is not None:
            self._constant = _bytes_entry("image/format", image.codec.name.encode())
            height, width, channels = image.shape
            if height and width and channels:
                self._size = height, width
                for key, number in (("height", height), ("width", width), ("channels", channels)):
                    self._constant += _numbers_entry(f"image/{key}", [number])
        self._box = _named(schema, "box", lambda f: f.shape == (4,) and f.dtype == "<f4")
        self._matrix = _named(schema, "matrix", lambda f: f.shape == (2, 3))

    def entries(self, rows: Columns, count: int) -> list[bytes]:
        """Return the derived entries of some rows."""
        out = [self._constant] * count
        if self._label is not None and self._label.classes is not None:
            names = self._label.classes
            for row, index in enumerate(rows["label"].tolist()):
                name = names[index] if 0 <= index < len(names) else ""
                out[row] += _bytes_entry("image/class/text", name.encode())
        if self._box is not None and self._size is not None:
            for row, box in enumerate(self._boxes(rows)):
                for side, value in zip(_BOX_SIDES, box, strict=True):
                    out[row] += entry_head(f"image/object/bbox/{side}", "float", 4) + value.tobytes()
        return out

    def _boxes(self, rows: Columns) -> Any:
        """Return the boxes relative to the image's width and height, (n, 4), float32, from 0 to 1.

        ``matrix`` maps a box from its frame to the image. Without ``matrix``, the box is in pixels of the image.
        """
        with np.errstate(all="ignore"):
            corners = rows["box"].astype(np.float64).reshape(-1, 2, 2)
            if self._matrix is not None:
                matrix = rows["matrix"].astype(np.float64)
                sides = np.stack([corners[:, [0, 1, 0, 1], 0], corners[:, [0, 0, 1, 1], 1]], axis=-1)
                moved = np.einsum("nij,nkj->nki", matrix[:, :, :2], sides) + matrix[:, None, :, 2]
                corners = np.stack([moved.min(axis=1), moved.max(axis=1)], axis=1)
            height, width = self._size or (1, 1)
            shares = np.nan_to_num(np.clip(corners / (width, height), 0, 1))
        return shares.reshape(-1, 4).astype("<f4")


def _named(schema: Schema, name: str, fits: Any) -> Field | None:
    """Return the field with a name if it exists and `fits` accepts it, otherwise None."""
    return schema[name] if name in schema and fits(schema[name]) else None


def _bytes_entry(key: str, value: bytes) -> bytes:
    return entry_head(key, "bytes", len(value)) + value


def _numbers_entry(key: str, numbers: Sequence[int]) -> bytes:
    payload = _varints(np.array(numbers, np.int64))
    return entry_head(key, "int64", len(payload)) + payload
