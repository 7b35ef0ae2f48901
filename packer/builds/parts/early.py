"""The shards that are whole before the last task is done."""

import itertools
from collections.abc import Iterator

from packer.assembly.plan import ShardPlan, cut_rows, most_bytes, row_sizes, shard_size
from packer.builds.parts.draft import Draft
from packer.builds.parts.part import Columns
from packer.builds.parts.rows import describe_rows, longer, prefix_bytes
from packer.workspace import Workspace
from shardspec.schema import Schema

_CHANGES = 3
"""When the form of the rows has changed so often, no further shard is found: each time, all shards before are void, and
the cut begins at the first row."""

_ROWS = 1 << 18
"""Rows that are cut at a time, so that a cut that begins again takes little memory."""


class EarlyCut:
    """Finds the shards that are whole while parts are still taken in.

    A shard is whole once the row behind it does not fit into it. Later parts can only change the form of all rows: an
    axis varies from then on, or other columns count.

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

    def look(self, draft: Draft) -> Iterator[ShardPlan]:
        """The shards that are whole now, and were not before, each in a plan of its own, with the rows of its tasks alone."""
        if not draft.columns or any(spec.kind == "class" for spec in draft.columns.values()):
            return  # the numbers of classes are known when all parts are
        rows = _ROWS
        while self._changes < _CHANGES and self._may_be_whole(draft.taken.bytes):
            schema = draft.settler.settle()
            if (schema, draft.columns) != self._form:
                self._begin((schema, draft.columns))
                continue
            stop = min(draft.taken.rows, self._start + rows)
            found = list(self._cut(draft, schema, range(self._start, stop)))
            yield from found
            if not found and stop == draft.taken.rows:
                return
            rows = _ROWS if found else 2 * rows

    def _may_be_whole(self, taken: int) -> bool:
        """Return whether the bytes taken in, without what the codecs add, are more than a shard's."""
        return taken - self._taken_before > most_bytes(self._shard_bytes, self._bytes_before)

    def _begin(self, form: tuple[Schema, Columns] | None) -> None:
        """Begin with the first row."""
        self._form = form
        self._changes += form is not None
        self._start = self._bytes_before = self._taken_before = self._number = self._task = self._task_start = 0

    def _cut(self, draft: Draft, schema: Schema, rows: range) -> Iterator[ShardPlan]:
        """The whole shards of some rows, the last of which may belong to a shard that is not whole."""
        prefixes = {field.name: prefix_bytes(field) for field in schema if not field.is_fixed}
        lengths = {name: longer(draft.taken.lengths(name, rows), more) for name, more in prefixes.items()}
        bytes_of = row_sizes(schema, lengths, len(rows))
        for first, last in itertools.pairwise(cut_rows(bytes_of, self._shard_bytes, self._bytes_before)[:-1]):
            at, stop = slice(first, last), rows.start + last
            size = shard_size(schema, {name: values[at] for name, values in lengths.items()}, last - first)
            while self._task_start + draft.rows[self._task] <= self._start:
                self._task_start += draft.rows[self._task]
                self._task += 1
            tasks, end = self._task, self._task_start
            while end < stop:
                end += draft.rows[tasks]
                tasks += 1
            config = describe_rows(draft.columns, draft.rows[self._task : tasks], schema, self._task)
            cuts = (self._start - self._task_start, stop - self._task_start)
            yield ShardPlan(config, self._format, cuts, (size,), self._workspace, self._number)
            encoded = int(bytes_of[at].sum())
            self._bytes_before += encoded
            self._taken_before += encoded - sum(prefixes.values()) * (last - first)
            self._start, self._number = stop, self._number + 1
