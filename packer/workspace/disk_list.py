"""Lists that keep all but their first records in a temporary file, so that millions of records take little memory."""

import heapq
import marshal
import os
import tempfile
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, overload

from shardspec.errors import BuildError, ShardspecError, system_reason

T = TypeVar("T")
S = TypeVar("S")

_BLOCK = 1024
_KEPT_BLOCKS = 4
"""Number of blocks that stay in memory, so that a small list needs no file."""

_SORTED_AT_ONCE = 100_000


class DiskList(Sequence[T]):
    """List of records in a temporary file. It can only be appended to, and iterated over any number of times.

    Parameters
    ----------
    pack : callable
        Converts a record to tuples, lists, dicts, strings, bytes, numbers, booleans and None. If the result contains
        any other object, the whole block of records stays in memory.
    unpack : callable
        Converts the result of `pack` back to the record.
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

    def extend(self, records: Iterable[T]) -> "DiskList[T]":
        """Append records, and return the list itself."""
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
        """Iterate over the records `start` to `stop` (exclusive)."""
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
        except ValueError:  # `marshal` cannot store such an object
            return records
        with writing_temporary():
            if self._file is None:
                self._file = temporary_file(self)
            offset = self._file.seek(0, os.SEEK_END)
            self._file.write(data)
            self._file.flush()
        return offset, len(data)


class _Slice(Sequence[T]):
    """A run of consecutive records of a `DiskList`."""

    def __init__(self, records: DiskList[T], places: range) -> None:
        if places.step != 1:
            raise ValueError(f"expected consecutive records, found a step of {places.step}")
        self._records = records
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[T]:
        return self._records.between(self._places.start, self._places.stop)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return _Slice(self._records, self._places[index])
        return self._records[self._places[index]]


class PackedTexts(Sequence[str]):
    """List of strings that takes a third of the memory of a Python list. Iterating is fast, random access is slow."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._ends: list[int] = []
        self._cached: tuple[int, list[str]] = (-1, [])

    def extend(self, texts: Sequence[str]) -> None:
        """Append strings."""
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


class LazyMap(Sequence[T], Generic[S, T]):
    """Apply a function to the entries of a sequence each time they are read.

    Parameters
    ----------
    source : sequence
    function : callable
        Called with an entry. It must return the same result for the same entry every time.
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
            return LazyMap(self._source[index], self._function)
        return self._function(self._source[index])


class Reiterable(Iterable[T]):
    """Iterable that can be iterated over any number of times, by making a new iterator each time.

    Parameters
    ----------
    make : callable
        Returns a new iterator.
    """

    def __init__(self, make: Callable[[], Iterator[T]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[T]:
        return self._make()


def plain_list() -> DiskList[Any]:
    """Make a list for records that need no conversion, such as strings or tuples of numbers."""
    return DiskList(_same, _same)


def text_list() -> DiskList[str]:
    """Make a list for strings."""
    return plain_list()


def sorted_texts(found: Iterable[str]) -> Iterator[str]:
    """Sort strings by their bytes as file names. A long list is sorted on the disk (`sorted_records`)."""
    return sorted_records(found, os.fsencode, text_list)


def sorted_records(found: Iterable[T], key: Callable[[T], Any], make_list: Callable[[], DiskList[T]]) -> Iterator[T]:
    """Sort records. More than `_SORTED_AT_ONCE` are sorted in runs on the disk, which are then merged.

    Parameters
    ----------
    found : iterable
    key : callable
        Returns the sort key of a record.
    make_list : callable
        Makes an empty `DiskList` for a run.
    """
    runs: list[Iterable[T]] = []
    run: list[T] = []
    for record in found:
        run.append(record)
        if len(run) == _SORTED_AT_ONCE:
            runs.append(make_list().extend(sorted(run, key=key)))
            run = []
    run.sort(key=key)
    return iter(run) if not runs else heapq.merge(*runs, run, key=key)


@contextmanager
def writing_temporary() -> Iterator[None]:
    """Turn a failed write to a temporary file into a `BuildError` that names the temporary folder."""
    try:
        yield
    except ShardspecError:  # some are OSErrors, too
        raise
    except OSError as error:
        raise BuildError(
            f"cannot be written: {system_reason(error)}",
            place=tempfile.gettempdir(),
            hint="set TMPDIR to a folder with enough free space",
        ) from error


def temporary_file(owner: object) -> Any:
    """Open an anonymous file for reading and writing. It is closed when `owner` is garbage-collected."""
    file = tempfile.TemporaryFile(prefix="packer-")  # noqa: SIM115 -- closed with its owner
    weakref.finalize(owner, file.close)
    return file


def _same(record: Any) -> Any:
    return record
