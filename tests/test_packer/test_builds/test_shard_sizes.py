"""Sizes of shards."""

from itertools import pairwise

import numpy as np

from packer.assembly.plan import FIRST_SHARD_BYTES, SHARD_BYTES, cut_rows


def test_shards_grow_with_what_lies_before_them() -> None:
    row = 4 * 10**6
    cuts = cut_rows(np.full(600, row), None)
    sizes = [row * (stop - start) for start, stop in pairwise(cuts)]
    assert sizes[:5] == [FIRST_SHARD_BYTES] * 5
    assert SHARD_BYTES in sizes
    for number, size in enumerate(sizes[:-1]):
        most = min(max(sum(sizes[:number]) / 4, FIRST_SHARD_BYTES), SHARD_BYTES)
        assert most - row < size <= most
    assert sum(sizes) == 600 * row
    assert sizes[-1] <= sum(sizes) / 5
