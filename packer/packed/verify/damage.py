"""Find the samples of a damaged shard that cannot be read."""

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import groupby
from typing import NamedTuple

from packer.packed.verify.shard import ShardWalk, keys_in
from readers.formats.gather import without_advice
from shardspec.columns import Columns
from shardspec.entries import Shard
from shardspec.errors import DatasetError
from shardspec.layout import Layout

LISTED = 20
"""How many samples of one shard, or runs of samples with the same damage, are listed; the rest are counted."""


class Line(NamedTuple):
    """Damage in one row: its number in the shard, its key, and the fault."""

    row: int
    key: str | None
    fault: str


def describe_damage(layout: Layout, number: int, shard: Shard, start: int, tried: Callable[[int], None]) -> str:
    """Describe which samples of a damaged shard cannot be read.

    Parameters
    ----------
    number : int
        The number of the shard in the manifest.
    start : int
        The row in the dataset of the shard's first row.
    tried : callable
        Called with the number of rows that were tried since the last call.
    """
    lines = []
    for line in _examine(layout, number):
        lines.append(line)
        tried(1)
    place = f"the shard holds rows {start} to {start + shard.samples - 1} of the dataset"
    keys = [line.key for line in lines if line.key is not None]
    if keys:
        place += f", keys {keys[0]!r} to {keys[-1]!r}"
    bad = [line for line in lines if line.fault]
    if not bad:
        return f"{place}; all of them can be read, so which have changed is unknown"
    runs = [list(run) for _, run in groupby(enumerate(bad), lambda line: (line[1].row - line[0], line[1].fault))]
    texts = [_describe_run(start, [line for _, line in run]) for run in runs[:LISTED]]
    if len(runs) > LISTED:
        texts.append(f"and {sum(map(len, runs[LISTED:]))} more")
    return f"{place}; {len(bad)} cannot be read whole: {'; '.join(texts)}"


def _describe_run(start: int, lines: list[Line]) -> str:
    """One damaged row, or a run of rows with the same damage, in words."""
    (first, first_key, what), (last, last_key, _) = lines[0], lines[-1]
    if first == last:
        return f"row {start + first}{f' (key {first_key!r})' if first_key is not None else ''}: {what}"
    keys = f" (keys {first_key!r} to {last_key!r})" if first_key is not None and last_key is not None else ""
    return f"rows {start + first} to {start + last}{keys}: {what}"


def _examine(layout: Layout, number: int) -> Iterator[Line]:
    """Try every row of a shard."""
    manifest = layout.load()
    shard = manifest.shards[number]
    try:
        walk = ShardWalk(layout, manifest, shard)
    except DatasetError as error:
        for row in range(shard.samples):
            yield Line(row, None, f"the shard cannot be opened ({_describe(error, layout)})")
        return
    with closing(walk):
        for rows in walk.batches():
            columns = _try(walk, rows)
            if isinstance(columns, Exception):
                yield from (Line(row, walk.key(row), _find_fault(walk, row, layout)) for row in rows)
                continue
            keys = keys_in(columns)
            faults: dict[int, str] = {}
            for found in walk.faults(columns):
                faults.setdefault(found.row, f"field {found.field!r}: {found.message}")
            for place, row in enumerate(rows):
                yield Line(row, keys[place] if keys else None, faults.get(place, ""))


def _find_fault(walk: ShardWalk, row: int, layout: Layout) -> str:
    """Return the first fault of a row: a field that cannot be read, or whose value is invalid."""
    columns = _try(walk, range(row, row + 1))
    if not isinstance(columns, Exception):
        return next((f"field {found.field!r}: {found.message}" for found in walk.faults(columns)), "")
    tried = {name: _try(walk, range(row, row + 1), name) for name in walk.schema.names}
    broken = [(name, found) for name, found in tried.items() if isinstance(found, Exception)]
    if not broken or len(broken) == len(tried):
        return _describe(broken[0][1] if broken else columns, layout)
    more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
    return f"field {broken[0][0]!r}{more}: {_describe(broken[0][1], layout)}"


def _try(walk: ShardWalk, rows: range, *fields: str) -> Columns | Exception:
    try:
        return walk.read(rows, fields or None)
    except DatasetError as error:
        return error


def _describe(error: Exception, layout: Layout) -> str:
    """A reader's error message without the file's name and the advice, which the report gives already."""
    text = without_advice(error).replace(f"{layout.root}/", "")
    return text or type(error).__name__
