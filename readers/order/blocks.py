"""Blocks: runs of neighbouring rows that are cheap to read together, in a table that takes no memory per row."""

from collections.abc import Iterable

import numpy as np

from shardspec.columns import IntArray
from shardspec.entries import Shard

MIN_BLOCK_ROWS = 64
"""Smaller units of a format are joined until a block has this many rows."""


class Blocks:
    """Consecutive runs of rows that cover 0 … rows-1, in stretches of equal run length (one stretch per shard).

    Parameters
    ----------
    stretch_rows : int array, (S,)
        Rows of each stretch.
    block_rows : int array, (S,)
        Rows of each block in the stretch, 1 or more; its last block may be shorter.
    """

    def __init__(self, stretch_rows: IntArray, block_rows: IntArray) -> None:
        self._block_rows = block_rows
        self._row_ends = np.cumsum(stretch_rows)
        self._row_starts = self._row_ends - stretch_rows
        counts = -(-stretch_rows // block_rows)
        self._block_ends = np.cumsum(counts)
        self._block_starts = self._block_ends - counts
        self.rows = int(self._row_ends[-1]) if len(stretch_rows) else 0

    def __len__(self) -> int:
        return int(self._block_ends[-1]) if len(self._block_ends) else 0

    def bounds(self, blocks: IntArray) -> tuple[IntArray, IntArray]:
        """Return the first row of each given block, and the row after its last."""
        stretch = np.searchsorted(self._block_ends, blocks, side="right")
        step = self._block_rows[stretch]
        start = self._row_starts[stretch] + (blocks - self._block_starts[stretch]) * step
        return start, np.minimum(start + step, self._row_ends[stretch])

    @classmethod
    def of_shards(cls, shards: Iterable[Shard]) -> "Blocks":
        """Return the blocks of a dataset: the units of each shard, joined until a block has `MIN_BLOCK_ROWS`."""
        pairs = [
            (s.samples, min(s.samples, -(-MIN_BLOCK_ROWS // s.block_rows) * s.block_rows)) for s in shards if s.samples
        ]
        table = np.array(pairs, np.int64).reshape(-1, 2)
        return cls(table[:, 0], table[:, 1])

    @classmethod
    def even(cls, rows: int, block_rows: int = MIN_BLOCK_ROWS) -> "Blocks":
        """Return blocks of equal length, for rows that are not in shards."""
        return cls(np.array([rows], np.int64), np.array([block_rows], np.int64))
