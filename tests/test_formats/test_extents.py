"""Readers say which bytes rows lie in, and how long their values are, without touching them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.datasets import (
    encode,
    every_kind_schema,
    open_shard,
    read_rows,
    values_for,
    write_encoded,
)

from shardspec.columns import Columns
from shardspec.formats import FORMATS
from shardspec.schema import Field

FORMAT = pytest.mark.parametrize("format", sorted(FORMATS))
ROWS = 23


def inside(reader: Any, row: int, name: str) -> bytes:
    """The bytes that are said to hold a row's value, and each part checked to lie within the file."""
    out = b""
    for part in reader.extents(np.array([row]), [name]):
        assert (part.starts >= 0).all()
        assert (part.stops <= len(part.data)).all()
        for start, stop in zip(part.starts.tolist(), part.stops.tolist(), strict=True):
            out += part.data[start:stop].tobytes()
    return out


def stored(format: str, field: Field, encoded: Columns, row: int) -> bytes:
    """A value's bytes as far as they stand in the file in one piece, so that they can be looked for."""
    value = bytes(encoded[field.name][row].tobytes() if field.is_fixed else encoded[field.name][row])
    if format == "webdataset" and field.name == "label":
        return str(int(encoded["label"][row])).encode()
    if format == "webdataset" and field.kind == "bytes" and field.codec.name == "raw" and len(field.shape) > 1:
        return value[4 * len(field.shape) :]  # the shape is in another form
    as_varints = format == "tfrecord" and field.numpy_dtype.kind in "iub" and field.kind in ("fixed", "ragged")
    widened = format == "parquet" and (field.numpy_dtype.itemsize < 4 or field.kind != "fixed")
    if field.kind not in ("bytes", "text") and (as_varints or widened):
        return b""
    return value


@FORMAT
@pytest.mark.parametrize("checksums", [True, False])
def test_the_parts_hold_the_values(tmp_path: Path, format: str, checksums: bool) -> None:
    schema = every_kind_schema()
    encoded = encode(schema, values_for(schema, ROWS))
    manifest = write_encoded(tmp_path, format, schema, encoded)
    reader = open_shard(tmp_path, manifest, checksums=checksums)
    assert list(reader.extents(np.empty(0, np.int64), [])) == []
    checked = 0
    for again in (False, True):
        for field in schema:
            for row in range(ROWS):
                found = inside(reader, row, field.name)
                if format != "parquet" or checksums or again:
                    expected = stored(format, field, encoded, row)
                    assert expected in found, (field.name, row)
                    checked += len(expected)
        read_rows(reader, schema, range(ROWS))
    assert checked > 1000
    reader.close()


@FORMAT
def test_only_the_bytes_of_the_requested_rows_are_fetched(tmp_path: Path, format: str) -> None:
    """Once the checksums of all have been compared: a row's own bytes, and in LMDB its leaf page."""
    schema = every_kind_schema()
    manifest = write_encoded(tmp_path, format, schema, encode(schema, values_for(schema, ROWS)))
    reader = open_shard(tmp_path, manifest)
    read_rows(reader, schema, range(ROWS))
    names = [field.name for field in schema]
    whole = sum(len(inside(reader, row, name)) for row in range(ROWS) for name in names)
    if format == "tfrecord":  # whole records, for every field
        whole //= len(names)
    if format == "lmdb":
        whole -= 2 * 4096 * ROWS * len(names)
    assert whole < 1.5 * sum(shard.bytes for shard in manifest.shards)


@FORMAT
def test_the_index_tells_the_lengths(tmp_path: Path, format: str) -> None:
    """Except for the numbers of TFRecord, whose sizes vary."""
    schema = every_kind_schema()
    encoded = encode(schema, values_for(schema, ROWS))
    reader = open_shard(tmp_path, write_encoded(tmp_path, format, schema, encoded))
    unknown = []
    for field in [field for field in schema if not field.is_fixed]:
        lengths = reader.lengths(field.name)
        if lengths is None:
            unknown.append(field)
        else:
            assert lengths.tolist() == [len(bytes(value)) for value in encoded[field.name]], field.name
    assert all(format == "tfrecord" and field.kind == "ragged" for field in unknown)
    assert len(unknown) < len([field for field in schema if not field.is_fixed]) / 2
