"""Rows: a list of Python dicts, or anything with a length that contains dicts; tables use this module too."""

import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packer.sources.base import Examiner, Listing, Roots
from packer.sources.item import Item, spool_items
from packer.sources.row_fields import read_columns
from packer.sources.tables.chunks import Chunk, chunks_of, describe_row
from shardspec.errors import UsageError
from shardspec.typing.columns import Where
from shardspec.wording import LONG, shorten

_PATH_MAX = 4096
"""Characters of a path; a longer text is a file's content or another mistake."""


class RowsSource:
    """Rows with a path, or with an ``image`` array of their own.

    Every column except the path becomes a field. A column with missing values (None, NaN, an absent key) is stored with
    a sentinel (0, 0.0, false, "", an empty list or object) and a field ``<column>_valid``. Mixed integers and floats
    become floats; other mixtures are an error. Lists of numbers become arrays if they differ at most in their lengths;
    a missing one becomes zeros, or false, if all have the same length. Other lists become JSON.

    Parameters
    ----------
    rows : sequence of mapping
    root : Path or Roots
        The folders to which relative paths are relative; files outside them are rejects.
    types : dict of str to str
        Columns that become text, int or float, whatever their values look like.
    frame_rate : float, optional
        That of folders of frames; without it, a path to a folder is a reject.
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        root: Path | Roots,
        types: Mapping[str, str] | None = None,
        frame_rate: float | None = None,
    ) -> None:
        self.rows = rows
        self.roots = root if isinstance(root, Roots) else Roots.of(root)
        self._types = types or {}
        self._frame_rate = frame_rate

    def list_items(self, label_from: str, path_column: str) -> Listing:
        """The items, in the order of the rows."""
        return list_rows(
            self._chunks,
            self.roots,
            label_from,
            path_column,
            self._types,
            describe_row,
            frame_rate=self._frame_rate,
        )

    def _chunks(self) -> Iterator[Chunk]:
        return chunks_of(_checked(self.rows))


def list_rows(
    chunks: Callable[[], Iterable[Chunk]],
    roots: Roots,
    label_from: str,
    path_column: str,
    types: Mapping[str, str],
    where: Where,
    cells: Callable[[str], bool] = lambda _: False,
    frame_rate: float | None = None,
) -> Listing:
    """The items of rows with paths.

    The parameters are those of `packer.sources.row_fields.read_columns`, and the `frame_rate` of folders of frames.
    """
    columns = read_columns(chunks, label_from, types, where, cells=cells, leave=path_column)
    items, outside, example = spool_items(), array("q"), ""
    examiner = Examiner(roots, frame_rate)
    for chunk in chunks():
        paths = chunk.column(path_column)
        if cells(path_column):
            paths = [path or None for path in paths]
        for index, path, (fields, reject) in zip(
            range(chunk.first, chunk.first + chunk.rows), paths, columns.rows([chunk]), strict=True
        ):
            item = _item(index, path, fields, examiner, path_column, where, reject)
            if item.reject is not None and item.path is not None and roots.leads_out(path):
                outside.append(index)
                example = example or f"{where(index)}: {shorten(str(path), LONG)}"
            items.append(item)
    return Listing(
        items,
        classes=columns.classes,
        roots=roots,
        fields=columns.fields,
        further=columns.further,
        arrays=columns.arrays,
        outside=outside,
        outside_example=example,
        notes=(*columns.notes, *examiner.notes()),
    )


def _item(
    index: int,
    path: Any,
    columns: Mapping[str, Any],
    examiner: Examiner,
    path_column: str,
    where: Where,
    reject: str | None,
) -> Item:
    """The item of a row. What is wrong with its path counts before a `reject`."""
    if isinstance(path, str | Path) and 0 < len(str(path)) <= _PATH_MAX:
        return examiner.describe(index, str(path), columns, reject)
    if columns.get("image") is None:
        found = "none" if path is None else shorten(path)
        reject = f"{where(index)}: expected a path in column {path_column!r}, found {found}"
    return Item(index, f"row-{index:08d}", None, columns=columns, reject=reject)


def digest_value(value: Any) -> Any:
    """A column's value as JSON for the plan's fingerprint: arrays and bytes are represented by their SHA-256."""
    if isinstance(value, np.ndarray):
        content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return {"dtype": value.dtype.str, "shape": list(value.shape), "sha256": content}
    if isinstance(value, bytes):
        return {"sha256": hashlib.sha256(value).hexdigest()}
    json.dumps(value)
    return value


def _checked(rows: Sequence[Any]) -> Iterator[Mapping[str, Any]]:
    """Rows that are mappings: in a list of paths, a likely mistake, characters would pass for columns."""
    for number in range(len(rows)):
        row = rows[number]
        if not isinstance(row, Mapping):
            kind = type(row).__name__
            found = f"{kind} in row {number} (counted from 0)" if number else f"a {type(rows).__name__} of {kind}"
            raise UsageError(
                f"source: expected rows (mappings of column to value), found {found}: give the folder, "
                "or rows with a path"
            )
        yield row
