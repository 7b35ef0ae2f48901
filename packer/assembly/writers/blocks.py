"""Rows cut into blocks of one length, however they were batched."""

from itertools import chain
from typing import Any

import numpy as np

from shardspec.columns import Columns
from shardspec.schema import Schema


class Blocks:
    """Collects row batches and hands them back as blocks, so that a writer's bytes do not depend on the batches.

    Parameters
    ----------
    schema : Schema
    rows : int
        Rows per block, 1 or more.
    """

    def __init__(self, schema: Schema, rows: int) -> None:
        self._schema = schema
        self._rows = rows
        self._pending: list[Columns] = []
        self._pending_rows = 0

    def add(self, batch: Columns, count: int) -> list[Columns]:
        """Take a batch of `count` rows and return the blocks that are now full, as copies of the rows."""
        full, start = [], 0
        while start < count:
            end = min(count, start + self._rows - self._pending_rows)
            # A copy: the caller may reuse its arrays before the block is full.
            self._pending.append({f.name: _copied(batch[f.name][start:end]) for f in self._schema})
            self._pending_rows += end - start
            start = end
            if self._pending_rows == self._rows:
                full.extend(self.rest())
        return full

    def rest(self) -> list[Columns]:
        """The last block, shorter than the others, if there is one."""
        if not self._pending_rows:
            return []
        block = {
            f.name: np.concatenate([piece[f.name] for piece in self._pending])
            if f.is_fixed
            else list(chain.from_iterable(piece[f.name] for piece in self._pending))
            for f in self._schema
        }
        self._pending, self._pending_rows = [], 0
        return [block]


def _copied(values: Any) -> Any:
    return values.copy() if isinstance(values, np.ndarray) else [bytes(value) for value in values]
