"""LMDB files written by our own code are, byte by byte, those of the library, and go on being read by it."""

import mmap
import random
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.datasets import size_of

from packer.assembly.writers import lmdb as writers
from packer.assembly.writers.lmdb import LMDBShardWriter
from packer.assembly.writers.lmdb_pages import LMDBPages, can_follow, most_node
from shardspec.columns import Columns
from shardspec.schema import Field, Schema

Entries = list[tuple[bytes, bytes]]

PAGE = mmap.PAGESIZE
MOST = most_node(PAGE)
EDGES = (0, 1, MOST - 30, MOST, PAGE - 17, PAGE - 16, PAGE - 15, 3 * PAGE - 16, 40_000)
"""Lengths on either side of those at which a value gets pages of its own, and one page more."""


def by_library(path: Path, entries: Entries, map_bytes: int) -> bytes:
    working = path.with_suffix(".working")
    more: dict[str, Any] = {"lib_version": 0} if lmdb.__version__ >= "3" else {}
    with lmdb.open(str(working), map_size=map_bytes, subdir=False, lock=False, sync=False, **more) as environment:
        with environment.begin(write=True) as transaction:
            transaction.cursor().putmulti(entries, append=True)
        with path.open("wb") as file:
            environment.copyfd(file.fileno(), compact=True)
    working.unlink()
    return path.read_bytes()


def by_us(path: Path, entries: Entries, map_bytes: int, flushed_every: int) -> bytes:
    with path.open("wb", buffering=0) as file:
        pages = LMDBPages(file.fileno(), PAGE, map_bytes)
        for first in range(0, len(entries), flushed_every):
            reused = [(key, bytearray(value)) for key, value in entries[first : first + flushed_every]]
            pages.put(reused[:3])
            pages.put(iter(reused[3:]))
            pages.flush()
            for _, value in reused:  # what was flushed is needed no longer
                value[:] = bytes(len(value))
        pages.finish()
    return path.read_bytes()


def assert_alike(folder: Path, entries: Entries, flushed_every: int) -> None:
    map_bytes = (1 + sum(len(value) // PAGE + 3 for _, value in entries)) * 2 * PAGE + (1 << 20)
    expected = by_library(folder / "library", entries, map_bytes)
    assert by_us(folder / "ours", entries, map_bytes, flushed_every) == expected


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(
        st.one_of(st.sampled_from(EDGES), st.integers(0, 100), st.integers(0, 3 * PAGE)), min_size=0, max_size=60
    ),
    names=st.lists(st.text("abcdefghij_", min_size=1, max_size=60), min_size=1, max_size=4, unique=True),
    repeated=st.integers(1, 6),
    flushed_every=st.integers(1, 50),
)
def test_any_values_give_the_bytes_of_the_library(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], names: list[str], repeated: int, flushed_every: int
) -> None:
    names, rng = sorted(names), random.Random(0)
    lengths = lengths * repeated
    entries = [
        (f"{number // len(names):08d}/{names[number % len(names)]}".encode(), rng.randbytes(length))
        for number, length in enumerate(lengths)
    ]
    assert_alike(tmp_path_factory.mktemp("pages"), entries, flushed_every)


@pytest.mark.parametrize("lengths", [(4, 9), (1980, 3000), (1900, 7), (0, 60, 5000), (PAGE - 20, 700, 3)])
def test_a_tree_of_three_levels_has_the_bytes_of_the_library(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    """Branches are split; what the library then has in its memory shows between the keys of later pages."""
    rng = random.Random(1)
    entries = [
        (b"%08d/%s" % (row, b"a" * (40 + place)), rng.randbytes(max(0, length - row % 3)))
        for row in range(4_000 if sum(lengths) < 100 else 1_500)
        for place, length in enumerate(lengths)
    ]
    assert_alike(tmp_path, entries, 100)
    with lmdb.open(str(tmp_path / "ours"), subdir=False, readonly=True, lock=False) as environment:
        assert environment.stat()["depth"] == 3
        with environment.begin() as transaction:
            assert list(transaction.cursor()) == entries


def test_a_shard_for_which_our_code_was_not_made_is_left_to_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = Schema((Field("a", "bytes", "|u1", (None,)), Field("image", "bytes", "|u1", (None,))))
    rng = random.Random(2)
    rows: Columns = {"a": [b"x"] * 300, "image": [rng.randbytes(4 * length) for length in range(300)]}
    found = []
    for few in (True, False):
        monkeypatch.setattr(writers, "_few_pages", lambda size, few=few: few)
        writer = LMDBShardWriter(tmp_path, f"shard-{few:d}", schema, size_of(schema, rows))
        for start in (0, 100):
            writer.write({name: values[start : start + (100 if not start else 200)] for name, values in rows.items()})
        writer.close()
        found.append((tmp_path / f"shard-{few:d}.lmdb").read_bytes())
    assert found[0] == found[1]


def test_which_shards_are_left_to_the_library() -> None:
    """Those of more levels, and of more pages than the library holds in memory."""
    photos = {"entries": 5_000 * 5, "node_bytes": 5_000 * 200, "large": 5_000, "largest": 10**6, "key_bytes": 18}
    assert can_follow(4096, **photos)
    assert not can_follow(4096, **{**photos, "large": 131_000})
    assert not can_follow(4096, **{**photos, "largest": 512 * 10**6})
    assert not can_follow(4096, **{**photos, "entries": 4 * 10**6, "node_bytes": 100 * 10**6})
