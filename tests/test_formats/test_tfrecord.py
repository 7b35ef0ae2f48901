"""Features of TFRecord alone: numbers of seven-bit bytes, and a separate checksum."""

from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.crafted import CraftedIndex
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


def number(value: int) -> bytes:
    return varint(value & 2**64 - 1)


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize(
    ("name", "size", "stored", "found"),
    [
        ("ids", 4, b"\x01\x80\x01\x80", "without an end"),
        ("ids", 4, b"\xff\xff\xff\x7f", "integers of <i2"),
        ("label", 10, b"\x80" * 10, "ten bytes"),
        ("label", 10, b"\x01" * 10, "integers of <i8"),
    ],
)
def test_integers_out_of_range_for_the_field_are_an_error(
    tmp_path: Path, name: str, size: int, stored: bytes, found: str, checksums: bool
) -> None:
    rows = {**ROWS, "ids": [np.array([300, 400], np.int16).tobytes(), b""]}
    manifest = write_encoded(tmp_path, "tfrecord", SCHEMA, rows)
    index = CraftedIndex(tmp_path / "shard-00000.tfrecord.index")
    section = SCHEMA.names.index(name)
    start = index.get(section, "starts", 0)
    path = tmp_path / "shard-00000.tfrecord"
    data = bytearray(path.read_bytes())
    data[start : start + size] = stored
    path.write_bytes(data)
    first, length = index.get(len(SCHEMA), "starts", 0), index.get(len(SCHEMA), "sizes", 0)
    index.set(len(SCHEMA), "sums", 0, google_crc32c.value(bytes(data[first : first + length])))
    index.vouch_for(path)
    index_path = tmp_path / "shard-00000.tfrecord.index"
    index_path.write_bytes(index.sealed().apply(index_path.read_bytes()))
    with pytest.raises(ShardCorruptError, match=found):
        read_rows(open_shard(tmp_path, manifest, checksums=checksums), SCHEMA, [0], [name])


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_varints_decode_whether_padded_or_minimal(numbers: list[int]) -> None:
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
