"""Tables in Parquet files."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from packer.sources.tables.base import Passes, refuse_doubled
from packer.sources.tables.chunks import CHUNK_ROWS, Chunk, chunk_of_batch, class_labels, describe_row, reading_parquet


class ParquetTable:
    """A Parquet file (`packer.sources.tables.base.Table`)."""

    is_text = False
    notes: Mapping[str, str] = {}

    def __init__(self, path: Path) -> None:
        self.names: Sequence[str] = ()
        self.classes: Mapping[str, Sequence[str]] = {}
        self._path = path
        self._passes = Passes(path)

    def chunks(self, columns: Collection[str] | None = None, unread: Collection[str] = ()) -> Iterator[Chunk]:
        first = 0
        with self._opened() as file:
            made = [name for name in self.names if name not in unread and (columns is None or name in columns)]
            for batch in file.iter_batches(CHUNK_ROWS, columns=made, use_threads=False):
                # pyarrow selects by a name also all columns whose names start with it and a dot.
                chunk = chunk_of_batch(batch.select(made), first, self._path)
                without = {name: [None] * chunk.rows for name in self.names if name in unread}
                yield chunk._replace(columns={**chunk.columns, **without})
                first += batch.num_rows

    def frame(self, texts: Collection[str] = ()) -> Any:
        """Read the file as a table of pyarrow."""
        with self._opened() as file:
            return file.read()

    def where(self, row: int) -> str:
        return describe_row(row)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        with self._passes.begin(), reading_parquet(self._path), pq.ParquetFile(self._path) as file:
            self.names = file.schema_arrow.names
            self.classes = class_labels(file.schema_arrow.metadata)
            refuse_doubled(self._path, self.names)
            yield file
