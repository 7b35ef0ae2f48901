"""List MXNet's RecordIO files: ``train.rec``, with or without ``train.idx``, including InsightFace's face datasets.

A label that is a whole number becomes the field ``label``, and a label of several numbers becomes ``labels``.

A record consists of a magic number, a word with a flag (3 bits) and a length (29 bits), and the bytes, padded to a
multiple of four (dmlc-core, ``recordio.h``). If the magic number occurs in the bytes, they are split there into several
parts, and the flag tells which part this is. The bytes begin with ``flag, label, id, id2`` (``<IfQQ``). If this flag is
not 0, that number of float32 values follows and replaces the label (MXNet, ``recordio.py``). InsightFace's record 0 has
no image but two such values: the end of the range of image records, and the end of the range of identity records
(``arcface_torch/dataset.py``).
"""

import math
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from packer.sources.archives.listing import LABEL, PICKLED, ArchiveListing, ListedArchive, is_pickle
from packer.sources.archives.member import Member
from packer.sources.item import Item
from packer.sources.member_bytes import read_member
from packer.workspace.disk_list import text_list
from shardspec.errors import ItemError
from shardspec.wording import shorten

_MAGIC = 0xCED7230A
_RECORD = struct.Struct("<II")
_HEADER = struct.Struct("<IfQQ")
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_HEAD_BYTES = 4096
"""Number of bytes to read from every record, enough for the header and most labels."""
_LABELS_MAX = 1 << 16
_INDEX_LINE_BYTES_MAX = 1 << 10
_FLOAT_INTEGERS_MAX = 2**24


@dataclass(frozen=True)
class _Record:
    """A complete record, with the offsets and sizes of its parts and its first bytes."""

    start: int
    pieces: tuple[int, ...]
    head: bytes

    @property
    def size(self) -> int:
        return sum(self.pieces[1::2])


class _Damage(Exception):  # noqa: N818 -- it is the end of a listing, not an error of a call
    """Records cannot be read from here on; the message says why."""


def list_records(place: ListedArchive) -> ArchiveListing:
    """List the images of one file. After damage, continue at the next indexed record. Missing records become rejects."""
    path = place.archive.path
    found = ArchiveListing()
    index = _RecordKeys.read(path.with_suffix(".idx"))
    faces = False
    with path.open("rb") as file:
        end = place.bytes
        at, number = 0, 0
        while at < end:
            try:
                record = _read_record(file, at, end)
            except _Damage as damage:
                found.items.append(place.rest(str(damage)))
                at = index.following(at, end)
                continue
            named = index.take(at)
            name = str(number) if named is None else named
            number += 1
            at = record.pieces[-2] + record.pieces[-1]
            at += -(at - record.start) % 4
            try:
                label, start = _read_header(path, record, end)
            except ItemError as error:
                found.items.append(place.item(name, reject=str(error)))
                continue
            if start == record.size and len(label) == 2:  # no image: InsightFace's ranges
                faces |= record.start == 0
                continue
            found.items.append(_item(place, name, record, label[:1] if faces else label, start))
    found.numbers_people = faces
    for name, start in index.left():
        there = f"the end of the file at byte {end}: cut off" if start >= end else "no complete one: damaged"
        reason = f"expected a record at byte {start} according to the index, found {there}, or the index is wrong"
        found.items.append(place.item(name, reject=reason))
    return found


def _item(place: ListedArchive, name: str, record: _Record, label: tuple[float, ...], start: int) -> Item:
    if is_pickle(record.head[start : start + 2]):
        return place.item(name, reject=PICKLED)
    columns: dict[str, Any] = {}
    if len(label) > 1:
        columns["labels"] = [value if math.isfinite(value) else None for value in label]
    elif label and math.isfinite(label[0]):
        whole = label[0].is_integer() and abs(label[0]) < _FLOAT_INTEGERS_MAX
        columns[LABEL] = int(label[0]) if whole else label[0]
    pieces = tuple(_cut(record.pieces, start, record.size)) or (record.pieces[-2] + record.pieces[-1], 0)
    return place.item(name, sum(pieces[1::2]), columns=columns, member=Member("stored", pieces, place.bytes))


def _read_record(file: BinaryIO, start: int, end: int) -> _Record:
    at, parts = start, 0
    pieces: list[int] = []
    head = b""
    while True:
        file.seek(at)
        data = file.read(_RECORD.size + _HEAD_BYTES - len(head))
        if len(data) < _RECORD.size:
            raise _Damage(f"expected a record at byte {at}, found the end of the file: cut off")
        magic, word = _RECORD.unpack_from(data)
        flag, size = word >> 29, word & ((1 << 29) - 1)
        if magic != _MAGIC:
            raise _Damage(f"expected a record at byte {at}, found other bytes: damaged, or no RecordIO file")
        if flag not in ((_MIDDLE, _LAST) if parts else (_WHOLE, _FIRST)):
            raise _Damage(f"expected the {'next' if parts else 'first'} part of a record at byte {at}, found another")
        offset = at + _RECORD.size
        if offset + size > end:
            raise _Damage(f"expected {size} bytes in the record at byte {at}, found {end - offset}: cut off")
        if parts:  # the record was split at a magic number, which is part of its bytes
            pieces += [at, 4]
            head += data[:4]
        pieces += [offset, size]
        head = (head + data[_RECORD.size : _RECORD.size + size])[:_HEAD_BYTES]
        parts += 1
        if flag in (_WHOLE, _LAST):
            return _Record(start, tuple(pieces), head)
        if parts > _LABELS_MAX:
            raise _Damage(f"expected a record at byte {start}, found one of more than {_LABELS_MAX} parts")
        at = offset + size + -size % 4


def _read_header(path: Path, record: _Record, end: int) -> tuple[tuple[float, ...], int]:
    """Return the label of a record, and the offset of the image in its bytes."""
    if record.size < _HEADER.size or len(record.head) < _HEADER.size:
        raise ItemError(expected=f"a header of {_HEADER.size} bytes in the record", found=f"{record.size} bytes")
    flag, label, _, _ = _HEADER.unpack_from(record.head)
    if flag == 0:
        return (label,), _HEADER.size
    start = _HEADER.size + 4 * flag
    if flag > _LABELS_MAX or start > record.size:
        raise ItemError(expected=f"the {flag} numbers of its label in the record", found=f"{record.size} bytes")
    data = record.head
    if start > len(data):
        data = read_member(str(path), Member("stored", tuple(_cut(record.pieces, 0, start)), end))
    return struct.unpack_from(f"<{flag}f", data, _HEADER.size), start


def _cut(pieces: Sequence[int], start: int, stop: int) -> list[int]:
    """Return the pieces that hold the bytes `start` to `stop` of a record."""
    found: list[int] = []
    for offset, size in zip(pieces[::2], pieces[1::2], strict=True):
        first, last = max(0, min(start, size)), max(0, min(stop, size))
        found += [offset + first, last - first] if last > first else []
        start, stop = start - size, stop - size
    return found


class _RecordKeys:
    """Maps the offset of each record to its key, with a few numbers per record in memory.

    Parameters
    ----------
    starts : sequence of int
        Offsets of the records, in the order of the index.
    """

    def __init__(self, starts: "array[int]", names: Sequence[str]) -> None:
        given = np.frombuffer(starts, np.int64)
        ordered, self._lines = np.unique(given, return_index=True)  # of equal offsets, the first
        self._starts = array("q", ordered.tobytes())
        self._names = names
        self._taken = np.zeros(len(given), np.bool_)

    @classmethod
    def read(cls, path: Path) -> "_RecordKeys":
        """Read an index file; without a file there are no keys."""
        starts, names = array("q"), text_list()
        try:
            with path.open("rb") as file:
                while line := file.readline(_INDEX_LINE_BYTES_MAX):
                    cells = line.split()
                    if len(cells) == 2 and cells[1].isdigit() and len(cells[1]) < 19:
                        starts.append(int(cells[1]))
                        names.append(shorten(cells[0].decode("utf-8", "replace")).strip("'\""))
        except FileNotFoundError:
            pass
        return cls(starts, names)

    def take(self, start: int) -> str | None:
        """Return the key of the record at an offset, and mark it as found. Return None if the record has no key."""
        at = bisect_left(self._starts, start)
        if at == len(self._starts) or self._starts[at] != start:
            return None
        line = int(self._lines[at])
        self._taken[line] = True
        return self._names[line]

    def following(self, start: int, end: int) -> int:
        """Return the offset of the first indexed record after `start`; `end` if there is none."""
        at = bisect_right(self._starts, start)
        return end if at == len(self._starts) else self._starts[at]

    def left(self) -> Iterator[tuple[str, int]]:
        """Yield the key and the expected offset of each record that was not found, in the order of the index."""
        for at in np.argsort(self._lines).tolist():
            line = int(self._lines[at])
            if not self._taken[line]:
                yield self._names[line], self._starts[at]
