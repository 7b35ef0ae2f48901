"""Rows as columns, some rows at a time."""

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
    """Some rows, one after another, as columns.

    Attributes
    ----------
    first : int
        The number of the first row.
    columns : dict of str to list
        A column that is not here has no value in these rows.
    """

    first: int
    rows: int
    columns: Mapping[str, Sequence[Any]]

    def column(self, name: str, missing: Any = None) -> Sequence[Any]:
        """The values of a column; `missing` in every row if it has none here."""
        return self.columns[name] if name in self.columns else [missing] * self.rows

    def to_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows, each with its values by column."""
        names = tuple(self.columns)
        rows = zip(*self.columns.values(), strict=True) if names else ((),) * self.rows
        return (dict(zip(names, row, strict=True)) for row in rows)

    def select(self, names: Collection[str] | None) -> "Chunk":
        """The same rows with these columns alone; None stands for all."""
        if names is None:
            return self
        return self._replace(columns={name: values for name, values in self.columns.items() if name in names})


@contextmanager
def reading_parquet(path: Path) -> Iterator[None]:
    """Report what pyarrow says of a damaged file. An error of the system, which has a number, is the caller's.

    Raises
    ------
    UsageError
        If the file is no Parquet file, or damaged.
    """
    try:
        yield
    except UsageError:
        raise
    except ARROW_ERRORS as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UsageError(f"{path}: expected a Parquet file, {cut(str(error), LONG)}") from error


def chunks_of(rows: Iterable[Mapping[str, Any]]) -> Iterator[Chunk]:
    """Rows as columns, some at a time."""
    first, waiting = 0, iter(rows)
    while some := list(islice(waiting, CHUNK_ROWS)):
        names = dict.fromkeys(name for row in some for name in row)
        yield Chunk(first, len(some), {name: [row.get(name) for row in some] for name in names})
        first += len(some)


def chunk_of_batch(batch: Any, first: int, path: Path) -> Chunk:
    """The rows of a record batch of pyarrow, which a file at `path` has from row `first` on.

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
                f"{path}: column {shorten(name)}, {describe_row(first + error.row)}: {error.reason}: correct the value, "
                f"or leave the column out with --drop {shlex.quote(cut(name, LENGTH))}"
            ) from error
    return Chunk(first, batch.num_rows, columns)


def describe_row(row: int) -> str:
    """The name, in messages, of a row that lies in no line of a file."""
    return f"row {row} (counted from 0)"
