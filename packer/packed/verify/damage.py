"""Which samples of a damaged shard cannot be read. A process of its own reads them, since a library may crash over bad bytes.

Run as ``python -m packer.packed.verify.damage DATASET SHARD_NUMBER``: one JSON line per row that was tried, ``[row, key or null, what is wrong]``.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import numpy as np

from packer.assembly.rows import batch_rows
from packer.jobs.process import inherited_environment, module_command, take_streams
from packer.packed.verify.values import ValueChecks
from readers.formats.base import ShardReader, open_shard
from readers.formats.checks import without_advice
from shardspec.columns import Columns, allocate
from shardspec.entries import Shard
from shardspec.layout import Layout
from shardspec.manifest import Manifest
from shardspec.schema import Schema

LISTED = 20
"""Samples, or runs of samples with the same damage, of one shard that are listed; the rest are counted."""

LIMIT_S = 600.0
"""For reading one damaged shard, which may send a library into an endless loop."""

Line = tuple[int, str | None, str]


def describe_damage(layout: Layout, number: int, shard: Shard, start: int) -> str:
    """Which samples of a damaged shard cannot be read, in words.

    Parameters
    ----------
    number : int
        The shard's in the manifest.
    start : int
        The dataset's number of the shard's first row.
    """
    lines, ended = _examine_apart(layout, number)
    place = f"the shard holds rows {start} to {start + shard.samples - 1} of the dataset"
    if ended and not lines:
        return f"{place}; which of them can be read could not be found out, since {ended}"
    keys = [key for _, key, _ in lines if key is not None]
    if keys:
        place += f", keys {keys[0]!r} to {keys[-1]!r}"
    bad = [line for line in lines if line[2]]
    if not bad and len(lines) == shard.samples:
        return f"{place}; all of them can be read, so which have changed cannot be told"
    untried = shard.samples - len(lines)
    runs = [list(run) for _, run in groupby(enumerate(bad), lambda line: (line[1][0] - line[0], line[1][2]))]
    texts = [_told_of(start, [line for _, line in run]) for run in runs[:LISTED]]
    if len(runs) > LISTED:
        texts.append(f"and {sum(map(len, runs[LISTED:]))} more")
    if untried:
        texts.append(f"{untried} from row {start + len(lines)} on{f', since {ended}' if ended else ''}")
    return f"{place}; {len(bad) + untried} cannot be read whole: {'; '.join(texts)}"


def _told_of(start: int, lines: list[Line]) -> str:
    """One damaged row, or a run of rows with the same damage, in words."""
    (first, first_key, what), (last, last_key, _) = lines[0], lines[-1]
    if first == last:
        return f"row {start + first}{f' (key {first_key!r})' if first_key is not None else ''}: {what}"
    keys = f" (keys {first_key!r} to {last_key!r})" if first_key is not None and last_key is not None else ""
    return f"rows {start + first} to {start + last}{keys}: {what}"


def _examine_apart(layout: Layout, number: int) -> tuple[list[Line], str]:
    """The lines of a process that examines a shard; and how it ended, if that was not as it should."""
    command = module_command("packer.packed.verify.damage", str(layout.root), str(number))
    environment = inherited_environment()
    try:
        done = subprocess.run(  # noqa: S603 -- our own interpreter and module
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False
        )
        output, ended = done.stdout, ""
        if done.returncode:
            told = done.stderr.decode(errors="replace").strip().splitlines()
            ended = f"the process that read it ended with status {done.returncode}{f' ({told[-1]})' if told else ''}"
    except subprocess.TimeoutExpired as error:
        output, ended = error.stdout or b"", f"reading it took more than {LIMIT_S:g} s"
    return [line for text in output.split(b"\n")[:-1] if (line := _parse(text)) is not None], ended


def _parse(text: bytes) -> Line | None:
    """A line of the process; None for what something has printed before the process had taken its standard output."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    is_line = isinstance(found, list) and [type(value) for value in found] in ([int, str, str], [int, type(None), str])
    return tuple(found) if is_line else None


def examine(layout: Layout, number: int) -> Iterator[Line]:
    """Try every row of a shard: its number there, its key, and what is wrong with it, if anything."""
    manifest = layout.load()
    shard, schema = manifest.shards[number], manifest.schema
    try:
        reader = open_shard(layout, manifest, shard)
    except Exception as error:  # of whatever library
        for row in range(shard.samples):
            yield row, None, f"the shard cannot be opened ({_told(error, layout)})"
        return
    checks = ValueChecks(schema)
    step = batch_rows(shard)
    for first in range(0, shard.samples, step):
        rows = range(first, min(first + step, shard.samples))
        columns = _read(reader, schema, rows)
        if isinstance(columns, dict) and "key" in columns:
            keys: list[str | None] = [bytes(key).decode(errors="replace") for key in columns["key"]]
        else:
            keys = [_key(layout, manifest, shard, row) for row in rows]
        faults: dict[int, str] = {}
        if isinstance(columns, dict):
            for row, field, message in checks.faults(columns):
                faults.setdefault(row, f"field {field!r}: {message}")
        else:
            faults = {row - first: _row_fault(reader, schema, checks, row, layout) for row in rows}
        for row, key in zip(rows, keys, strict=True):
            yield row, key, faults.get(row - first, "")


def _row_fault(reader: ShardReader, schema: Schema, checks: ValueChecks, row: int, layout: Layout) -> str:
    """What is wrong with one row: the first field of it that cannot be read, or whose value cannot be."""
    columns = _read(reader, schema, range(row, row + 1))
    if isinstance(columns, dict):
        return next((f"field {field!r}: {message}" for _, field, message in checks.faults(columns)), "")
    broken = []
    for field in schema:
        found = _read(reader, schema.select([field.name]), range(row, row + 1))
        if not isinstance(found, dict):
            broken.append((field.name, found))
    if not broken or len(broken) == len(schema):
        return _told(broken[0][1] if broken else columns, layout)
    more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
    return f"field {broken[0][0]!r}{more}: {_told(broken[0][1], layout)}"


def _read(reader: ShardReader, schema: Schema, rows: range) -> Columns | Exception:
    out = allocate(schema, len(rows))
    try:
        reader.read(np.array(rows, np.int64), schema.names, out, np.arange(len(rows)))
    except Exception as error:  # of whatever library
        return error
    return out


def _key(layout: Layout, manifest: Manifest, shard: Shard, row: int) -> str | None:
    """The key of a row that was not read with the others; the format's checksums, which cover more than the key, aside."""
    if "key" not in manifest.schema:
        return None
    try:
        reader = open_shard(layout, manifest, shard, checksums=False)
        columns = _read(reader, manifest.schema.select(["key"]), range(row, row + 1))
        reader.close()
    except Exception:  # of whatever library
        return None
    return bytes(columns["key"][0]).decode(errors="replace") if isinstance(columns, dict) else None


def _told(error: Exception, layout: Layout) -> str:
    """A reader's complaint without the file's name and the advice, which stand before it already."""
    text = without_advice(error).replace(f"{layout.root}/", "")
    return text or type(error).__name__


def main(root: Path, number: int) -> None:
    """Print a line for every row, and nothing else: what libraries print goes to standard error."""
    _, answers = take_streams()
    with suppress(BrokenPipeError):
        for line in examine(Layout(root), number):
            answers.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
