"""Small fields of all samples, read from the shards into memory."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from readers.formats.pool import ShardPool
from readers.formats.shards import open_shards
from shardspec.columns import Columns, allocate
from shardspec.errors import UsageError
from shardspec.schema import Field

Column = npt.NDArray[Any]

MAX_TEXTS = 10**7
"""The most samples of a dataset whose text fields are read into memory. A key takes 20 bytes or more."""

_CHUNK = 8192


class Texts(NamedTuple):
    """A text field of all samples.

    Attributes
    ----------
    names : (n,) StringDType
        The distinct values, ascending.
    codes : (rows,) int32
        The index of each sample's value among them.
    """

    names: Column
    codes: npt.NDArray[np.int32]


def read_numbers(pool: ShardPool, field: Field) -> Column:
    """Read a fixed field of all samples."""
    values: Column = allocate([field], len(pool))[field.name]
    for start, columns in read_blocks(pool, [field.name]):
        block = columns[field.name]
        values[start : start + len(block)] = block
    return values


def read_texts(pool: ShardPool, name: str) -> Texts:
    """Read a text field of all samples.

    Raises
    ------
    UsageError
        If there are too many samples.
    """
    if len(pool) > MAX_TEXTS:
        raise UsageError(
            f"The dataset has {len(pool):,} samples. Text fields such as {name!r} can be filtered, sorted and counted "
            f"in datasets of up to {MAX_TEXTS:,} samples. Filter by a field of numbers."
        )
    texts = np.empty(len(pool), np.dtypes.StringDType())
    for start, columns in read_blocks(pool, [name]):
        values = columns[name]
        texts[start : start + len(values)] = [as_text(value) for value in values]
    names, codes = np.unique(texts, return_inverse=True)
    return Texts(names, codes.astype(np.int32))


def read_blocks(pool: ShardPool, fields: Sequence[str]) -> Iterator[tuple[int, Columns]]:
    """Yield the encoded values of all samples in blocks of a few thousand, with the number of the first sample.

    Shards are mapped one after another, by a separate pool. Otherwise the whole dataset would count as memory of this
    process.
    """
    own, start = pool.join((), {}), 0
    for number, shard in enumerate(own.manifest.shards):
        stop = start + shard.samples
        while start < stop:
            rows = np.arange(start, min(start + _CHUNK, stop))
            out = allocate([own.schema[name] for name in fields], len(rows))
            own.read(rows, fields, out, np.arange(len(rows)))
            yield start, out
            del out
            start += len(rows)
        open_shards.forget(own, number)


def as_text(value: Any) -> str:
    """Decode a text for display. Bytes that are not UTF-8 are replaced."""
    return bytes(value).decode("utf-8", "replace")
