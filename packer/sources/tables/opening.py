"""Open a table file by its suffix."""

from collections.abc import Mapping
from pathlib import Path

from packer.sources.tables.base import Table
from shardspec.errors import UsageError
from shardspec.registry import ImportTarget, import_target

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
