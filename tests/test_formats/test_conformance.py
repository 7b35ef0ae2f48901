"""Every format holds the same promises. A format is tested here the moment its line stands in the table."""

from pathlib import Path

import numpy as np
import pytest
from support.datasets import (
    assert_same,
    encode,
    every_kind_schema,
    face_schema,
    open_shard,
    read_rows,
    values_for,
    write_encoded,
)

from shardspec.formats import FORMATS

FORMAT = pytest.mark.parametrize("format", sorted(FORMATS))


@FORMAT
@pytest.mark.parametrize("rows", [0, 1, 2, 23])
def test_every_kind_comes_back_bit_for_bit(tmp_path: Path, format: str, rows: int) -> None:
    schema = every_kind_schema()
    encoded = encode(schema, values_for(schema, rows))
    manifest = write_encoded(tmp_path, format, schema, encoded)
    reader = open_shard(tmp_path, manifest)
    assert len(reader) == rows
    assert_same(schema, read_rows(reader, schema, range(rows)), encoded)
    reader.close()


@FORMAT
def test_rows_in_any_order_and_more_than_once_go_where_they_are_told(tmp_path: Path, format: str) -> None:
    schema = face_schema()
    encoded = encode(schema, values_for(schema, 12))
    manifest = write_encoded(tmp_path, format, schema, encoded)
    reader = open_shard(tmp_path, manifest)
    rows, at = np.array([11, 0, 3, 3, 7]), np.array([9, 1, 4, 0, 6])
    out = {f.name: np.zeros((10, *f.fixed_shape), f.numpy_dtype) if f.is_fixed else [b"-"] * 10 for f in schema}
    reader.read(rows, schema.names, out, at)
    picked = {f.name: out[f.name][at] if f.is_fixed else [out[f.name][place] for place in at] for f in schema}
    assert_same(schema, picked, encoded, rows.tolist())
    for field in schema:
        for place in {*range(10)} - {*at.tolist()}:
            untouched = out[field.name][place]
            assert not untouched.any() if field.is_fixed else untouched == b"-"
    reader.close()
