"""Features of LMDB alone: its pages and its tree."""

import resource
from pathlib import Path

import numpy as np
import pytest
from support.datasets import assert_same, open_shard, read_rows, write_encoded

from shardspec.columns import Columns
from shardspec.errors import BuildError
from shardspec.schema import Field, Schema

BLOBS = Schema((Field("a", "bytes", "|u1", (None,)), Field("b_longer_name", "bytes", "|u1", (None,))))


def blobs(rows: int, sizes: list[int]) -> Columns:
    rng = np.random.default_rng(0)
    return {name: [rng.bytes(sizes[row % len(sizes)]) for row in range(rows)] for name in BLOBS.names}


def test_a_file_that_cannot_be_written_is_reported_with_the_reason(tmp_path: Path) -> None:
    """A limit of the size of files does as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    encoded = blobs(10, [100])
    try:
        with pytest.raises(BuildError, match=r"shard-00000\.lmdb: cannot be written: .*File too large"):
            write_encoded(tmp_path, "lmdb", BLOBS, encoded)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_tree_of_several_levels(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    encoded = blobs(20_000, [4])
    manifest = write_encoded(tmp_path, "lmdb", BLOBS, encoded, batch_rows=5000)
    with lmdb.open(str(tmp_path / "shard-00000.lmdb"), subdir=False, readonly=True, lock=False) as environment:
        assert environment.stat()["depth"] >= 3
    rows = np.random.default_rng(1).permutation(20_000)[:3000].tolist()
    assert_same(BLOBS, read_rows(open_shard(tmp_path, manifest), BLOBS, rows), encoded, rows)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the memory of a process is read from /proc")
def test_opening_a_shard_touches_little_of_it(tmp_path: Path) -> None:
    manifest = write_encoded(tmp_path, "lmdb", BLOBS, blobs(8000, [1400]), batch_rows=1000)

    def mapped() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssFile:"))

    (tmp_path / "shard-00000.lmdb").read_bytes()  # so that all of it is in the page cache
    before = mapped()
    reader = open_shard(tmp_path, manifest)
    assert manifest.shards[0].bytes > 20_000_000
    assert mapped() - before < 8_000_000
    rows = [0, 7999, 4000]
    assert_same(BLOBS, read_rows(reader, BLOBS, rows), blobs(8000, [1400]), rows)
