"""The kinds of table files, by suffix."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from packer.sources.tables.base import Table
from shardspec.errors import UsageError
from shardspec.registry import Entry, import_target

TABLES: Mapping[str, Entry] = {
    ".csv": Entry("packer.sources.tables.delimited:CsvTable"),
    ".jsonl": Entry("packer.sources.tables.json_lines:JsonLinesTable"),
    ".ndjson": Entry("packer.sources.tables.json_lines:JsonLinesTable"),
    ".parquet": Entry("packer.sources.tables.parquet:ParquetTable", "parquet"),
    ".tsv": Entry("packer.sources.tables.delimited:TsvTable"),
}
"""The class of each kind, by suffix in lower case."""

_CELLS = (".csv", ".tsv")


def is_table(path: Path) -> bool:
    """Return whether a file is a table by its suffix."""
    return path.suffix.lower() in TABLES


def open_table(path: Path, unquoted: bool = False) -> Table:
    """The table that a file is by its suffix. It is not read yet.

    Parameters
    ----------
    path : Path
    unquoted : bool
        Of CSV and TSV, whether quotation marks are characters like any other.

    Raises
    ------
    UsageError
        If the suffix is that of no table, or of one without cells although it is to be `unquoted`.
    MissingDependencyError
        If the library for tables of that kind is not installed.
    """
    suffix = path.suffix.lower()
    if suffix not in TABLES:
        raise UsageError(f"{path}: expected a table ({', '.join(sorted(TABLES))}), found {suffix or 'no suffix'}")
    entry = TABLES[suffix]
    if unquoted and suffix not in _CELLS:
        raise UsageError(f"unquoted: applies only to {' and '.join(_CELLS)}, found {path}")
    make = import_target(entry.target, what=f"table {path.name}", extra=entry.extra)
    table: Table = make(path, unquoted=True) if unquoted else make(path)
    return table


def read_frame(path: Path, texts: Collection[str] = ()) -> Any:
    """A table file for `shardspec.typing.frames`.

    Parameters
    ----------
    texts : collection of str
        Columns of cells that stay text, whatever they look like.

    Raises
    ------
    UsageError
        If there is no such file, it cannot be read, or it is no table.
    MissingDependencyError
        If the library for tables of that kind is not installed.
    """
    return open_table(path).frame(texts)
