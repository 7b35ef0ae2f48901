"""Chunks of rows, stored column by column."""

import json
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from shardspec.errors import UsageError
from shardspec.typing.dates import ARROW_ERRORS, RowError, plain_arrow
from shardspec.wording import LENGTH, LONG, cut, shorten

CHUNK_ROWS = 2048


class Chunk(NamedTuple):
    """Consecutive rows, stored column by column.

    Attributes
    ----------
    first : int
        The number of the first row.
    columns : dict of str to list
        Values by column. A missing column has no values in these rows.
    """

    first: int
    rows: int
    columns: Mapping[str, Sequence[Any]]

    def column(self, name: str, missing: Any = None) -> Sequence[Any]:
        """Return the values of a column, or `missing` for every row if the chunk does not have the column."""
        return self.columns[name] if name in self.columns else [missing] * self.rows

    def to_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows, each with its values by column."""
        names = tuple(self.columns)
        rows = zip(*self.columns.values(), strict=True) if names else ((),) * self.rows
        return (dict(zip(names, row, strict=True)) for row in rows)

    def select(self, names: Collection[str] | None) -> "Chunk":
        """Return the same rows with only some columns; None means all columns."""
        if names is None:
            return self
        return self._replace(columns={name: values for name, values in self.columns.items() if name in names})


@contextmanager
def reading_parquet(path: Path) -> Iterator[None]:
    """Turn the errors of a damaged file into `UsageError`. System errors, which have an errno, are passed on.

    Raises
    ------
    UsageError
        If the file is damaged or not a Parquet file.
    """
    try:
        yield
    except UsageError:
        raise
    except ARROW_ERRORS as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UsageError(f"expected a Parquet file, {cut(str(error), LONG)}", place=path) from error


def chunks_of(rows: Iterable[Mapping[str, Any]]) -> Iterator[Chunk]:
    """Yield rows as columns, in chunks."""
    first, waiting = 0, iter(rows)
    while some := list(islice(waiting, CHUNK_ROWS)):
        names = dict.fromkeys(name for row in some for name in row)
        yield Chunk(first, len(some), {name: [row.get(name) for row in some] for name in names})
        first += len(some)


def chunk_of_batch(batch: Any, first: int, path: Path) -> Chunk:
    """Convert a record batch of pyarrow to a chunk. `first` is the number of its first row.

    Raises
    ------
    UsageError
        If a value cannot be read.
    """
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            columns[name] = plain_arrow(column)
        except RowError as error:
            raise UsageError(
                (
                    f"column {shorten(name)}, {describe_row(first + error.row)}: {error.reason}: correct the "
                    f"value, or leave the column out with --drop {shlex.quote(cut(name, LENGTH))}"
                ),
                place=path,
            ) from error
    return Chunk(first, batch.num_rows, columns)


def describe_row(row: int) -> str:
    """Return the name in messages of a row that has no line number."""
    return f"row {row} (counted from 0)"


def class_labels(metadata: Mapping[bytes, bytes] | None) -> dict[str, list[str]]:
    """Return the class names of the columns that Hugging Face's ``datasets`` marks in the metadata of a schema.

    Malformed entries are ignored.
    """
    try:
        features = json.loads((metadata or {}).get(b"huggingface", b"{}"))["info"]["features"].items()
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
    return {
        column: feature["names"]
        for column, feature in features
        if isinstance(feature, dict)
        and feature.get("_type", "ClassLabel") == "ClassLabel"
        and _are_classes(feature.get("names"))
    }


def _are_classes(names: Any) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
