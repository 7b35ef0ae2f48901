"""What only LMDB has: its map size, its pages, its tree."""

import mmap
import resource
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.datasets import assert_same, open_shard, read_rows, size_of, write_encoded

from packer.assembly.writers.lmdb import map_bytes
from readers.formats.lmdb.directory import Directory
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
    with path.open("rb", buffering=0) as file:
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


LONG = Schema((Field("a" * 60, "bytes", "|u1", (None,)), Field("b" * 60, "bytes", "|u1", (None,))))
"""Long keys: few have room in a branch page, so that there are many."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Columns]:
    """An LMDB shard with more branch pages than are read when it is opened."""
    folder, rng = tmp_path_factory.mktemp("large"), np.random.default_rng(0)
    encoded = {name: [rng.bytes(900 + row % 7) for row in range(4000)] for name in LONG.names}
    write_encoded(folder, "lmdb", LONG, encoded, batch_rows=1000)
    return folder / "shard-00000.lmdb", encoded


def check_values(tree: LMDBTree, data: ByteArray, encoded: Columns, rows: Sequence[int]) -> None:
    """Check values, looked up together and one by one."""
    for some in (rows, *([row] for row in rows[:20])):
        for name, found in tree.locate(np.array(some), LONG.names).items():
            for row, start, size in zip(some, found.starts, found.sizes, strict=True):
                assert data[start : start + size].tobytes() == encoded[name][row]


@pytest.mark.parametrize("file", ["stays", "is replaced", "is gone"])
def test_branch_pages_are_read_when_they_are_needed(
    large: tuple[Path, Columns], file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their name; if another file bears it by then, out of the mapping."""
    path, encoded = tmp_path / "shard.lmdb", large[1]
    shutil.copyfile(large[0], path)
    read: list[int] = []
    children = Directory._children
    monkeypatch.setattr(
        Directory,
        "_children",
        lambda self, read_page, pages, firsts, ends: (
            read.extend(pages.tolist()) or children(self, read_page, pages, firsts, ends)
        ),
    )
    data = map_file(path)
    tree = tree_of(path, data, 4000, LONG.names)
    upper = len(read)
    if file != "stays":
        path.unlink()
    if file == "is replaced":
        path.write_bytes(bytes(len(data)))
    check_values(tree, data, encoded, [2000])
    assert len(read) <= upper + 2
    for rows in ([2000, 2001], [5, 3999, 17, 1500], range(0, 4000, 3), range(4000)):
        check_values(tree, data, encoded, list(rows))
    assert len(set(read)) == len(read) > upper + 32


def test_threads_may_look_up_what_was_not_read_yet(large: tuple[Path, Columns]) -> None:
    path, encoded = large
    data = map_file(path)
    tree = tree_of(path, data, 4000, LONG.names)
    rows = np.random.default_rng(0).permutation(4000)[:800].reshape(20, 40).tolist()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(partial(check_values, tree, data, encoded), rows))


def test_a_lookup_goes_on_while_others_read_the_rest(
    large: tuple[Path, Columns], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, encoded = large
    data, needed, nested = map_file(path), Directory._read_needed, []

    def meanwhile(directory: Directory, *found: Any) -> Any:
        if not nested:
            nested.append(directory)
            check_values(tree, data, encoded, list(range(4000)))
        return needed(directory, *found)

    monkeypatch.setattr(Directory, "_read_needed", meanwhile)
    tree = tree_of(path, data, 4000, LONG.names)
    check_values(tree, data, encoded, [17])
    assert nested


def test_damage_in_a_branch_page_is_an_error_when_it_is_met(large: tuple[Path, Columns], tmp_path: Path) -> None:
    """Of the kinds that a page may be damaged in: nothing of it, its number, its keys, their order, its children."""
    path, whole = tmp_path / "shard.lmdb", large[0].read_bytes()
    flags = np.frombuffer(whole, "<u2").reshape(-1, mmap.PAGESIZE // 2)[:, 5]
    (branches,) = np.nonzero(flags[2:] == 1)
    for page in (branches[3] + 2, branches[20] + 2):
        start = int(page) * mmap.PAGESIZE
        nodes = np.frombuffer(whole, "<u2")[start // 2 + 8 : start // 2 + 12].tolist()  # where the first four are
        for place, value in (
            (start, bytes(mmap.PAGESIZE)),
            (start, b"\xff"),
            (start + nodes[1] + 8, b"x"),
            (start + nodes[1] + 8, b"00000000"),
            (start + nodes[2] + 8, b"99999999"),
            (start + nodes[1], b"\xff\xff\xff\xff"),
            (start + 12, b"\x11\x00"),  # room for half a node's place
        ):
            damaged = bytearray(whole)
            damaged[place : place + len(value)] = value
            path.write_bytes(damaged)
            tree = tree_of(path, map_file(path), 4000, LONG.names)
            with pytest.raises(ShardCorruptError):
                tree.locate(np.arange(4000), LONG.names)


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
