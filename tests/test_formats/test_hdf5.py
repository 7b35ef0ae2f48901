"""Features of HDF5 alone: errors of its library, and values that are cut by the end of a chunk."""

import resource
from pathlib import Path

import numpy as np
import pytest
from support.datasets import assert_same, open_shard, read_rows, write_encoded

from shardspec.errors import BuildError
from shardspec.schema import Field, Schema


@pytest.mark.parametrize("checksums", [True, False])
def test_values_split_across_chunks_round_trip(tmp_path: Path, checksums: bool) -> None:
    """A chunk has 256 KiB. Values of up to three chunks, and one that ends where a chunk does."""
    schema = Schema((Field("a", "bytes", "|u1", (None,)), Field("b", "ragged", "<f4", (None, 3))))
    rng = np.random.default_rng(0)
    sizes = [1 << 17, 1 << 17, 1, 700_000, 0, 300_000, 5]
    encoded = {"a": [rng.bytes(size) for size in sizes], "b": [rng.bytes(size // 12 * 12) for size in sizes]}
    manifest = write_encoded(tmp_path, "hdf5", schema, encoded)
    reader = open_shard(tmp_path, manifest, checksums=checksums)
    for rows in ([3, 0, 4], range(7)):
        assert_same(schema, read_rows(reader, schema, rows), encoded, list(rows))
    parts = list(reader.extents(np.arange(7), ["a"]))
    assert all((part.stops <= len(part.data)).all() and (part.starts <= part.stops).all() for part in parts)


@pytest.mark.parametrize("limit", [0, 4_000, 20_000, -1])
def test_a_file_that_cannot_be_written_is_reported_with_the_reason(tmp_path: Path, limit: int) -> None:
    """A limit of the size of files does as a full disk does: at once, while values are written, and at the end."""
    schema = Schema((Field("a", "bytes", "|u1", (None,)),))
    encoded = {"a": [bytes(1000)] * 40}
    write_encoded(tmp_path / "whole", "hdf5", schema, encoded)
    size = (tmp_path / "whole" / "shard-00000.h5").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit % size, before[1]))
    try:
        with pytest.raises(BuildError, match=r"shard-00000\.h5: cannot be written: File too large\Z"):
            write_encoded(tmp_path / "short", "hdf5", schema, encoded)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
