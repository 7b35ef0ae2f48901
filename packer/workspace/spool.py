"""Many records that need not outlive the process.

All but the first lie in a temporary file, so memory does not grow.
"""

import heapq
import marshal
import os
import tempfile
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, overload

from shardspec.errors import BuildError, system_reason

T = TypeVar("T")
S = TypeVar("S")

_BLOCK = 1024
_KEPT_BLOCKS = 4
"""Blocks of records that stay in memory, so that a small job makes no file."""

_SORTED_AT_ONCE = 100_000


class Spool(Sequence[T]):
    """Records in the order in which they were appended, to be read again as often as needed.

    Parameters
    ----------
    pack : callable
        Makes a record tuples, lists, dicts, texts, bytes, numbers, truth values and None. A record with anything else
        in it stays in memory, and so do those beside it.
    unpack : callable
        Makes what `pack` made a record again.
    """

    def __init__(self, pack: Callable[[T], Any], unpack: Callable[[Any], T]) -> None:
        self._pack = pack
        self._unpack = unpack
        self._blocks: list[list[T] | tuple[int, int]] = []
        self._tail: list[T] = []
        self._file: Any = None
        self._cached: tuple[int, list[T]] = (-1, [])

    def append(self, record: T) -> None:
        """Append a record."""
        self._tail.append(record)
        if len(self._tail) == _BLOCK:
            self._blocks.append(self._tail if len(self._blocks) < _KEPT_BLOCKS else self._write(self._tail))
            self._tail = []

    def extend(self, records: Iterable[T]) -> "Spool[T]":
        """Append records, and return the spool itself."""
        for record in records:
            self.append(record)
        return self

    def __len__(self) -> int:
        return len(self._blocks) * _BLOCK + len(self._tail)

    def __iter__(self) -> Iterator[T]:
        return self.between(0, len(self))

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return _Slice(self, range(len(self))[index])
        at = range(len(self))[index]
        number = at // _BLOCK
        if self._cached[0] != number or number == len(self._blocks):
            self._cached = number, self._read(number)
        return self._cached[1][at % _BLOCK]

    def between(self, start: int, stop: int) -> Iterator[T]:
        """The records from number `start` to `stop`, exclusive."""
        while start < stop:
            number, first = divmod(start, _BLOCK)
            last = min(_BLOCK, first + stop - start)
            yield from self._read(number)[first:last]
            start += last - first

    def _read(self, number: int) -> list[T]:
        if number == len(self._blocks):
            return self._tail
        block = self._blocks[number]
        if isinstance(block, list):
            return block
        offset, size = block
        self._file.seek(offset)
        return [self._unpack(packed) for packed in marshal.loads(self._file.read(size))]  # noqa: S302 -- our own bytes

    def _write(self, records: list[T]) -> list[T] | tuple[int, int]:
        try:
            data = marshal.dumps([self._pack(record) for record in records])
        except ValueError:  # an object that is none of the plain ones
            return records
        with writing_temporary():
            if self._file is None:
                self._file = temporary_file(self)
            offset = self._file.seek(0, os.SEEK_END)
            self._file.write(data)
            self._file.flush()
        return offset, len(data)


class _Slice(Sequence[T]):
    """Some neighbouring records of a spool."""

    def __init__(self, spool: Spool[T], places: range) -> None:
        if places.step != 1:
            raise ValueError(f"expected neighbouring records, found a step of {places.step}")
        self._spool = spool
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[T]:
        return self._spool.between(self._places.start, self._places.stop)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return _Slice(self._spool, self._places[index])
        return self._spool[self._places[index]]


class PackedTexts(Sequence[str]):
    """Texts in memory, in a third of the room that a list of them takes. A text apart from others is slow to get."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._ends: list[int] = []
        self._cached: tuple[int, list[str]] = (-1, [])

    def extend(self, texts: Sequence[str]) -> None:
        """Append texts."""
        for first in range(0, len(texts), _BLOCK):
            block = list(texts[first : first + _BLOCK])
            self._blocks.append(marshal.dumps(block))
            self._ends.append(len(self) + len(block))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[str]:
        for number in range(len(self._blocks)):
            yield from self._read(number)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[at] for at in range(len(self))[index]]
        at = range(len(self))[index]
        number = bisect_right(self._ends, at)
        if self._cached[0] != number:
            self._cached = number, self._read(number)
        return self._cached[1][at - self._ends[number]]

    def _read(self, number: int) -> list[str]:
        found: list[str] = marshal.loads(self._blocks[number])  # noqa: S302 -- our own bytes
        return found


class Mapped(Sequence[T], Generic[S, T]):
    """A function's results for the entries of a sequence, computed on each read.

    Parameters
    ----------
    source : sequence
    function : callable
        Called with an entry; it always gives the same for the same entry.
    """

    def __init__(self, source: Sequence[S], function: Callable[[S], T]) -> None:
        self._source = source
        self._function = function

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[T]:
        return map(self._function, self._source)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return Mapped(self._source[index], self._function)
        return self._function(self._source[index])


class Again(Iterable[T]):
    """An iterable that is computed on each read.

    Parameters
    ----------
    make : callable
        Begins to make it.
    """

    def __init__(self, make: Callable[[], Iterator[T]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[T]:
        return self._make()


def spool_plain() -> Spool[Any]:
    """A spool of records that consist of plain values already."""
    return Spool(_same, _same)


def texts() -> Spool[str]:
    """A spool of texts."""
    return spool_plain()


def sorted_texts(found: Iterable[str]) -> Iterator[str]:
    """Texts in the order of their bytes as file names; of many, most are on the disk while they are sorted."""
    return sorted_records(found, os.fsencode, texts)


def sorted_records(found: Iterable[T], key: Callable[[T], Any], make_spool: Callable[[], Spool[T]]) -> Iterator[T]:
    """Records in order; of many, most are on the disk while they are sorted.

    Parameters
    ----------
    found : iterable
    key : callable
        By what of a record they are sorted.
    make_spool : callable
        Makes an empty spool for such records.
    """
    runs: list[Iterable[T]] = []
    run: list[T] = []
    for record in found:
        run.append(record)
        if len(run) == _SORTED_AT_ONCE:
            runs.append(make_spool().extend(sorted(run, key=key)))
            run = []
    run.sort(key=key)
    return iter(run) if not runs else heapq.merge(*runs, run, key=key)


@contextmanager
def writing_temporary() -> Iterator[None]:
    """Say what to do if a temporary file cannot be written, which has nothing to do with the dataset's folder."""
    try:
        yield
    except OSError as error:
        raise BuildError(
            f"cannot be written: {system_reason(error)}",
            place=tempfile.gettempdir(),
            hint="name a folder with room for temporary files in TMPDIR",
        ) from error


def temporary_file(owner: object) -> Any:
    """A nameless file for reading and writing, closed when `owner` is no longer used."""
    file = tempfile.TemporaryFile(prefix="packer-")  # noqa: SIM115 -- closed with its owner
    weakref.finalize(owner, file.close)
    return file


def _same(record: Any) -> Any:
    return record
