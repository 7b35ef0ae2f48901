"""The source for a table of paths."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from packer.sources.base import Listing, Roots
from packer.sources.column_types import DROP
from packer.sources.rows import RowsSource
from packer.sources.tables.base import Table
from packer.sources.tables.chunks import Chunk
from packer.sources.tables.opening import open_table
from packer.vision.media import medium_of
from shardspec.errors import UsageError
from shardspec.schema import NO_CLASS
from shardspec.wording import quote_some, shorten


class TableSource(RowsSource):
    """The rows of a table file.

    Parameters
    ----------
    roots : Roots, optional
        The folders to which the paths are relative; by default the table's folder.
    types : dict of str to str
        Columns that become text, int or float regardless of their values.
    frame_rate : float, optional
        Frame rate of folders of frames; without it, a path to a folder is a reject.
    unquoted : bool
        Whether quotation marks in a CSV or TSV file are plain characters.
    """

    def __init__(
        self,
        path: Path,
        roots: Roots | None = None,
        types: Mapping[str, str] | None = None,
        frame_rate: float | None = None,
        unquoted: bool = False,
    ) -> None:
        super().__init__((), roots or Roots.of(path.parent), types, frame_rate)
        self.path = path
        self._unquoted = unquoted

    def list_items(self, label_from: str, path_column: str) -> Listing:
        """List the items, in the order of the rows. The file is read at least twice."""
        table = open_table(self.path, self._unquoted)
        unread = {name for name, kind in self._types.items() if kind == DROP and name != path_column}

        def chunks() -> Iterator[Chunk]:
            rows = 0
            for chunk in table.chunks(unread=unread):
                rows += chunk.rows
                yield chunk
            self._check(rows, table, path_column)

        listing = self._list(chunks, label_from, path_column, table.where, table.is_text)
        listing = replace(listing, notes=(*listing.notes, *table.notes.values()))
        return _with_class_labels(listing, table, label_from)

    def _check(self, rows: int, table: Table, path_column: str) -> None:
        names = list(table.names)
        if not rows:
            raise UsageError(place=self.path, expected="a row for each image or video", found="no rows")
        if path_column not in names:
            file = next((name for name in names if medium_of(name) is not None), None)
            if file is not None:  # a hint to use --path-column would lose this row
                raise UsageError(
                    place=self.path,
                    expected="the names of the columns in the first line",
                    found=f"a row with the file {shorten(file)}",
                    hint="put a line such as path,label before it",
                )
            like = next((name for name in names if name.strip().lower() == path_column.lower()), None)
            raise UsageError(
                place=self.path,
                expected=f"a column {shorten(path_column)} of paths",
                found=quote_some(names) or "none",
                hint=f"name it with --path-column{'' if like is None else f' {shlex.quote(like)}'}{''.join(f'; {note}' for note in table.notes.values())}",
            )


def _with_class_labels(listing: Listing, table: Table, label_from: str) -> Listing:
    """Add the class names that the table's metadata has for the numbers in the label's column."""
    columns = [name for name, field in listing.fields.items() if label_from in (name, "auto") and field == "label"]
    columns = columns if label_from in ("auto", "none") else [label_from]
    if not columns or label_from == "none" or "label" in listing.classes:
        return listing
    names = table.classes.get(columns[0])
    if names is None:
        return listing
    labels = {item.columns.get("label") for item in listing.items if item.reject is None}
    if not labels or not all(type(label) is int and NO_CLASS <= label < len(names) for label in labels):
        return listing
    return replace(listing, classes={**listing.classes, "label": list(names)})
