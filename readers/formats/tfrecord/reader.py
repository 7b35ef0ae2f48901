"""tfrecord: a shard is one file of ``tf.train.Example`` records, and its index."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from readers.formats.checks import corrupt, distinct, gather_bytes, put, take_bytes
from readers.formats.mapping import ByteArray, Extents, map_file
from readers.formats.tfrecord.example import (
    ExampleError,
    encoded_payload,
    encoded_value,
    entries,
    narrow,
    usual_payload,
)
from shardspec.columns import Columns, IntArray
from shardspec.entries import Shard
from shardspec.errors import DatasetError, ShardCorruptError
from shardspec.formats.tfrecord import Feature, features, masked, pad_varints, read_varints
from shardspec.schema import Schema

_HEAD_BYTES, _TAIL_BYTES = 12, 4
_LINE_BYTES_MAX = 42
"""Longest line of the index: two numbers of 63 bits, a space, the line's end."""


class TFRecordShardReader:
    """Reads one TFRecord file through its index (`readers.formats.base`).

    In every packed record the fixed fields come first and take the same number of bytes, so their values are found by
    arithmetic: the bytes in front of each are compared with the expected ones, and the values copied once, from the
    mapped file into the batch. A record with another layout is parsed. With `checksums`, both CRCs of a record are
    compared when it is first touched. Encoded values are views of the mapping and keep it alive; integers of varying
    count are copies. Memory: 17 bytes per row. Safe to use from several threads, and after a fork.
    """

    threads = True
    views = True

    def __init__(self, path: Path, shard: Shard, schema: Schema, *, checksums: bool = True) -> None:
        self._path = path
        self._rows = shard.samples
        self._checksums = checksums
        self._features = {f.field.name: f for f in features(schema)}
        self._varying = [f for f in self._features.values() if not f.field.is_fixed]
        self._heads, self._fixed_bytes = _heads([f for f in self._features.values() if f.field.is_fixed])
        self._data: ByteArray | None = map_file(path)
        self._starts = self._read_index(path.with_suffix(".idx"), len(self._data))
        self._known = np.zeros(shard.samples, bool)
        # Where the features of a known record begin if it has the layout of packed records; otherwise -1.
        self._places = np.full(shard.samples, -1, np.int64)

    def __len__(self) -> int:
        return self._rows

    def read(self, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        """Gather rows (`readers.formats.base.ShardReader.read`)."""
        if self._data is None:
            raise DatasetError(f"{self._path}: expected an open reader, found a closed one")
        if not len(rows):
            return
        unknown = np.array(distinct(rows[~self._known[rows]]), np.int64)
        if len(unknown):
            self._check_records(self._data, unknown)
        fixed = [self._features[name] for name in fields if self._features[name].field.is_fixed]
        varying = {name for name in fields if not self._features[name].field.is_fixed}
        places = self._places[rows]
        usual = places >= 0
        try:
            self._read_fixed(self._data, places[usual], fixed, out, at[usual])
            if varying or not usual.all():
                view = self._data.data
                starts, ends = self._starts[rows] + _HEAD_BYTES, self._starts[rows + 1] - _TAIL_BYTES
                numbers = zip(usual.tolist(), starts.tolist(), ends.tolist(), places.tolist(), at.tolist(), strict=True)
                for plain, start, end, place, target in numbers:
                    if not plain or not self._read_varying(view[start:end], place - start, varying, out, target):
                        self._parse(view[start:end], fields, out, target)
        except ExampleError as error:
            raise self._corrupt("a tf.train.Example of the dataset's fields", str(error)) from error

    def extents(self, rows: IntArray, fields: Sequence[str]) -> Iterator[Extents]:
        """Where rows are (`readers.formats.base.MappedReader`): whole records: checksums cover all their fields."""
        if self._data is not None and fields:
            yield Extents(self._data, self._starts[rows], self._starts[rows + 1])

    def close(self) -> None:
        """Drop the mapping, which ends with the last view of it."""
        self._data = None

    def _read_index(self, path: Path, end: int) -> IntArray:
        """Where each record begins, and the file's end: (rows + 1,)."""
        data = map_file(path)
        if len(data) > self._rows * _LINE_BYTES_MAX:
            raise corrupt(path, f"{self._rows} lines of 'offset size'", f"{len(data)} bytes")
        text = data.tobytes()
        if self._rows and not text.endswith(b"\n"):
            raise corrupt(path, "lines of 'offset size'", "a last line without an end")
        try:
            numbers = np.array([int(word) for word in text.split()], np.int64)
        except (ValueError, OverflowError) as error:
            raise corrupt(path, "lines of 'offset size'", f"others ({error})") from error
        if len(numbers) != 2 * self._rows:
            raise corrupt(path, f"{self._rows} lines of 'offset size'", f"{len(numbers)} numbers")
        offsets, sizes = numbers[::2], numbers[1::2]
        starts = np.append(offsets, end)
        if starts[0] != 0 or (sizes < _HEAD_BYTES + _TAIL_BYTES).any() or not np.array_equal(np.diff(starts), sizes):
            raise corrupt(path, f"records that follow one another and fill {self._path.name}, {end} bytes", "others")
        return starts

    def _check_records(self, data: ByteArray, rows: IntArray) -> None:
        """Compare the length of records with the index, and their checksums with their bytes."""
        starts, ends = self._starts[rows], self._starts[rows + 1]
        lengths = take_bytes(data, starts, 8).view("<u8")[:, 0]
        if not np.array_equal(lengths, (ends - starts - _HEAD_BYTES - _TAIL_BYTES).astype(np.uint64)):
            raise self._corrupt("records as long as the index says", "another length")
        if self._checksums:
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
                self._check_crc(data, start, start + 8, start)
                self._check_crc(data, start + _HEAD_BYTES, end - _TAIL_BYTES, start)
        usual, places = self._usual(data, rows)
        self._places[rows] = np.where(usual, places, -1)
        self._known[rows] = True

    def _check_crc(self, data: ByteArray, start: int, end: int, record: int) -> None:
        """Compare the bytes from `start` to `end` with the checksum that follows them."""
        expected = int.from_bytes(data[end : end + _TAIL_BYTES].tobytes(), "little")
        found = masked(google_crc32c.value(data[start:end]))
        if found != expected:
            raise self._corrupt(f"checksum {expected:#010x} of the record at {record}", f"{found:#010x}")

    def _usual(self, data: ByteArray, rows: IntArray) -> tuple[Any, IntArray]:
        """Return which records have the layout of packed ones, judged by the fixed fields.

        And where their features begin.
        """
        ends = self._starts[rows + 1] - _TAIL_BYTES
        starts = self._starts[rows] + _HEAD_BYTES
        # Tag and length of the feature map come first; the length takes a byte for every seven bits.
        width = np.ones(len(rows), np.int64)
        for count in range(1, 5):
            width[ends - starts - 1 - count >= 1 << 7 * count] = count + 1
        first = starts + 1 + width
        usual = first + self._fixed_bytes <= ends
        for place, head in self._heads.values():
            usual[usual] = (take_bytes(data, first[usual] + place, len(head)) == head).all(axis=1)
        return usual, first

    def _read_fixed(self, data: ByteArray, first: IntArray, wanted: list[Feature], out: Columns, at: IntArray) -> None:
        """Copy fixed fields of records with the layout of packed ones, whose features begin at `first`."""
        for feature in wanted:
            place, head = self._heads[feature.key]
            starts = first + place + len(head)
            if feature.kind == "int64":
                self._fill_integers(data, feature, starts, out[feature.field.name], at)
            else:
                gather_bytes(data, starts, feature.field, out[feature.field.name], at)

    def _read_varying(self, record: memoryview, first: int, wanted: set[str], out: Columns, place: int) -> bool:
        """Fill a row's varying fields, which follow the fixed ones in order; False if they do not."""
        left, cursor = len(wanted), first + self._fixed_bytes
        for feature in self._varying:
            if not left:
                break
            if cursor >= len(record):
                return False
            payload, cursor = usual_payload(record, cursor, feature)
            if payload is None:
                return False
            if feature.field.name in wanted:
                out[feature.field.name][place] = encoded_payload(feature, payload)
                left -= 1
        return True

    def _fill_integers(self, data: ByteArray, feature: Feature, starts: IntArray, out: Any, at: IntArray) -> None:
        """Copy padded varints into their places."""
        if not feature.payload_bytes:
            return
        padded = take_bytes(data, starts, feature.payload_bytes)
        try:
            numbers, _ = read_varints(padded.reshape(-1))
        except ValueError as error:
            raise ExampleError(f"feature {feature.key!r}: {error}") from error
        if not np.array_equal(pad_varints(numbers, feature.value_bytes).reshape(-1), padded.reshape(-1)):
            raise ExampleError(
                f"expected numbers of {feature.value_bytes} bytes in feature {feature.key!r}, found others"
            )
        put(narrow(feature, numbers).reshape(len(starts), *feature.field.fixed_shape), out, at)

    def _parse(self, record: memoryview, fields: Sequence[str], out: Columns, place: int) -> None:
        """Fill one row from a record of any layout."""
        found = entries(record)
        for name in fields:
            feature = self._features[name]
            value = encoded_value(feature, found)
            if not feature.field.is_fixed:
                out[name][place] = value
                continue
            if value.nbytes != feature.field.row_bytes:
                raise ExampleError(
                    f"expected {feature.field.row_bytes} bytes in feature {feature.key!r}, found {value.nbytes}"
                )
            numbers = np.frombuffer(value, feature.field.numpy_dtype) if value.nbytes else np.empty(0)
            out[name][place] = numbers.reshape(feature.field.fixed_shape)

    def _corrupt(self, expected: str, found: str) -> ShardCorruptError:
        return corrupt(self._path, expected, found)


def _heads(fixed: list[Feature]) -> tuple[dict[str, tuple[int, ByteArray]], int]:
    """Where each fixed feature's entry begins, after the feature map's length; its head; and where all entries end."""
    heads, place = {}, 0
    for feature in fixed:
        heads[feature.key] = place, np.frombuffer(feature.head, np.uint8)
        place += len(feature.head) + feature.payload_bytes
    return heads, place
