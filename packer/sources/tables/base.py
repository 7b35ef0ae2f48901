"""The interface of a table file, and what the kinds have in common."""

import os
from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from packer.sources.tables.chunks import Chunk
from shardspec.errors import UsageError, system_reason
from shardspec.wording import quote_some


class Table(Protocol):
    """A table file, read as often as needed. Made from its path; the file is opened only when it is read.

    Every method that reads raises `UsageError` if the file cannot be read or is no such table, or if it has changed
    since it was read before.

    Attributes
    ----------
    is_text : bool
        Whether the values of `chunks` are the texts of cells, which may stand for numbers; an empty one is missing.
    """

    is_text: bool

    @property
    def names(self) -> Collection[str]:
        """The columns of the chunks that were read, in order; all of the table's when the last one was."""
        ...

    @property
    def notes(self) -> Mapping[str, str]:
        """Return notes for the user by column.

        Notes about columns without a name, which are left out, have the key ``""``.
        """
        ...

    @property
    def classes(self) -> Mapping[str, Sequence[str]]:
        """The names of the classes of columns of numbers, if the file has any."""
        ...

    def chunks(self, columns: Collection[str] | None = None, unread: Collection[str] = ()) -> Iterator[Chunk]:
        """Begin to read the rows, some at a time.

        Parameters
        ----------
        columns : collection of str, optional
            The columns to make, those of them that the table has; all by default.
        unread : collection of str
            Columns whose values nothing needs. A file in which columns are stored apart does not read them, and yields
            None in each row.
        """
        ...

    def rows(self, texts: Collection[str] = ()) -> Iterator[dict[str, Any]]:
        """Begin to read the rows, one after another.

        Parameters
        ----------
        texts : collection of str
            The columns of cells that stay texts. Any other becomes integers or floats if all its cells are such
            numbers, and an empty cell is None.
        """
        ...

    def frame(self, texts: Collection[str] = ()) -> Any:
        """The whole table for `shardspec.typing.frames`, in the form that takes the least memory; `texts` as for `rows`."""
        ...

    def where(self, row: int) -> str:
        """The name of a row that was read, in messages."""
        ...


class Passes:
    """The passes over a file, which must be the same in each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stat: tuple[int, int] | None = None

    @contextmanager
    def begin(self) -> Iterator[bool]:
        """Open the file and read it to its end; yields whether it is the first time.

        Raises
        ------
        UsageError
            If the file cannot be read, or has changed.
        """
        before = self._stat
        try:
            self._stat = self._examine()
            yield before is None
            now = self._examine()
        except OSError as error:
            raise UsageError(f"{self._path}: cannot be read: {system_reason(error)}") from error
        if now != self._stat or before not in (None, self._stat):
            raise UsageError(
                f"{self._path}: expected a file that does not change, found one that changed while it was read"
            )

    def _examine(self) -> tuple[int, int]:
        with self._path.open("rb") as file:  # libraries say in words of their own that a file cannot be read
            found = os.fstat(file.fileno())
        return found.st_size, found.st_mtime_ns


class Lines:
    """The line of a file in which each row begins, counted from 1. Where rows are one line each, it takes no memory."""

    def __init__(self) -> None:
        self._rows = array("q")
        self._ahead = array("q")
        self._count = 0

    def append(self, line: int) -> None:
        """Note the line of the next row."""
        ahead = line - self._count
        if not self._ahead or self._ahead[-1] != ahead:
            self._rows.append(self._count)
            self._ahead.append(ahead)
        self._count += 1

    def where(self, row: int) -> str:
        """The name of a row in messages."""
        return f"line {row + self._ahead[bisect_right(self._rows, row) - 1]}"


def refuse_doubled(path: Path, names: Sequence[str]) -> None:
    """Refuse a table in which two columns have one name.

    Raises
    ------
    UsageError
        If it is such a table.
    """
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise UsageError(f"{path}: expected every column once, found {quote_some(doubled)} more than once: rename one")
