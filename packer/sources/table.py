"""A table of paths: CSV, JSON lines or Parquet."""

import csv
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from packer.sources.base import Listing, Roots
from packer.sources.rows import RowsSource
from shardspec.errors import UsageError
from shardspec.registry import import_target
from shardspec.wording import counted, list_some


class TableSource:
    """The rows of a table file.

    Parameters
    ----------
    path : Path
    roots : Roots, optional
        The folders to which its paths are relative; by default the table's folder.
    types : dict of str to str
        Columns that become text, int or float, whatever their values look like.
    """

    def __init__(self, path: Path, roots: Roots | None = None, types: Mapping[str, str] | None = None) -> None:
        self.path = path
        self._roots = roots or Roots.of(path.parent)
        self._types = types or {}

    def list_items(self, label_from: str, path_column: str) -> Listing:
        """The items, in the order of the rows."""
        table = _READERS[self.path.suffix.lower()](self.path, {path_column, *self._types})
        if not table.rows:
            raise UsageError(f"{self.path}: expected a row for each picture or video, found no rows")
        if all(path_column not in row for row in table.rows):
            raise UsageError(
                f"{self.path}: expected a column {path_column!r} of paths, found {list_some(list(table.rows[0]))}: "
                "name it with --path-column"
            )
        return RowsSource(table.rows, self._roots, table.lines, self._types).list_items(label_from, path_column)


class TableRows(NamedTuple):
    """The rows of a table, and the line of the file in which each begins, counted from 1; no lines for Parquet."""

    rows: list[dict[str, Any]]
    lines: list[int]


_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)?(\.[0-9]+|(?<=[0-9])\.)?([eE][+-]?[0-9]{1,2})?\Z")


_OTHER_MARKS = (";", "\t", "|")
"""Other separators between the cells of tables that are nevertheless called CSV."""


def read_csv(path: Path, texts: Collection[str] = (), mark: str = ",") -> TableRows:
    """Rows of a CSV file with a header. `mark` separates its cells.

    A column becomes integers or floats if all its cells are such numbers, unless it is in `texts`; those columns stay
    text. An empty cell is missing.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, delimiter=mark, strict=True)
        rows, lines = [], []
        try:
            header = next(filter(None, reader), [])
            if mark == ",":
                _refuse_other_marks(path, header)
            last = reader.line_num
            for cells in reader:
                if cells:
                    rows.append(cells)
                    lines.append(last + 1)
                last = reader.line_num
        except UnicodeDecodeError as error:
            raise UsageError(_describe_other_bytes(path)) from error
        except csv.Error as error:
            raise UsageError(f"{path}, line {reader.line_num}: expected CSV, {error}") from error
    doubled = sorted({name for name in header if header.count(name) > 1})
    if doubled:
        raise UsageError(
            f"{path}: expected every column once, found {', '.join(map(repr, doubled))} more than once: rename one"
        )
    for line, row in zip(lines, rows, strict=True):
        if len(row) != len(header):
            raise UsageError(
                f"{path}, line {line}: expected {counted(len(header), 'cell')} as in the header, found {len(row)}"
            )
    columns = [
        _parse_column([row[place] for row in rows], () if name in texts else (_parse_integer, _parse_decimal))
        for place, name in enumerate(header)
    ]
    return TableRows([dict(zip(header, row, strict=True)) for row in zip(*columns, strict=True)], lines)


def _describe_other_bytes(path: Path) -> str:
    """Say where a file is not UTF-8. The line read last does not, since the file is decoded in large pieces."""
    data = path.read_bytes()
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = len((data[: error.start] + b".").splitlines())
        return f"{path}, line {line}: expected CSV in UTF-8, found the byte 0x{data[error.start]:02x}: save it as UTF-8"
    return f"{path}: expected a file that does not change, found one that changed while it was read"


def _refuse_other_marks(path: Path, header: list[str]) -> None:
    mark = next((mark for mark in _OTHER_MARKS if mark in header[0]), None) if len(header) == 1 else None
    if mark is not None:
        raise UsageError(
            f"{path}: expected commas between the cells, found {mark!r}: "
            "save it with commas, or as JSON lines or Parquet"
        )


def _parse_column(cells: list[str], parsers: Sequence[Callable[[str], Any]]) -> list[Any]:
    """Parse the cells with the first parser that accepts all of them; if none does, they stay texts."""
    for parse in parsers:
        try:
            return [parse(cell) if cell else None for cell in cells]
        except ValueError:
            continue
    return [cell or None for cell in cells]


def _parse_integer(cell: str) -> int:
    """An integer in its usual spelling; with leading zeros it is a text, since 007 is a name."""
    if str(int(cell)) != cell:
        raise ValueError(cell)
    return int(cell)


def _parse_decimal(cell: str) -> float:
    """A number in its usual spelling, for the same reason; Python's ``float`` also accepts 1_0, 007 and nan."""
    if not _DECIMAL.match(cell):
        raise ValueError(cell)
    return float(cell)


def read_jsonl(path: Path, _texts: Collection[str] = ()) -> TableRows:
    """Rows of a JSON lines file: one object per line."""
    rows, lines = [], []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as error:
                raise UsageError(f"{path}, line {number}: expected a JSON object, {error}") from error
            if not isinstance(row, dict):
                raise UsageError(f"{path}, line {number}: expected a JSON object, found {type(row).__name__}")
            rows.append(row)
            lines.append(number)
    return TableRows(rows, lines)


def read_parquet(path: Path, _texts: Collection[str] = ()) -> TableRows:
    """Rows of a Parquet file."""
    return TableRows(open_parquet(path).to_pylist(), [])


def open_parquet(path: Path) -> Any:
    """A Parquet file as pyarrow's table."""
    read = import_target("pyarrow.parquet:read_table", what=f"table {path.name}", extra="parquet")
    try:
        return read(path)
    except (OSError, ValueError) as error:  # pyarrow's errors are subclasses of both
        raise UsageError(f"{path}: expected a Parquet file, {error}") from error


_READERS: Mapping[str, Callable[[Path, Collection[str]], TableRows]] = {
    ".csv": read_csv,
    ".tsv": partial(read_csv, mark="\t"),
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".parquet": read_parquet,
}
TABLE_SUFFIXES = frozenset(_READERS)


def read_table(path: Path, texts: Collection[str] = ()) -> Any:
    """The columns of a table file, for `shardspec.frames`: rows of CSV, TSV or JSON lines; pyarrow's table of Parquet.

    Parameters
    ----------
    texts : collection of str
        Columns of a CSV file that stay text, whatever their cells look like.

    Raises
    ------
    UsageError
        If there is no such file, or it is none of these.
    """
    suffix = path.suffix.lower()
    if suffix not in _READERS:
        raise UsageError(f"{path}: expected a table ({', '.join(sorted(_READERS))}), found {suffix or 'no suffix'}")
    try:
        if suffix == ".parquet":
            return open_parquet(path)
        return _READERS[suffix](path, texts).rows
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
