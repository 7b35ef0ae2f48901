"""Tables of delimited cells: CSV and TSV."""

import csv
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np

from packer.sources.tables.base import Lines, Passes, refuse_doubled
from packer.sources.tables.chunks import CHUNK_ROWS, Chunk
from packer.workspace.disk_list import PackedTexts
from shardspec.errors import UsageError
from shardspec.typing.cells import BLANKS, CellTyper
from shardspec.typing.frames import ColumnValues
from shardspec.wording import counted, list_some, shorten

_MARKS: Mapping[str, str] = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
"""Delimiters of cells, with their names in messages."""


_QUOTING = (
    'enclose a cell that begins with " in quotation marks, and double each " in it; or, if the table was written '
    "without quoting, use --unquoted"
)
_SEPARATOR = re.compile(r"sep=.?\Z", re.IGNORECASE)
"""First line of a file that tells Excel the delimiter."""


class CsvTable:
    """A CSV file with a header (`packer.sources.tables.base.Table`). Columns without a name are skipped.

    The delimiter is the comma. If the header has no comma, but semicolons, tabs or vertical bars, these are the
    delimiter.

    Parameters
    ----------
    unquoted : bool
        Whether quotation marks are plain characters, for tables that were written without quoting.
    """

    is_text = True
    mark = ","
    classes: Mapping[str, Sequence[str]] = {}

    def __init__(self, path: Path, unquoted: bool = False) -> None:
        self._unquoted = unquoted
        self.names: Sequence[str] = ()
        self.notes: dict[str, str] = {}
        self._path = path
        self._passes = Passes(path)
        self._lines = Lines()

    def chunks(self, columns: Collection[str] | None = None, unread: Collection[str] = ()) -> Iterator[Chunk]:
        with self._passes.begin() as is_first, self._path.open(newline="", encoding="utf-8-sig") as file:
            header, reader = self._header(file)
            self.names, self.notes = list(filter(None, header)), _describe_unnamed(header)
            rows, first = self._rows(reader, len(header), is_first), 0
            while some := list(islice(rows, CHUNK_ROWS)):
                cells = {name: of_name for name, of_name in zip(header, zip(*some, strict=True), strict=True) if name}
                yield Chunk(first, len(some), cells).select(columns)
                first += len(some)

    def frame(self, texts: Collection[str] = ()) -> dict[str, Any]:
        """Read the columns, with numbers as arrays."""
        cells: dict[str, PackedTexts] = defaultdict(PackedTexts)
        typers: dict[str, CellTyper] = defaultdict(CellTyper)
        for chunk in self.chunks():
            for name, values in chunk.columns.items():
                cells[name].extend(values)
                typers[name].scan(values, chunk.first)
        found: dict[str, Any] = {}
        for name in self.names:
            column, typer = cells.pop(name, PackedTexts()), typers[name]
            if name in texts:
                found[name] = ColumnValues(column, np.fromiter((cell != "" for cell in column), np.bool_, len(column)))
                continue
            numbers = typer.to_arrays(column)
            found[name] = typer.parse(column) if numbers is None else ColumnValues(*numbers)
            note = typer.describe_numbers(f"column {shorten(name)} is text", self.where)
            if note is not None:
                remedy = "correct such cells, or empty them with --allow-missing, to make it numbers"
                self.notes[name] = f"{note}: {remedy}"
        return found

    def where(self, row: int) -> str:
        return self._lines.where(row)

    def _header(self, file: TextIO) -> tuple[list[str], Any]:
        """Return the names of the columns, and the reader of the rows."""
        header, reader = self._begin(file, self.mark)
        if _SEPARATOR.match(self.mark.join(header)):
            raise UsageError(
                place=f"{self._path}, line {reader.line_num}",
                expected="the names of the columns",
                found=f"{shorten(self.mark.join(header))}, which is meant for Excel",
                hint="delete this line",
            )
        if len(header) == 1 and (mark := _other_mark(self._path, header[0])) is not None:
            file.seek(0)
            header, reader = self._begin(file, mark)
        header = [name.strip(BLANKS) for name in header]
        refuse_doubled(self._path, list(filter(None, header)))
        return header, reader

    def _begin(self, file: TextIO, mark: str) -> tuple[list[str], Any]:
        quoting: Literal[0, 3] = csv.QUOTE_NONE if self._unquoted else csv.QUOTE_MINIMAL
        reader = csv.reader(file, delimiter=mark, quoting=quoting, strict=True)
        with self._parsing(reader):
            return next(filter(None, reader), []), reader

    def _rows(self, reader: Any, width: int, is_first: bool) -> Iterator[list[str]]:
        last = reader.line_num
        with self._parsing(reader):
            for cells in reader:
                if cells:
                    if len(cells) != width:
                        raise UsageError(
                            place=f"{self._path}, line {last + 1}",
                            expected=f"{counted(width, 'cell')} as in the header",
                            found=len(cells),
                        )
                    if is_first:
                        self._refuse_swallowed(cells, reader, last + 1)
                        self._lines.append(last + 1)
                    yield cells
                last = reader.line_num

    def _refuse_swallowed(self, cells: Sequence[str], reader: Any, line: int) -> None:
        """Refuse a row in a TSV file with a cell that contains whole rows, because it begins with a quotation mark.

        With commas as the delimiter, this cannot be detected, since a text of several lines may contain as many commas.
        """
        mark, full = reader.dialect.delimiter, len(cells) - 1
        if mark != "\t" or not full or reader.line_num <= line:
            return
        for place, cell in enumerate(cells):
            marks = [text.count(mark) for text in cell.split("\n")]
            if len(marks) > 1 and marks == [full - place, *[full] * (len(marks) - 2), place]:
                raise UsageError(
                    place=f"{self._path}, line {line}",
                    expected="a row",
                    found=f"a cell that begins with a quotation mark and holds the rows up to line {reader.line_num}",
                    hint=_QUOTING,
                )

    @contextmanager
    def _parsing(self, reader: Any) -> Iterator[None]:
        try:
            yield
        except UnicodeDecodeError as error:
            raise UsageError(_describe_other_bytes(self._path)) from error
        except csv.Error as error:
            if "field limit" in str(error):
                raise UsageError(
                    place=f"{self._path}, line {reader.line_num}",
                    expected=f"cells of at most {csv.field_size_limit():,} characters",
                    found="a longer one",
                    hint="close its quotation mark if one is missing, or save the table as JSON lines or Parquet",
                ) from error
            remedy = f": {_QUOTING}" if "'\"'" in str(error) or "end of data" in str(error) else ""
            raise UsageError(place=f"{self._path}, line {reader.line_num}", expected=f"CSV, {error}{remedy}") from error


class TsvTable(CsvTable):
    """A file like `CsvTable` whose default delimiter is the tab."""

    mark = "\t"


def _describe_unnamed(header: Sequence[str]) -> dict[str, str]:
    """Describe the columns without a name, such as the index that pandas writes; empty if all columns have names."""
    numbers = [str(number) for number, name in enumerate(header, 1) if not name]
    if not numbers:
        return {}
    if len(numbers) == 1:
        return {"": f"column {numbers[0]} has no name and is skipped: name it in the header to keep it"}
    return {"": f"columns {list_some(numbers)} have no name and are skipped: name them in the header to keep them"}


def _describe_other_bytes(path: Path) -> str:
    """Describe where a file is not UTF-8. The file is searched again, since it is decoded in large pieces."""
    data = path.read_bytes()
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = len((data[: error.start] + b".").splitlines())
        return f"{path}, line {line}: expected CSV in UTF-8, found the byte 0x{data[error.start]:02x}: save it as UTF-8"
    return f"{path}: expected a file that does not change, found one that changed while it was read"


def _other_mark(path: Path, header: str) -> str | None:
    """Return the likely delimiter of a header that parses as a single cell, or None if the table has one column."""
    found = [mark for mark in _MARKS if mark in header]
    if len(found) > 1:
        named = " and ".join(_MARKS[mark] for mark in found)
        raise UsageError(
            place=path,
            expected="commas between the cells",
            found=f"{named} in the header",
            hint="save it with commas, or as JSON lines or Parquet",
        )
    return found[0] if found else None
