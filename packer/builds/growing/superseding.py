"""Samples that an update supersedes: where they are stored, and what the dataset's generations are without them."""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np

from packer.assembly.packed_rows import PackedRows
from readers.formats.superseded import load_superseded, rows_before, stored_rows
from shardspec.columns import IntArray
from shardspec.entries import SUPERSEDED_NAME, Generation
from shardspec.errors import DatasetError
from shardspec.layout import Layout
from shardspec.manifest import Manifest


def find_rows(layout: Layout, base: Manifest, samples: IntArray) -> IntArray:
    """The rows of some items of a dataset, ascending.

    Their keys begin with the numbers of the items. Digests are not compared, since every shard would have to be read.

    Parameters
    ----------
    samples : (items,) int64
        How many samples each item of the dataset has, by its number; 0 for those whose rows are not looked for.

    Raises
    ------
    DatasetError
        If these are not the samples that the dataset has of them.
    """
    found = array("q")
    if samples.any():
        row = 0
        with closing(PackedRows.of(layout.root, check="size", manifest=base)) as rows:
            for batch in rows.batches(["key"]):
                for key in batch["key"]:
                    number = bytes(key).partition(b"-")[0]
                    if number.isdigit() and (item := int(number)) < len(samples) and samples[item]:
                        found.append(row)
                    row += 1
    expected = samples.sum()
    if len(found) != expected:
        raise DatasetError(
            f"{layout.root}: expected {expected} samples of the items that are replaced or dropped, found {len(found)}: "
            "pack it once more with --overwrite"
        )
    return np.frombuffer(found, np.int64)


def write_superseded(folder: Path, layout: Layout, base: Manifest, rows: IntArray) -> None:
    """Write the file of the superseded rows into a folder: those of the dataset, and further `rows` of it."""
    before = load_superseded(layout, base)
    numbers = np.sort(np.concatenate([before, stored_rows(rows, rows_before(before))]))
    if len(numbers):
        np.save(folder / SUPERSEDED_NAME, numbers.astype("<i8"))


def without_superseded(generations: Sequence[Generation], folder: Path) -> list[Generation]:
    """Generations with the samples that their shards have without the superseded rows in a folder's file."""
    path = folder / SUPERSEDED_NAME
    numbers = np.load(path, allow_pickle=False).tolist() if path.exists() else []
    shards = [shard for generation in generations for shard in generation.shards]
    left = {}
    for shard, stop in zip(shards, accumulate(shard.stored_samples for shard in shards), strict=True):
        stored = shard.stored_samples
        fewer = bisect_left(numbers, stop) - bisect_left(numbers, stop - stored)
        left[shard.name] = replace(shard, samples=stored - fewer, stored=stored if fewer else None)
    return [replace(one, shards=tuple(left[shard.name] for shard in one.shards)) for one in generations]
