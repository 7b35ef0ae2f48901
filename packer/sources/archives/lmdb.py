"""List LMDB files whose values are the bytes of images or videos.

The type of a value is known from the suffix of its key, or without a suffix from its first bytes.

The keys and the offsets of their values are found by walking the file's tree (``mdb.c``: ``MDB_page``, ``MDB_node``).
LMDB's library trusts every page, so a crafted file can crash the process, and it writes a lock file next to the data.
Here each page is checked when it is read.
"""

import struct
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

from packer.sources.archives.listing import (
    PICKLED,
    PICKLES,
    SNIFFED_BYTES,
    ArchiveListing,
    ListedArchive,
    is_pickle,
    seems_image,
)
from packer.sources.archives.member import Member
from packer.sources.item import Item
from packer.vision.media import IMAGE, medium_of
from shardspec.wording import shorten

_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_DIRTY_FLAGS = 0x10 | 0x4000 | 0x8000
_BIG, _SUB, _DUPLICATES = 1, 2, 4
_NODE = struct.Struct("<4H")
_PAGE = struct.Struct("<QHHHH")
_OVERFLOW_PAGE = struct.Struct("<QHHI")
_DEPTH_MAX = 32
_NO_PAGE = 2**64 - 1
_META_BYTES = 2 * 65536 + 4096
_HEADER_BYTES = 16
_PAGE_BYTES = tuple(1 << bits for bits in range(9, 17))
_META = struct.Struct("<2I 2Q" + 2 * "I2H5Q" + "2Q")
_MAGIC, _VERSION = 0xBEEFC0DE, 1


class _Meta(NamedTuple):
    """The fields of a meta page that are needed."""

    page_bytes: int
    flags: int
    depth: int
    root: int
    transaction: int


class KeyEntry(NamedTuple):
    """A key and its value.

    Attributes
    ----------
    offset, size : int
        Position of the value in the file.
    problem : str or None
        Why the value cannot be read.
    """

    key: bytes
    offset: int
    size: int
    problem: str | None = None


class TreeDamage(Exception):  # noqa: N818 -- it is the end of a listing, not an error of a call
    """The rest of a file cannot be read; the message says why."""


def walk_lmdb(path: Path) -> Iterator[KeyEntry]:
    """Yield the entries of an LMDB file's main tree.

    Raises
    ------
    TreeDamage
        If the file is damaged or not an LMDB file. The entries before the damage have been yielded.
    OSError
        If the file cannot be read.
    """
    with path.open("rb") as file:
        yield from _PageTree(file).entries()


class _PageTree:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._meta = _newest_meta(file.read(_META_BYTES))
        self._page_bytes = self._meta.page_bytes
        self._bytes = file.seek(0, 2)
        self._pages = self._bytes // self._page_bytes
        self._visited = 0

    def entries(self) -> Iterator[KeyEntry]:
        """Yield all entries in order. Only the pages on the path to the current one are in memory."""
        _, flags, depth, root, _ = self._meta
        if root == _NO_PAGE:
            return
        if flags & _DUPLICATES or not 1 <= depth <= _DEPTH_MAX:
            raise TreeDamage(f"expected a plain LMDB tree, found flags {flags} and depth {depth}")
        waiting: list[Iterator[int]] = [iter((root,))]
        while waiting:
            number = next(waiting[-1], None)
            if number is None:
                waiting.pop()
                continue
            level = len(waiting)
            page = self._page(number, _LEAF if level == depth else _BRANCH)
            if level == depth:
                yield from self._leaf(number, page)
            else:
                waiting.append(iter(self._children(page)))

    def _page(self, number: int, kind: int) -> bytes:
        self._visited += 1
        if not 2 <= number < self._pages or self._visited > self._pages:
            raise TreeDamage(f"expected pages 2 to {self._pages - 1}, each once, found page {number}")
        self._file.seek(number * self._page_bytes)
        page = self._file.read(self._page_bytes)
        if len(page) < self._page_bytes:
            raise TreeDamage(f"expected page {number}, found the end of the file")
        found, _, flags, lower, _ = _PAGE.unpack_from(page)
        if found != number or flags & ~_DIRTY_FLAGS != kind or not _HEADER_BYTES <= lower <= self._page_bytes:
            raise TreeDamage(f"expected a sound page {number}, found a damaged one")
        return page

    def _nodes(self, page: bytes) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield the position and the four numbers of each node."""
        count = (_PAGE.unpack_from(page)[3] - _HEADER_BYTES) // 2
        for (place,) in struct.iter_unpack("<H", page[_HEADER_BYTES : _HEADER_BYTES + 2 * count]):
            if place < _HEADER_BYTES + 2 * count or place + _NODE.size > len(page):
                raise TreeDamage("expected nodes within their page, found others")
            yield place, *_NODE.unpack_from(page, place)

    def _children(self, page: bytes) -> list[int]:
        return [low | high << 16 | top << 32 for _, low, high, top, _ in self._nodes(page)]

    def _leaf(self, number: int, page: bytes) -> Iterator[KeyEntry]:
        for place, low, high, flags, key_bytes in self._nodes(page):
            start = place + _NODE.size + key_bytes
            key, size = page[place + _NODE.size : start], low | high << 16
            inside = 8 if flags & _BIG else size
            if start + inside > len(page):
                raise TreeDamage("expected values within their page, found others")
            if flags & (_SUB | _DUPLICATES):
                yield KeyEntry(key, 0, 0, "expected a single value, found a nested database or several values")
            elif flags & _BIG:
                yield self._big(key, int.from_bytes(page[start : start + 8], "little"), size)
            else:
                yield KeyEntry(key, number * self._page_bytes + start, size)

    def _big(self, key: bytes, number: int, size: int) -> KeyEntry:
        """Return the entry of a value on overflow pages."""
        problem = "expected overflow pages with the value, found others: the file is cut off or damaged"
        if not 2 <= number < self._pages:
            return KeyEntry(key, 0, 0, problem)
        start = number * self._page_bytes
        self._file.seek(start)
        head = self._file.read(_HEADER_BYTES)
        found, _, flags, span = _OVERFLOW_PAGE.unpack(head) if len(head) == _HEADER_BYTES else (0, 0, 0, 0)
        span *= self._page_bytes
        if found != number or flags & ~_DIRTY_FLAGS != _OVERFLOW or _HEADER_BYTES + size > span:
            return KeyEntry(key, 0, 0, problem)
        return KeyEntry(key, start + _HEADER_BYTES, size, None if start + span <= self._bytes else problem)


def _newest_meta(head: bytes) -> _Meta:
    first = _meta_at(head, 0)
    if first.page_bytes not in _PAGE_BYTES:
        raise TreeDamage(f"expected a page size of 512 to 65536 bytes, found {first.page_bytes}")
    second = _meta_at(head, first.page_bytes)
    if second.page_bytes != first.page_bytes:
        raise TreeDamage(f"expected pages of {first.page_bytes} bytes in both meta pages, found {second.page_bytes}")
    return second if second.transaction > first.transaction else first


def _meta_at(head: bytes, start: int) -> _Meta:
    if len(head) < start + _HEADER_BYTES + _META.size:
        raise TreeDamage(f"expected two meta pages, found {len(head)} bytes")
    # magic, version, address, map size; the trees of free pages and of entries; last page, transaction
    magic, version, _, _, page_bytes, *_, flags, depth, _, _, _, _, root, _, transaction = _META.unpack_from(
        head, start + _HEADER_BYTES
    )
    if magic != _MAGIC or version != _VERSION:
        raise TreeDamage(f"expected an LMDB file of data format 1, found magic {magic:#x}, format {version}")
    return _Meta(page_bytes, flags, depth, root, transaction)


def list_keys(place: ListedArchive) -> ArchiveListing:
    """List the images and videos of one file. A damaged file ends with one reject for the rest."""
    found = ArchiveListing()
    with place.archive.path.open("rb") as file:
        try:
            for entry in walk_lmdb(place.archive.path):
                name = entry.key.decode("utf-8", "surrogateescape").replace("\\", "/")
                file.seek(entry.offset)
                item = _item(place, name, entry, file.read(min(entry.size, SNIFFED_BYTES)))
                if item is None:
                    found.ignored.add(place.name_of(name))
                else:
                    found.items.append(item)
        except TreeDamage as damage:
            found.items.append(place.rest(str(damage)))
    return found


def _item(place: ListedArchive, name: str, entry: KeyEntry, head: bytes) -> Item | None:
    """Return the item for an entry; None if the value is neither of the media to list nor a pickle."""
    suffix = PurePosixPath(name).suffix.lower()
    shown = medium_of(name, place.media) is not None
    if entry.problem is not None:
        return place.item(name, reject=entry.problem)
    if suffix in PICKLES or (not shown and is_pickle(head)):
        return place.item(name, reject=f"{shorten(name)}: {PICKLED}")
    if not shown and not (IMAGE in place.media and seems_image(head)):
        return None
    return place.item(name, entry.size, member=Member("stored", (entry.offset, entry.size), place.bytes))
