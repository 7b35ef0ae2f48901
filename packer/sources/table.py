"""A table of paths: CSV, TSV, JSON lines or Parquet."""

import csv
import json
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from packer.sources.base import Listing, Roots
from packer.sources.rows import RowsSource
from packer.sources.values import keep_cells, parse_cells
from shardspec.errors import UsageError
from shardspec.registry import import_target
from shardspec.schema import NO_CLASS
from shardspec.wording import counted, cut, list_some, shorten


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
        table = READERS[self.path.suffix.lower()](self.path, {path_column, *self._types})
        if not table.rows:
            raise UsageError(f"{self.path}: expected a row for each picture or video, found no rows")
        if all(path_column not in row for row in table.rows):
            names = list(table.rows[0])
            like = next((name for name in names if name.strip().lower() == path_column.lower()), None)
            raise UsageError(
                f"{self.path}: expected a column {path_column!r} of paths, found {list_some(names)}: "
                f"name it with --path-column{'' if like is None else f' {shlex.quote(like)}'}"
            )
        listing = RowsSource(table.rows, self._roots, table.lines, self._types).list_items(label_from, path_column)
        return listing if self.path.suffix.lower() != ".parquet" else _with_class_labels(listing, self.path, label_from)


class TableRows(NamedTuple):
    """The rows of a table, and the line of the file in which each begins, counted from 1; no lines for Parquet."""

    rows: list[dict[str, Any]]
    lines: list[int]


_MARKS: Mapping[str, str] = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
"""What stands between the cells of tables, by one name or another."""


def read_csv(path: Path, texts: Collection[str] = ()) -> TableRows:
    """Rows of a CSV or TSV file with a header.

    The cells are separated by commas, in a ``.tsv`` file by tabs. If the header has none of them, but semicolons, tabs,
    vertical bars or commas, these separate the cells.

    A column becomes integers or floats if all its cells are such numbers, unless it is in `texts`; those columns stay
    text. An empty cell is missing.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows, lines = [], []
        reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
        try:
            header = next(filter(None, reader), [])
            if len(header) == 1 and (mark := _other_mark(path, header[0])) is not None:
                file.seek(0)
                reader = csv.reader(file, delimiter=mark, strict=True)
                header = next(filter(None, reader), [])
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
            f"{path}: expected every column once, found {list_some(list(map(shorten, doubled)))} more than once: "
            "rename one"
        )
    for line, row in zip(lines, rows, strict=True):
        if len(row) != len(header):
            raise UsageError(
                f"{path}, line {line}: expected {counted(len(header), 'cell')} as in the header, found {len(row)}"
            )
    columns = [
        (keep_cells if name in texts else parse_cells)([row[place] for row in rows])
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


def _other_mark(path: Path, header: str) -> str | None:
    """What separates the cells of a header that is one cell otherwise; None if it has one column."""
    found = [mark for mark in _MARKS if mark in header]
    if len(found) > 1:
        named = " and ".join(_MARKS[mark] for mark in found)
        raise UsageError(
            f"{path}: expected commas between the cells, found {named} in the header: "
            "save it with commas, or as JSON lines or Parquet"
        )
    return found[0] if found else None


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
        raise UsageError(f"{path}: expected a Parquet file, {cut(str(error), 300)}") from error


def _with_class_labels(listing: Listing, path: Path, label_from: str) -> Listing:
    """The listing with the names that Hugging Face's ``ClassLabel`` has for the numbers of the label's column."""
    columns = [name for name, field in listing.fields.items() if label_from in (name, "auto") and field == "label"]
    columns = columns if label_from in ("auto", "none") else [label_from]
    labels = [item.columns.get("label") for item in listing.items if item.reject is None]
    if not columns or label_from == "none" or "label" in listing.classes or not labels:
        return listing
    read_schema = import_target("pyarrow.parquet:read_schema", what=f"table {path.name}", extra="parquet")
    try:
        metadata = (read_schema(path).metadata or {}).get(b"huggingface", b"{}")
        names = json.loads(metadata)["info"]["features"][columns[0]]["names"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return listing
    good = isinstance(names, list) and all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    if not good or not all(type(label) is int and NO_CLASS <= label < len(names) for label in labels):
        return listing
    return replace(listing, classes={**listing.classes, "label": names})


READERS: Mapping[str, Callable[[Path, Collection[str]], TableRows]] = {
    ".csv": read_csv,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".parquet": read_parquet,
    ".tsv": read_csv,
}
"""Readers of tables by suffix. The second argument names columns that stay text."""
TABLE_SUFFIXES = frozenset(READERS)


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
    if suffix not in READERS:
        raise UsageError(f"{path}: expected a table ({', '.join(sorted(READERS))}), found {suffix or 'no suffix'}")
    try:
        if suffix == ".parquet":
            return open_parquet(path)
        return READERS[suffix](path, texts).rows
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
