"""What only TFRecord has: records that others wrote, laid out in their own way, and numbers of seven-bit bytes."""

from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.datasets import fixed, open_shard, ragged, read_rows, text, write_encoded

from shardspec.errors import ShardCorruptError
from shardspec.formats.tfrecord import masked, pad_varints, read_varints, varint
from shardspec.schema import Schema

SCHEMA = Schema(
    (text("key"), fixed("label", "<i8"), fixed("points", "<f4", 2), fixed("flags", "|b1", 3), ragged("ids", "<i2"))
)
ROWS = {
    "key": [b"a", b"b"],
    "label": np.array([-5, 300]),
    "points": np.array([[0.5, -1], [2, 3]], np.float32),
    "flags": np.array([[True, False, True], [False, False, True]]),
    "ids": [np.array([1, -2], np.int16).tobytes(), b""],
}


def message(tag: int, data: bytes) -> bytes:
    return bytes([tag]) + varint(len(data)) + data


def number(value: int) -> bytes:
    return varint(value & 2**64 - 1)


def feature(key: str, kind: int, values: bytes) -> bytes:
    return message(0x0A, message(0x0A, key.encode()) + message(0x12, message(kind, values)))


def foreign_example(row: int) -> bytes:
    """A row in another order, with numbers one by one, shorter ones, and features that nobody asked for."""
    singles = b"".join(b"\x08" + number(int(value)) for value in np.frombuffer(ROWS["ids"][row], np.int16))
    points = b"".join(b"\x0d" + value.tobytes() for value in ROWS["points"][row])
    return message(
        0x0A,
        feature("what/else", 0x0A, message(0x0A, b"?"))
        + feature("ids", 0x1A, singles)
        + feature("points", 0x12, points)
        + feature("flags", 0x1A, message(0x0A, bytes(ROWS["flags"][row].tolist())))
        + feature("image/class/label", 0x1A, message(0x0A, number(int(ROWS["label"][row]))))
        + feature("key", 0x0A, message(0x0A, ROWS["key"][row])),
    )


def write_records(path: Path, examples: list[bytes]) -> None:
    records, index, end = b"", "", 0
    for example in examples:
        length = len(example).to_bytes(8, "little")
        parts = [length, masked(google_crc32c.value(length)), example, masked(google_crc32c.value(example))]
        record = b"".join(part if isinstance(part, bytes) else part.to_bytes(4, "little") for part in parts)
        records += record
        index += f"{end} {len(record)}\n"
        end += len(record)
    path.write_bytes(records)
    path.with_suffix(".idx").write_text(index)


def test_records_laid_out_by_others_read_the_same(tmp_path: Path) -> None:
    manifest = write_encoded(tmp_path, "tfrecord", SCHEMA, ROWS)
    path = tmp_path / "shard-00000.tfrecord"
    ours = path.read_bytes()
    write_records(path, [foreign_example(0), foreign_example(1)])
    assert path.read_bytes() != ours
    found = read_rows(open_shard(tmp_path, manifest), SCHEMA, [1, 0, 1])
    for name, column in found.items():
        assert [bytes(np.asarray(v).tobytes() if not isinstance(v, bytes) else v) for v in column] == [
            bytes(ROWS[name][row].tobytes() if not isinstance(ROWS[name][row], bytes) else ROWS[name][row])
            for row in (1, 0, 1)
        ]


@pytest.mark.parametrize(
    ("example", "found"),
    [
        (b"", "feature"),
        (b"\x0a\xff", "number of at most ten bytes"),
        (b"\x0a\x05ab", "within"),
        (b"\x0b", "wire type"),
        (b"\x80" * 12, "ten bytes"),
        (message(0x0A, feature("key", 0x0A, message(0x0A, b"a") * 2)), "found 2"),
        (message(0x0A, feature("key", 0x12, b"")), "bytes list"),
    ],
)
def test_records_that_are_no_example_are_an_error(tmp_path: Path, example: bytes, found: str) -> None:
    manifest = write_encoded(tmp_path, "tfrecord", SCHEMA, ROWS)
    write_records(tmp_path / "shard-00000.tfrecord", [example, example])
    with pytest.raises(ShardCorruptError, match=found):
        read_rows(open_shard(tmp_path, manifest), SCHEMA, [0], ["key"])


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_numbers_come_back_from_varints_padded_and_short(numbers: list[int]) -> None:
    padded = pad_varints(np.array(numbers, np.int64), 10)
    assert read_varints(padded.reshape(-1))[0].tolist() == numbers
    short = b"".join(number(value) for value in numbers)
    found, lengths = read_varints(np.frombuffer(short, np.uint8))
    assert found.tolist() == numbers
    assert int(lengths.sum()) == len(short)


@pytest.mark.parametrize("data", [b"\x80", b"\x01\x80", b"\x80" * 10 + b"\x00"])
def test_varints_without_an_end_or_too_long_are_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="at most ten bytes"):
        read_varints(np.frombuffer(data, np.uint8))


def test_masked_checksums_are_those_of_the_published_example() -> None:
    # RFC 3720, B.4: the CRC-32C of 32 bytes of zeros; masked as TensorFlow's crc32c.h says.
    crc = google_crc32c.value(bytes(32))
    assert crc == 0x8A9136AA
    assert masked(crc) == (((crc >> 15) | (crc << 17 & 0xFFFFFFFF)) + 0xA282EAD8) % 2**32
