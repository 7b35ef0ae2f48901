"""Find the shards that are complete before the last task is done."""

import itertools
from collections.abc import Iterator

from packer.assembly.plan import ShardPlan, cut_rows, most_bytes, row_sizes, shard_size
from packer.builds.parts.part import Columns
from packer.builds.parts.rows import describe_rows, longer, prefix_bytes
from packer.builds.parts.summary import PartsSummary
from packer.workspace import Workspace
from shardspec.schema import Schema

_CHANGES = 3
"""Stop after this many changes of schema or columns. Each change makes all earlier shards void and restarts the cut."""

_ROWS = 1 << 18
"""Rows cut at a time, so that a restarted cut needs little memory."""


class ShardCutter:
    """Finds complete shards while parts are still being made.

    A shard is complete once the next row does not fit into it. Later parts can only change the schema or the columns of all
    rows: an axis varies from then on, or other columns count.

    Parameters
    ----------
    workspace : Workspace
    format : str
    shard_bytes : int or None
        See `packer.assembly.plan.Piece`.
    """

    def __init__(self, workspace: Workspace, format: str, shard_bytes: int | None) -> None:
        self._workspace = workspace
        self._format = format
        self._shard_bytes = shard_bytes
        self._form: tuple[Schema, Columns] | None = None
        self._changes = -1
        self._begin(None)

    def find(self, summary: PartsSummary) -> Iterator[ShardPlan]:
        """Yield the shards that have become complete, each as a separate plan with the rows of its own tasks only."""
        if not summary.columns or any(spec.kind == "class" for spec in summary.columns.values()):
            return  # the numbers of classes are known when all parts are
        rows = _ROWS
        while self._changes < _CHANGES and self._may_be_complete(summary.table.bytes):
            schema = summary.settler.settle()
            if (schema, summary.columns) != self._form:
                self._begin((schema, summary.columns))
                continue
            stop = min(summary.table.rows, self._start + rows)
            found = list(self._cut(summary, schema, range(self._start, stop)))
            yield from found
            if not found and stop == summary.table.rows:
                return
            rows = _ROWS if found else 2 * rows

    def _may_be_complete(self, table_bytes: int) -> bool:
        """Return whether the bytes of the rows, without what the codecs add, exceed a shard."""
        return table_bytes - self._table_before > most_bytes(self._shard_bytes, self._bytes_before)

    def _begin(self, form: tuple[Schema, Columns] | None) -> None:
        """Start at the first row."""
        self._form = form
        self._changes += form is not None
        self._start = self._bytes_before = self._table_before = self._number = self._task = self._task_start = 0

    def _cut(self, summary: PartsSummary, schema: Schema, rows: range) -> Iterator[ShardPlan]:
        """Yield the complete shards of some rows. The last rows may belong to an incomplete shard."""
        prefixes = {field.name: prefix_bytes(field) for field in schema if not field.is_fixed}
        lengths = {name: longer(summary.table.lengths(name, rows), more) for name, more in prefixes.items()}
        bytes_of = row_sizes(schema, lengths, len(rows))
        for first, last in itertools.pairwise(cut_rows(bytes_of, self._shard_bytes, self._bytes_before)[:-1]):
            at, stop = slice(first, last), rows.start + last
            size = shard_size(schema, {name: values[at] for name, values in lengths.items()}, last - first)
            while self._task_start + summary.rows[self._task] <= self._start:
                self._task_start += summary.rows[self._task]
                self._task += 1
            tasks, end = self._task, self._task_start
            while end < stop:
                end += summary.rows[tasks]
                tasks += 1
            config = describe_rows(summary.columns, summary.rows[self._task : tasks], schema, self._task)
            cuts = (self._start - self._task_start, stop - self._task_start)
            yield ShardPlan(config, self._format, cuts, (size,), self._workspace, self._number)
            encoded = int(bytes_of[at].sum())
            self._bytes_before += encoded
            self._table_before += encoded - sum(prefixes.values()) * (last - first)
            self._start, self._number = stop, self._number + 1
