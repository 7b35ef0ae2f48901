"""Small fields of all rows, made in one pass over the shards and kept in temporary files rather than in memory."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from packer.workspace.spool import sorted_texts, temporary_file, writing_temporary
from readers.formats.mapping import map_open
from readers.formats.opened import open_shards
from readers.formats.pool import ShardPool
from shardspec.columns import Columns, allocate
from shardspec.errors import DatasetError

Column = npt.NDArray[Any]

BLOCK = 1 << 16
"""Rows that are looked at together."""

FEW_TEXTS = 50_000
"""A text field with more different values is not counted."""

_CHUNK = 8192
_DIGITS = 12


class Texts(NamedTuple):
    """A text field of all rows, by number.

    Attributes
    ----------
    names : list of str
        The different values, ascending.
    codes : (rows,) int32
        The place of each row's value among them.
    """

    names: list[str]
    codes: npt.NDArray[np.int32]


class Kept:
    """An array that is written part by part into a temporary file, and then mapped: the system may drop its pages.

    Parameters
    ----------
    dtype : dtype
    """

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        with writing_temporary(DatasetError):
            self._file = temporary_file(self)
        self._rows = 0

    def append(self, values: Column) -> None:
        """Append values."""
        data = np.ascontiguousarray(values, self._dtype)
        with writing_temporary(DatasetError):
            self._file.write(data.data)
        self._rows += len(data)

    def array(self) -> Column:
        """All values; nothing can be appended afterwards."""
        with self._file, writing_temporary(DatasetError):
            if not self._rows:
                return np.empty(0, self._dtype)
            self._file.flush()
            return map_open(self._file.fileno()).view(self._dtype)


class Taker(Protocol):
    """Takes a field's values in a pass over all rows.

    Attributes
    ----------
    enough : bool
        Whether no further values are wanted.
    """

    enough: bool

    def take(self, values: Any) -> None:
        """Take the encoded values of the next rows."""
        ...

    def result(self) -> Any:
        """Return the results of the jobs."""
        ...


class NumberTaker:
    """Keeps numbers (`Taker`).

    Parameters
    ----------
    dtype : dtype
    of : callable, optional
        Makes one number of each row's values.
    """

    def __init__(self, dtype: npt.DTypeLike, of: Callable[[Column], Column] | None = None) -> None:
        self._kept = Kept(dtype)
        self._of = of
        self.enough = False

    def take(self, values: Column) -> None:
        """See `Taker`."""
        self._kept.append(values if self._of is None else self._of(values))

    def result(self) -> Column:
        """The numbers of all rows."""
        return self._kept.array()


class TextTaker:
    """Numbers texts, as long as there are few different ones (`Taker`)."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._kept = Kept(np.int32)
        self.enough = False

    def take(self, values: Sequence[Any]) -> None:
        """See `Taker`."""
        numbers = self._numbers
        self._kept.append(np.array([numbers.setdefault(bytes(value), len(numbers)) for value in values], np.int32))
        if len(numbers) > FEW_TEXTS:
            self._numbers, self.enough = {}, True

    def result(self) -> Texts | None:
        """The texts of all rows; None if there are too many different ones."""
        codes = self._kept.array()
        if self.enough:
            return None
        texts = [as_text(value) for value in self._numbers]
        names = sorted(set(texts))  # what is not UTF-8 may look alike
        place = {name: number for number, name in enumerate(names)}
        ranks, kept = np.array([place[text] for text in texts], np.int32), Kept(np.int32)
        for start in range(0, len(codes), BLOCK):
            kept.append(ranks[codes[start : start + BLOCK]])
        return Texts(names, kept.array())


def scan(pool: ShardPool, takers: dict[str, tuple[str, Taker]], report: Callable[[float], None]) -> None:
    """Give all rows of some fields to those who take them, in one pass.

    Parameters
    ----------
    takers : dict of str to (str, Taker)
        By name: the field, and who takes it.
    report : callable
        Called with the share of rows that were read.
    """
    fields = list(dict.fromkeys(field for field, _ in takers.values()))
    for start, columns in read_blocks(pool, fields):
        for field, taker in takers.values():
            if field in fields:
                taker.take(columns[field])
        fields[:] = dict.fromkeys(field for field, taker in takers.values() if not taker.enough)
        report((start + _CHUNK) / max(1, len(pool)))


def read_blocks(pool: ShardPool, fields: Sequence[str]) -> Iterator[tuple[int, Columns]]:
    """The encoded values of all rows, some thousand at a time, with the number of the first.

    Ends as soon as `fields`, which the caller may shorten between two blocks, is empty.

    Shards are mapped one after another, by a pool of their own: otherwise the whole dataset would count as memory of
    this process.
    """
    own, start = pool.join((), {}), 0
    for number, shard in enumerate(own.manifest.shards):
        stop = start + shard.samples
        while start < stop:
            if not fields:
                return
            rows = np.arange(start, min(start + _CHUNK, stop))
            out = allocate([own.schema[name] for name in fields], len(rows))
            own.read(rows, fields, out, np.arange(len(rows)))
            yield start, out
            del out
            start += len(rows)
        open_shards.forget(own, number)


def rank_texts(pool: ShardPool, field: str, report: Callable[[float], None]) -> npt.NDArray[np.int32]:
    """The place of each row's text among the different ones: (rows,) int32. They are sorted on the disk."""

    def numbered() -> Iterator[str]:
        for start, columns in read_blocks(pool, [field]):
            for row, value in enumerate(columns[field], start):
                yield f"{as_text(value)}\0{row:0{_DIGITS}d}"
            report(0.5 * start / max(1, len(pool)))

    ranks = np.empty(len(pool), np.int32)
    rank, before = -1, None
    for done, text in enumerate(sorted_texts(numbered())):
        if text[:-_DIGITS] != before:
            rank, before = rank + 1, text[:-_DIGITS]
        ranks[int(text[-_DIGITS:])] = rank
        if done % _CHUNK == 0:
            report(0.5 + 0.5 * done / len(pool))
    kept = Kept(np.int32)
    kept.append(ranks)
    return kept.array()


def find_repeats(pool: ShardPool, field: str, report: Callable[[float], None]) -> tuple[int, str]:
    """How many texts repeat an earlier row's, and one of them.

    Texts are compared by 64 bits of a hash that nobody outside of this process can foresee: two texts of a million are
    taken for one text once in some ten million datasets.
    """
    hashes = np.empty(len(pool), np.int64)
    for start, columns in read_blocks(pool, [field]):
        values = columns[field]
        hashes[start : start + len(values)] = [hash(bytes(value)) for value in values]
        report(start / max(1, len(pool)))
    hashes.sort()
    again = hashes[1:][hashes[1:] == hashes[:-1]]
    if not len(again):
        return 0, ""
    wanted = int(again[0])
    found = (value for _, columns in read_blocks(pool, [field]) for value in columns[field])
    return len(again), next((as_text(value) for value in found if hash(bytes(value)) == wanted), "")


def as_text(value: Any) -> str:
    """A text as it can be shown: bytes that are not UTF-8 are replaced."""
    return bytes(value).decode("utf-8", "replace")
