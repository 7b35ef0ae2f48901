"""LMDB files written by our own code hold what the library reads from them, and have no byte that is left to chance."""

import mmap
import random
from pathlib import Path

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.assembly.writers.lmdb import LMDBPages

try:
    from lmdb.verify import verify  # py-lmdb 3 has a verifier
except ImportError:
    verify = None

Entries = list[tuple[bytes, bytes]]

PAGE = mmap.PAGESIZE
MOST = ((PAGE - 16) // 2 & -2) - 2
EDGES = (0, 1, MOST - 30, MOST, PAGE - 17, PAGE - 16, PAGE - 15, 3 * PAGE - 16, 40_000)
"""Lengths on either side of those at which a value gets pages of its own, and one page more."""


def write(path: Path, entries: Entries, together: int) -> LMDBPages:
    with path.open("wb", buffering=0) as file:
        pages = LMDBPages(file.fileno(), PAGE)
        for first in range(0, len(entries), together):
            reused = [(key, bytearray(value)) for key, value in entries[first : first + together]]
            pages.put(reused)
            for _, value in reused:  # what was put is needed no longer
                value[:] = bytes(len(value))
        pages.finish()
    return pages


def check(folder: Path, entries: Entries, together: int) -> dict[str, int]:
    """Compare a file with the entries, as the library reads it, and return the library's statistics."""
    path = folder / "ours"
    pages = write(path, entries, together)
    data = path.read_bytes()
    places = zip(pages.starts, pages.sizes, strict=True)
    assert [data[start : start + size] for start, size in places] == [value for _, value in entries]
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as environment:
        with environment.begin() as transaction:
            assert list(transaction.cursor()) == entries
            for key, value in entries[:: max(1, len(entries) // 50)]:
                assert transaction.get(key) == value
        statistics: dict[str, int] = environment.stat()
        last_page = environment.info()["last_pgno"]
    assert len(data) == (last_page + 1) * PAGE
    assert statistics["entries"] == len(entries)
    if entries:
        counted = sum(statistics[f"{kind}_pages"] for kind in ("branch", "leaf", "overflow"))
        assert counted == last_page - 1
    if verify is not None:
        assert not verify(str(path), subdir=False)
    return statistics


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(
        st.one_of(st.sampled_from(EDGES), st.integers(0, 100), st.integers(0, 3 * PAGE)), min_size=0, max_size=60
    ),
    names=st.lists(st.text("abcdefghij_", min_size=1, max_size=60), min_size=1, max_size=4, unique=True),
    repeated=st.integers(1, 6),
    together=st.integers(1, 50),
)
def test_the_library_reads_any_values(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], names: list[str], repeated: int, together: int
) -> None:
    names, rng = sorted(names), random.Random(0)
    lengths = lengths * repeated
    entries = [
        (f"{number // len(names):08d}/{names[number % len(names)]}".encode(), rng.randbytes(length))
        for number, length in enumerate(lengths)
    ]
    check(tmp_path_factory.mktemp("pages"), entries, together)


@pytest.mark.parametrize("lengths", [(4, 9), (1980, 3000), (1900, 7), (0, 60, 5000), (PAGE - 20, 700, 3)])
def test_trees_of_several_levels(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    rng = random.Random(1)
    entries = [
        (b"%08d/%s" % (row, b"a" * (40 + place)), rng.randbytes(max(0, length - row % 3)))
        for row in range(4_000 if sum(lengths) < 100 else 1_500)
        for place, length in enumerate(lengths)
    ]
    assert check(tmp_path, entries, 100)["depth"] >= 3


def test_a_tree_of_every_number_of_leaves(tmp_path: Path) -> None:
    """With keys so long that a branch has few children: whatever is left at the end of a level has two, or is the root."""
    key = b"%08d/" + b"k" * 480
    found = set()
    for leaves in range(80):
        found.add(check(tmp_path, [(key % row, bytes(1500)) for row in range(2 * leaves)], 7)["depth"])
    assert found == {0, 1, 2, 3, 4}


def test_files_do_not_depend_on_how_entries_are_added(tmp_path: Path) -> None:
    rng = random.Random(2)
    entries = [(b"%08d/a" % row, rng.randbytes(rng.choice(EDGES))) for row in range(200)]
    found = []
    for together in (1, 7, 200):
        write(tmp_path / "ours", entries, together)
        found.append((tmp_path / "ours").read_bytes())
    assert found[0] == found[1] == found[2]
