"""What only LMDB has: its map size, its pages, its tree."""

import resource
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support.datasets import assert_same, open_shard, read_rows, size_of, write_encoded

from packer.assembly.writers.lmdb import map_bytes
from readers.formats.lmdb.tree import LMDBTree
from readers.formats.mapping import ByteArray, map_file
from shardspec.columns import Columns
from shardspec.errors import BuildError, ShardCorruptError
from shardspec.schema import Field, Schema

BLOBS = Schema((Field("a", "bytes", "|u1", (None,)), Field("b_longer_name", "bytes", "|u1", (None,))))


def blobs(rows: int, sizes: list[int]) -> Columns:
    rng = np.random.default_rng(0)
    return {name: [rng.bytes(sizes[row % len(sizes)]) for row in range(rows)] for name in BLOBS.names}


def tree_of(path: Path, data: ByteArray, rows: int, names: Sequence[str]) -> LMDBTree:
    with path.open("rb") as file:
        return LMDBTree(path, file, data, rows, names)


@pytest.mark.parametrize(
    "sizes", [[0], [7], [1000], [1400], [2010], [2020], [2040], [4080], [4081], [0, 2010], [5, 9000]]
)
def test_the_map_is_large_enough_for_any_mix_of_sizes(tmp_path: Path, sizes: list[int]) -> None:
    encoded = blobs(1500, sizes)
    manifest = write_encoded(tmp_path, "lmdb", BLOBS, encoded)
    size = size_of(BLOBS, encoded)
    assert manifest.shards[0].bytes < map_bytes(size)
    rows = [1499, 0, 700, 701]
    assert_same(BLOBS, read_rows(open_shard(tmp_path, manifest), BLOBS, rows), encoded, rows)


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


def test_values_on_either_side_of_half_a_page(tmp_path: Path) -> None:
    encoded = blobs(120, list(range(1990, 2050)))
    manifest = write_encoded(tmp_path, "lmdb", BLOBS, encoded)
    reader = open_shard(tmp_path, manifest)
    assert_same(BLOBS, read_rows(reader, BLOBS, range(120)), encoded)
    for row in range(120):  # few keys are looked up one by one
        assert_same(BLOBS, read_rows(reader, BLOBS, [row]), encoded, [row])


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


def test_a_file_that_ends_within_its_tree_is_an_error(tmp_path: Path) -> None:
    write_encoded(tmp_path, "lmdb", BLOBS, blobs(400, [1400]))
    path = tmp_path / "shard-00000.lmdb"
    whole = np.fromfile(path, np.uint8)
    with path.open("r+b") as file:
        file.truncate(len(whole) // 2)
    with pytest.raises(ShardCorruptError, match="found fewer"):
        tree_of(path, whole, 400, BLOBS.names)


def test_a_file_without_its_last_keys_is_an_error(tmp_path: Path) -> None:
    """A tree that is sound but holds other keys than the manifest says."""
    lmdb = pytest.importorskip("lmdb")
    path = tmp_path / "other.lmdb"
    environment = lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 20)
    with environment, environment.begin(write=True) as transaction:
        for row in (0, 1, 3):
            transaction.put(b"%08d/a" % row, b"x", append=True)
    tree = tree_of(path, map_file(path), 3, ["a"])
    assert tree.locate(np.array([0, 1]), ["a"])["a"].sizes.tolist() == [1, 1]
    for count in (1, 100):
        with pytest.raises(ShardCorruptError, match="the keys in order"):
            tree.locate(np.array([2] * count), ["a"])
    with pytest.raises(ShardCorruptError, match="4 plain entries, found 3"):
        tree_of(path, map_file(path), 4, ["a"])


def test_any_flipped_bit_of_the_meta_pages_is_an_error_or_no_matter(tmp_path: Path) -> None:
    encoded = blobs(40, [5, 9000])
    write_encoded(tmp_path, "lmdb", BLOBS, encoded)
    path = tmp_path / "shard-00000.lmdb"
    whole = np.fromfile(path, np.uint8)
    page_bytes = int(whole[16 + 24 : 16 + 28].view("<u4")[0])
    rows = np.arange(40)
    expected = tree_of(path, whole, 40, BLOBS.names).locate(rows, BLOBS.names)
    refused = 0
    for page in (0, page_bytes):
        for place in range(page, page + 16 + 136):
            for bit in range(8):
                data = whole.copy()
                data[place] ^= 1 << bit
                try:
                    found = tree_of(path, data, 40, BLOBS.names).locate(rows, BLOBS.names)
                except ShardCorruptError:
                    refused += 1
                    continue
                for name, values in expected.items():
                    assert np.array_equal(found[name].starts, values.starts)
                    assert np.array_equal(found[name].sizes, values.sizes)
    assert refused > 100
