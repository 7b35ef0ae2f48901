"""A table of paths: CSV, TSV, JSON lines or Parquet."""

import csv
import json
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TextIO

import numpy as np

from packer.sources.base import Listing, Roots
from packer.sources.chunks import CHUNK_ROWS, Chunk, chunks_of
from packer.sources.rows import Lines, list_rows, where_in
from packer.sources.values import keep_cells, parse_cells, parse_numbers, without_doubles
from packer.workspace.spool import PackedTexts
from shardspec.errors import UsageError, system_reason
from shardspec.frames import Cells
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
        """The items, in the order of the rows. The file is read twice, and again for columns that are not simple."""
        table = OPENED[self.path.suffix.lower()](self.path)
        names, rows, has_path = dict[str, None](), 0, False

        def chunks() -> Iterator[Chunk]:
            nonlocal rows, has_path
            first_pass = not rows
            for chunk in table.chunks():
                names.update(dict.fromkeys(chunk.columns if not rows else ()))
                rows += chunk.rows * first_pass
                has_path = has_path or path_column in chunk.columns
                yield chunk
            if first_pass:
                self._check(rows, has_path, list(names), path_column)

        listing = list_rows(
            chunks, self._roots, label_from, path_column, self._types, table.where, lambda _: table.is_text
        )
        return listing if self.path.suffix.lower() != ".parquet" else _with_class_labels(listing, self.path, label_from)

    def _check(self, rows: int, has_path: bool, names: Sequence[str], path_column: str) -> None:
        if not rows:
            raise UsageError(f"{self.path}: expected a row for each picture or video, found no rows")
        if not has_path:
            like = next((name for name in names if name.strip().lower() == path_column.lower()), None)
            raise UsageError(
                f"{self.path}: expected a column {shorten(path_column)} of paths, found {list_some(names)}: "
                f"name it with --path-column{'' if like is None else f' {shlex.quote(like)}'}"
            )


class Table(Protocol):
    """A table file, read some rows at a time, as often as needed.

    Attributes
    ----------
    is_text : bool
        Whether its values are the texts of cells.
    """

    is_text: bool

    def __init__(self, path: Path) -> None: ...

    def chunks(self) -> Iterator[Chunk]:
        """Begin to read the rows.

        Raises
        ------
        UsageError
            If the file is no such table.
        """
        ...

    def where(self, row: int) -> str:
        """The name of a row that was read, in messages."""
        ...


class TableRows(NamedTuple):
    """The rows of a table, and the line of the file in which each begins, counted from 1; no lines for Parquet."""

    rows: list[dict[str, Any]]
    lines: list[int]


_MARKS: Mapping[str, str] = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
"""What stands between the cells of tables, by one name or another."""


class _FileTable:
    """A file that is read more than once, and must be the same every time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stat: tuple[int, int] | None = None

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Read the file to its end."""
        before = self._stat
        self._stat = self._examine()
        yield
        if self._examine() != self._stat or before not in (None, self._stat):
            raise UsageError(
                f"{self._path}: expected a file that does not change, found one that changed while it was read"
            )

    def _examine(self) -> tuple[int, int]:
        found = self._path.stat()
        return found.st_size, found.st_mtime_ns


class _LinesTable(_FileTable):
    """A file of lines."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._lines = Lines()
        self.where = self._lines.where
        self.lines = self._lines.all

    @contextmanager
    def _reading(self) -> Iterator[Callable[[int], None]]:
        """Read the file to its end; yields what notes the line of a row."""
        note = self._lines.append if self._stat is None else _ignore
        with self._unchanged():
            yield note


def _ignore(_line: int) -> None:
    """Note nothing: the lines are known already."""


class CsvTable(_LinesTable):
    """A CSV or TSV file with a header (`Table`).

    The cells are separated by commas, in a ``.tsv`` file by tabs. If the header has none of them, but semicolons, tabs,
    vertical bars or commas, these separate the cells.
    """

    is_text = True

    def chunks(self) -> Iterator[Chunk]:
        """See `Table`."""
        with self._path.open(newline="", encoding="utf-8-sig") as file, self._reading() as note:
            header, reader = self._header(file)
            rows, first = self._rows(reader, header, note), 0
            while some := list(islice(rows, CHUNK_ROWS)):
                columns = zip(*some, strict=True)
                yield Chunk(first, len(some), dict(zip(header, columns, strict=True)))
                first += len(some)

    def _header(self, file: TextIO) -> tuple[list[str], Any]:
        """The names of the columns, and the reader of what follows."""
        reader = csv.reader(file, delimiter="\t" if self._path.suffix.lower() == ".tsv" else ",", strict=True)
        with self._parsing(reader):
            header = next(filter(None, reader), [])
        if len(header) == 1 and (mark := _other_mark(self._path, header[0])) is not None:
            file.seek(0)
            reader = csv.reader(file, delimiter=mark, strict=True)
            with self._parsing(reader):
                header = next(filter(None, reader), [])
        doubled = sorted({name for name in header if header.count(name) > 1})
        if doubled:
            raise UsageError(
                f"{self._path}: expected every column once, found {list_some(list(map(shorten, doubled)))} more than "
                "once: rename one"
            )
        return header, reader

    def _rows(self, reader: Any, header: Sequence[str], note: Callable[[int], None]) -> Iterator[list[str]]:
        width, last = len(header), reader.line_num
        with self._parsing(reader):
            for cells in reader:
                if cells:
                    if len(cells) != width:
                        raise UsageError(
                            f"{self._path}, line {last + 1}: expected {counted(width, 'cell')} as in the header, "
                            f"found {len(cells)}"
                        )
                    note(last + 1)
                    yield cells
                last = reader.line_num

    @contextmanager
    def _parsing(self, reader: Any) -> Iterator[None]:
        try:
            yield
        except UnicodeDecodeError as error:
            raise UsageError(_describe_other_bytes(self._path)) from error
        except csv.Error as error:
            raise UsageError(f"{self._path}, line {reader.line_num}: expected CSV, {error}") from error


class JsonLinesTable(_LinesTable):
    """A JSON lines file: one object per line (`Table`)."""

    is_text = False

    def chunks(self) -> Iterator[Chunk]:
        """See `Table`."""
        yield from chunks_of(self.rows())

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows, one after another."""
        with self._path.open("rb") as file, self._reading() as note:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                    row = json.loads(text, object_pairs_hook=without_doubles)
                except (ValueError, RecursionError) as error:
                    raise UsageError(f"{self._path}, line {number}: expected a JSON object, {error}") from error
                if not isinstance(row, dict):
                    found = type(row).__name__
                    raise UsageError(f"{self._path}, line {number}: expected a JSON object, found {found}")
                note(number)
                yield row


class ParquetTable(_FileTable):
    """A Parquet file (`Table`)."""

    is_text = False

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.where = where_in(())

    def chunks(self) -> Iterator[Chunk]:
        """See `Table`."""
        yield from chunks_of(self._rows())

    def _rows(self) -> Iterator[dict[str, Any]]:
        opened = import_target("pyarrow.parquet:ParquetFile", what=f"table {self._path.name}", extra="parquet")
        with self._unchanged():
            try:
                with opened(self._path) as file:
                    for batch in file.iter_batches(CHUNK_ROWS, use_threads=False):
                        yield from batch.to_pylist()
            except (OSError, ValueError) as error:  # pyarrow's errors are subclasses of both
                raise UsageError(f"{self._path}: expected a Parquet file, {cut(str(error), 300)}") from error


def read_csv(path: Path, texts: Collection[str] = ()) -> TableRows:
    """Rows of a CSV or TSV file with a header (`CsvTable`).

    A column becomes integers or floats if all its cells are such numbers, unless it is in `texts`; those columns stay
    text. An empty cell is missing.
    """
    table = CsvTable(path)
    columns = {name: _plain(cells, name in texts) for name, cells in _cells_of(table).items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return TableRows(rows, table.lines())


def _plain(cells: PackedTexts, stays_text: bool) -> list[Any]:
    return keep_cells(cells) if stays_text else parse_cells(cells)


def _cells_of(table: CsvTable) -> dict[str, PackedTexts]:
    """The cells of a CSV file by column."""
    cells: dict[str, PackedTexts] = {}
    for chunk in table.chunks():
        for name, values in chunk.columns.items():
            cells.setdefault(name, PackedTexts()).extend(values)
    return cells


def _columns_of(table: CsvTable, texts: Collection[str]) -> dict[str, Any]:
    """The columns of a CSV file, as `read_csv` gives its rows, in a fraction of the memory: numbers as arrays."""
    found: dict[str, Any] = {}
    cells = _cells_of(table)
    for name in [*cells]:
        column = cells.pop(name)
        if name in texts:
            found[name] = Cells(column, np.fromiter((cell != "" for cell in column), np.bool_, len(column)))
        else:
            numbers = parse_numbers(column)
            found[name] = _plain(column, stays_text=False) if numbers is None else numbers
    return found


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
    table = JsonLinesTable(path)
    return TableRows(list(table.rows()), table.lines())


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
    if not columns or label_from == "none" or "label" in listing.classes:
        return listing
    read_schema = import_target("pyarrow.parquet:read_schema", what=f"table {path.name}", extra="parquet")
    try:
        metadata = (read_schema(path).metadata or {}).get(b"huggingface", b"{}")
        names = json.loads(metadata)["info"]["features"][columns[0]]["names"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return listing
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names) and len(set(names)) == len(names)):
        return listing
    labels = {item.columns.get("label") for item in listing.items if item.reject is None}
    if not labels or not all(type(label) is int and NO_CLASS <= label < len(names) for label in labels):
        return listing
    return replace(listing, classes={**listing.classes, "label": names})


OPENED: Mapping[str, type[Table]] = {
    ".csv": CsvTable,
    ".jsonl": JsonLinesTable,
    ".ndjson": JsonLinesTable,
    ".parquet": ParquetTable,
    ".tsv": CsvTable,
}
"""Tables that are read some rows at a time, by suffix."""

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
    """A table file, for `shardspec.frames`: columns of CSV or TSV, rows of JSON lines, pyarrow's table of Parquet.

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
        if OPENED[suffix] is CsvTable:
            return _columns_of(CsvTable(path), texts)
        return READERS[suffix](path, texts).rows
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {system_reason(error)}") from error
