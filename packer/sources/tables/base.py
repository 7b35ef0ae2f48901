"""The interface of a table file, the kinds by suffix, and code shared by all kinds."""

import os
from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from packer.sources.tables.chunks import Chunk
from shardspec.errors import UsageError, system_reason
from shardspec.registry import ImportTarget, import_target
from shardspec.wording import quote_some


class Table(Protocol):
    """A table file. It is opened each time it is read.

    Every method that reads raises `UsageError` if the file cannot be read, is not a table of this kind, or has changed
    since it was last read.

    Attributes
    ----------
    is_text : bool
        Whether the values of `chunks` are strings from cells, which may represent numbers. Empty cells are missing.
    """

    is_text: bool

    @property
    def names(self) -> Collection[str]:
        """The columns of the chunks read so far, in order. After the last chunk, these are all columns of the table."""
        ...

    @property
    def notes(self) -> Mapping[str, str]:
        """Notes for the user by column.

        Columns without a name are skipped, and the note about them has the key ``""``.
        """
        ...

    @property
    def classes(self) -> Mapping[str, Sequence[str]]:
        """The class names of columns of numbers, known once `chunks` has read the table."""
        ...

    def chunks(self, columns: Collection[str] | None = None, unread: Collection[str] = ()) -> Iterator[Chunk]:
        """Read the rows in chunks.

        Parameters
        ----------
        columns : collection of str, optional
            The columns to return; all by default. Columns that the table lacks are left out.
        unread : collection of str
            Columns whose values are not needed. A reader of a columnar file skips them, and yields None in each row.
        """
        ...

    def frame(self, texts: Collection[str] = ()) -> Any:
        """Read the whole table for `shardspec.typing.frames`, in a form that takes little memory.

        Parameters
        ----------
        texts : collection of str
            Columns of cells to keep as texts. Any other column of cells becomes integers or floats if all its cells
            are numbers. Empty cells are missing.
        """
        ...

    def where(self, row: int) -> str:
        """Return the name of a row in messages."""
        ...


TABLES: Mapping[str, ImportTarget] = {
    ".csv": ImportTarget("packer.sources.tables.delimited:CsvTable"),
    ".jsonl": ImportTarget("packer.sources.tables.json_lines:JsonLinesTable"),
    ".ndjson": ImportTarget("packer.sources.tables.json_lines:JsonLinesTable"),
    ".parquet": ImportTarget("packer.sources.tables.parquet:ParquetTable", "parquet"),
    ".tsv": ImportTarget("packer.sources.tables.delimited:TsvTable"),
}
"""The class of each kind, by suffix in lower case."""

_CELLS = (".csv", ".tsv")


def is_table(path: Path) -> bool:
    """Return whether a file is a table by its suffix."""
    return path.suffix.lower() in TABLES


def open_table(path: Path, unquoted: bool = False) -> Table:
    """Return the table at a path according to its suffix, without reading it.

    Parameters
    ----------
    unquoted : bool
        Whether quotation marks in CSV and TSV are plain characters.

    Raises
    ------
    UsageError
        If the suffix is unknown, or if `unquoted` does not apply to this kind of table.
    MissingDependencyError
        If the library for this kind of table is not installed.
    """
    suffix = path.suffix.lower()
    if suffix not in TABLES:
        raise UsageError(place=path, expected=f"a table ({', '.join(sorted(TABLES))})", found=suffix or "no suffix")
    entry = TABLES[suffix]
    if unquoted and suffix not in _CELLS:
        raise UsageError(f"applies only to {' and '.join(_CELLS)}, found {path}", option="unquoted")
    make = import_target(entry.target, what=f"table {path.name}", extra=entry.extra)
    table: Table = make(path, unquoted=True) if unquoted else make(path)
    return table


class Passes:
    """Checks that a file is the same in each pass over it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stat: tuple[int, int] | None = None

    @contextmanager
    def begin(self) -> Iterator[bool]:
        """Wrap one pass over the file. Yield whether it is the first pass.

        Raises
        ------
        UsageError
            If the file cannot be read, or has changed since an earlier pass.
        """
        before = self._stat
        try:
            self._stat = self._examine()
            yield before is None
            now = self._examine()
        except OSError as error:
            raise UsageError(f"cannot be read: {system_reason(error)}", place=self._path) from error
        if now != self._stat or before not in (None, self._stat):
            raise UsageError(
                place=self._path, expected="a file that does not change", found="one that changed while it was read"
            )

    def _examine(self) -> tuple[int, int]:
        with self._path.open("rb") as file:  # raises a plain OSError, unlike the libraries, if the file cannot be read
            found = os.fstat(file.fileno())
        return found.st_size, found.st_mtime_ns


class Lines:
    """Records the first line of each row, counted from 1. Rows of a single line take no memory."""

    def __init__(self) -> None:
        self._rows = array("q")
        self._ahead = array("q")
        self._count = 0

    def append(self, line: int) -> None:
        """Record the line of the next row."""
        ahead = line - self._count
        if not self._ahead or self._ahead[-1] != ahead:
            self._rows.append(self._count)
            self._ahead.append(ahead)
        self._count += 1

    def where(self, row: int) -> str:
        """Return the name of a row in messages."""
        return f"line {row + self._ahead[bisect_right(self._rows, row) - 1]}"


def refuse_doubled(path: Path, names: Sequence[str]) -> None:
    """Refuse a table in which two columns have the same name."""
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise UsageError(
            place=path, expected="every column once", found=f"{quote_some(doubled)} more than once", hint="rename one"
        )
