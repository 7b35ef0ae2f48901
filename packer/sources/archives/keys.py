"""Read a list of item keys of an archive, with labels or further columns, from JSON, lines of text, or a table."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packer.sources.archives.member import MEMBER_MARK
from packer.sources.item import Item
from packer.sources.json_values import parse_json
from packer.sources.tables.base import TABLES, is_table, open_table
from shardspec.errors import UsageError, system_reason
from shardspec.typing.frames import ColumnValues, read_cells
from shardspec.wording import counted, quote_some, shorten

_KEY_COLUMNS = ("key", "path")
_TEXT_SUFFIXES = (".txt", ".lst", ".list")
_INTEGER = re.compile(r"(0|-?[1-9][0-9]{0,17})\Z")


@dataclass(frozen=True)
class KeyTable:
    """Keys and the columns that each one adds to its item.

    Attributes
    ----------
    path : Path
        Path of the file, for messages.
    rows : dict of str to dict
        The columns by key.
    """

    path: Path
    rows: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, path: Path, texts: Collection[str] = ()) -> "KeyTable":
        """Read a file by its suffix: ``.json``, ``.txt``, or a table.

        Parameters
        ----------
        texts : collection of str
            Columns whose cells stay texts.

        Raises
        ------
        UsageError
            If the file cannot be read, or contains a key twice.
        """
        suffix = path.suffix.lower()
        try:
            if suffix == ".json":
                pairs = _read_json(path)
            elif suffix in _TEXT_SUFFIXES:
                pairs = _read_lines(path)
            elif is_table(path):
                pairs = _read_table(path, texts)
            else:
                known = ", ".join(sorted([".json", *_TEXT_SUFFIXES, *TABLES]))
                raise UsageError(option="keys", expected=f"a file {known}", found=path)
        except OSError as error:
            raise UsageError(system_reason(error), option="keys", place=f"{path} cannot be read") from error
        rows: dict[str, Mapping[str, Any]] = {}
        for given, columns in pairs:
            key = given.replace("\\", "/")
            if key in rows:
                raise UsageError(place=path, expected="every key once", found=f"{shorten(key)} twice")
            rows[key] = columns
        if not rows:
            raise UsageError(place=path, expected="keys", found="none")
        return cls(path, rows)

    def join(self, items: Iterable[Item], notes: list[str]) -> Iterator[Item | None]:
        """Yield the items named by the keys, with their columns, and None for every other item.

        A key is the name of an item in the archive, with or without its suffix, and may begin with the name of the
        archive. Rejects of the source are kept. A key without an item becomes a reject. A note about keys that name
        several items is added to `notes`.
        """
        used: set[str] = set()
        again: dict[str, str] = {}
        example = None
        for item in items:
            archive, mark, name = item.name.partition(MEMBER_MARK)
            example = example or name
            names = (item.name, f"{archive}{mark}{_stem(name)}", name, _stem(name))
            key = next((key for key in names if key in self.rows), None)
            if key in used:
                again.setdefault(key, item.name)
            if key is not None and item.reject is None:
                yield item._replace(columns={**item.columns, **self.rows[key]})
            else:
                yield None if item.reject is None else item
            used.update([] if key is None else [key])
        for key in self.rows:
            if key not in used:
                others = f"others, such as {shorten(example)}" if example and not used else "none"
                reason = f"expected this key of {self.path.name} in the source, found {others}"
                yield Item(-1, key, None, reject=reason)
        if again:
            key, name = next(iter(again.items()))
            notes.append(
                f"{counted(len(again), 'key')} of {self.path.name} with several items, such as {shorten(key)} "
                f"({shorten(name)} as well): to choose one of them, write the archive's name first ({shorten(name)})"
            )


def _stem(name: str) -> str:
    """Remove everything after the first dot of the last part of a name."""
    folder, slash, base = name.rpartition("/")
    return folder + slash + base.partition(".")[0]


def _read_json(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    try:
        document = parse_json(path.read_bytes())
    except ValueError as error:
        raise UsageError(str(error), place=path) from error
    if isinstance(document, dict):
        return [(key, value if isinstance(value, dict) else {"label": value}) for key, value in document.items()]
    if not isinstance(document, list):
        raise UsageError(place=path, expected="an object or a list of keys", found=type(document).__name__)
    pairs: list[tuple[str, Mapping[str, Any]]] = []
    for entry in document:
        if isinstance(entry, str):
            pairs.append((entry, {}))
        elif isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str):
            pairs.append((entry[0], {"label": entry[1]}))
        elif isinstance(entry, dict):
            pairs.append(_split_row(path, entry))
        else:
            raise UsageError(place=path, expected="keys, or pairs of key and label", found=shorten(entry))
    return pairs


def _read_lines(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    try:
        lines = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise UsageError(place=path, expected="text in UTF-8", found="other bytes", hint="save it as UTF-8") from error
    mark = "\t" if any("\t" in line for line in lines) else None
    cells = [line.rsplit(mark, 1) for line in lines if line]
    widths = {len(row) for row in cells}
    if widths <= {1}:
        return [(key, {}) for (key,) in cells]
    if widths != {2}:
        raise UsageError(place=path, expected="a key in every line, or a key and a label in every line", found="both")
    numbers = all(_INTEGER.match(label) for _, label in cells)
    return [(key.strip(), {"label": int(label) if numbers else label}) for key, label in cells]


def _read_table(path: Path, texts: Collection[str]) -> list[tuple[str, Mapping[str, Any]]]:
    cells = read_cells(open_table(path).frame({*_KEY_COLUMNS, *texts}), str(path))
    columns = {name: _plain(column) for name, column in cells.items()}
    rows = zip(*columns.values(), strict=True)
    return [_split_row(path, dict(zip(columns, row, strict=True))) for row in rows]


def _plain(cells: ColumnValues) -> list[Any]:
    """Return the values of a column as plain Python values, None where one is missing."""
    values = (value.tolist() if isinstance(value, np.generic | np.ndarray) else value for value in cells.values)
    return [value if ok else None for value, ok in zip(values, cells.valid.tolist(), strict=True)]


def _split_row(path: Path, row: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    column = next((name for name in _KEY_COLUMNS if name in row), None)
    if column is None:
        raise UsageError(place=path, expected="a column 'key'", found=quote_some(row))
    key = row[column]
    if not isinstance(key, str | int) or isinstance(key, bool):
        raise UsageError(place=path, expected=f"keys as text in column {shorten(column)}", found=shorten(key))
    return str(key), {name: value for name, value in row.items() if name != column}
