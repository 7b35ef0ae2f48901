"""Compare shards as their indexes say with the shards as other libraries read them.

The comparison runs in a process of its own, ``python -m packer.packed.verify.agreement DATASET SHARD_NUMBER...``, since
a crafted shard may crash a library. It answers with one JSON line for each batch: ``rows``, the number of rows that were
compared, and ``fault``, which is empty if all of them agree.
"""

import io
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from packer.assembly.packed_rows import batch_rows
from packer.jobs.child import SyncChild
from packer.jobs.process import entry_point, send
from readers.formats.indexed import has_no_bytes
from readers.formats.shards import open_shard
from shardspec.columns import allocate
from shardspec.entries import Shard
from shardspec.formats.hdf5 import hdf5_arrays
from shardspec.formats.parquet import parquet_column
from shardspec.formats.tfrecord import feature_of, read_varints
from shardspec.formats.webdataset import member_of, members
from shardspec.layout import Layout
from shardspec.schema import Field, Schema
from shardspec.wording import LONG, shorten

TICK_S = 1.0
"""Seconds after which a listener gets a report even if nothing has ended."""

SILENCE_S = 600.0
"""Time limit for one batch: a crafted shard may send a library into an endless loop."""


def check_agreement(layout: Layout, shards: Mapping[int, Shard], compared: Callable[[int], None]) -> dict[int, str]:
    """Describe where other libraries read something else from shards than our reader, by the shards' numbers.

    Parameters
    ----------
    shards : dict of int to Shard
        By their numbers in the manifest.
    compared : callable
        Called with the number of rows that were compared since the last call; with 0 while a batch takes long.
    """
    faults: dict[int, str] = {}
    waiting = list(shards)
    while waiting:
        left = {number: shards[number].samples for number in waiting}
        with SyncChild(
            ["packer.packed.verify.agreement", str(layout.root), *map(str, waiting)], stdin=subprocess.DEVNULL
        ) as child:
            until_s = time.monotonic() + SILENCE_S
            while waiting:
                message = child.answer(TICK_S)
                if message is None and time.monotonic() < until_s:
                    compared(0)
                    continue
                number = waiting[0]
                if message is None or message["event"] == "died":
                    why = child.describe_death() if message else f"no answer for {SILENCE_S:g} s"
                    message = {"rows": 0, "fault": f"the process that read it ended, {why}"}
                    ended = True
                else:
                    until_s, ended = time.monotonic() + SILENCE_S, False
                left[number] -= message["rows"]
                compared(message["rows"])
                if message["fault"]:
                    faults[number] = message["fault"]
                if message["fault"] or not left[number]:
                    compared(left[number])
                    waiting.pop(0)
                if ended:
                    break
    return faults


def compare(layout: Layout, number: int) -> Iterator[tuple[int, str]]:
    """Yield the number of rows of each batch, and what is wrong with the first row that differs."""
    manifest = layout.load()
    shard, schema = manifest.shards[number], manifest.shard_schema
    if not shard.samples:
        yield 0, ""
        return
    reader = open_shard(layout, manifest, shard)
    foreign = _FOREIGN[manifest.format](layout.shard(shard, manifest.format), schema, shard)
    for start in range(0, shard.samples, batch_rows(shard)):
        rows = range(start, min(start + batch_rows(shard), shard.samples))
        ours = allocate(schema, len(rows))
        reader.read(np.arange(rows.start, rows.stop), schema.names, ours, np.arange(len(rows)))
        theirs = foreign(rows)
        for field in schema:
            for row, our, their in zip(rows, ours[field.name], theirs[field.name], strict=True):
                if (our.tobytes() if field.is_fixed else bytes(our)) != their:
                    yield len(rows), f"row {row}, field {field.name!r}, has another value"
                    return
        yield len(rows), ""


_Foreign = Callable[[range], dict[str, list[bytes]]]
"""Gives the encoded values of some rows, as bytes; called with one batch after another."""


def _lmdb(path: Path, schema: Schema, shard: Shard) -> _Foreign:
    import lmdb

    environment = lmdb.open(os.fsencode(path), subdir=False, readonly=True, lock=False)
    found = environment.stat()["entries"]
    if found != shard.samples * len(schema):
        raise ValueError(f"expected {shard.samples * len(schema)} entries, found {found}")

    def read(rows: range) -> dict[str, list[bytes]]:
        with environment.begin() as transaction:
            return {
                name: [bytes(transaction.get(b"%08d/" % row + name.encode()) or b"") for row in rows]
                for name in schema.names
            }

    return read


def _hdf5(path: Path, schema: Schema, shard: Shard) -> _Foreign:
    import h5py

    file = h5py.File(path, "r", locking=False)

    def column(field: Field, rows: range) -> list[bytes]:
        name = hdf5_arrays(field, shard.samples, 0)[0].name
        if field.is_fixed:
            return [value.tobytes() for value in file[name][rows.start : rows.stop]]
        offsets = file[f"{field.name}_offsets"][rows.start : rows.stop + 1].tolist()
        values = file[name][offsets[0] : offsets[-1]]
        return [values[a - offsets[0] : b - offsets[0]].tobytes() for a, b in pairwise(offsets)]

    return lambda rows: {field.name: column(field, rows) for field in schema}


def _parquet(path: Path, schema: Schema, shard: Shard) -> _Foreign:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path.open("rb"), page_checksum_verification=True)

    def column(field: Field, values: Any) -> list[bytes]:
        storage = parquet_column(field).storage
        if storage == "image":
            values = values.field("bytes")
        if storage in ("image", "binary", "strings", "fixed_binary"):
            return [
                bytes(value) for value in (values.view(pa.binary()) if storage == "strings" else values).to_pylist()
            ]
        ends = np.arange(1, len(values) + 1) * (0 if field.kind == "ragged" else field.row_bytes)
        if field.kind == "ragged":
            ends = np.diff(values.offsets.to_numpy()).cumsum() * field.row_bytes
            values = values.flatten()
        while pa.types.is_fixed_size_list(values.type):
            values = values.flatten()
        data = values.to_numpy(zero_copy_only=False).astype(field.numpy_dtype).tobytes()
        return [data[a:b] for a, b in pairwise([0, *ends.tolist()])]

    def read(rows: range) -> dict[str, list[bytes]]:
        first, last = rows.start // shard.block_rows, (rows.stop - 1) // shard.block_rows
        table = file.read_row_groups(range(first, last + 1)).slice(rows.start - first * shard.block_rows, len(rows))
        none = [b""] * len(rows)
        return {
            field.name: none if has_no_bytes(field) else column(field, pa.concat_arrays(table[field.name].chunks))
            for field in schema
        }

    return read


def _webdataset(path: Path, schema: Schema, shard: Shard) -> _Foreign:
    tar = tarfile.TarFile(path)
    order = [member.field for member in members(schema)]

    def value(field: Field, content: bytes) -> bytes:
        kind = member_of(field).content
        if kind == "bytes":
            return content
        if kind == "decimal":
            return np.array(int(content), field.numpy_dtype).tobytes()
        array = np.load(io.BytesIO(content), allow_pickle=False)
        shape = np.array(array.shape, "<u4").tobytes() if field.kind == "bytes" else b""
        return shape + bytes(array.tobytes())

    def read(rows: range) -> dict[str, list[bytes]]:
        out: dict[str, list[bytes]] = {name: [] for name in schema.names}
        for _ in rows:
            for field in order:
                content = tar.extractfile(tar.next() or "")
                out[field.name].append(value(field, b"" if content is None else content.read()))
            tar.members = []  # type: ignore[attr-defined]  # which would grow with every member
        return out

    return read


def _tfrecord(path: Path, schema: Schema, shard: Shard) -> _Foreign:
    file = path.open("rb")

    def value(field: Field, values: bytes) -> bytes:
        payload = b"".join(part for _, part in _messages(values))
        if feature_of(field).kind != "int64":
            return payload
        return bytes(read_varints(np.frombuffer(payload, np.uint8))[0].astype(field.numpy_dtype).tobytes())

    def read(rows: range) -> dict[str, list[bytes]]:
        out: dict[str, list[bytes]] = {name: [] for name in schema.names}
        for _ in rows:
            example = file.read(int.from_bytes(file.read(12)[:8], "little") + 4)[:-4]
            ((_, features),) = _messages(example)
            found = {}
            for _, entry in _messages(features):
                (_, key), (_, feature) = _messages(entry)
                ((_, found[key.decode()]),) = _messages(feature)
            for field in schema:
                out[field.name].append(value(field, found[feature_of(field).key]))
        return out

    return read


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and bytes of the fields of a protobuf message, which are all length-delimited."""
    place = 0
    while place < len(data):
        tag, size, shift = data[place], 0, 0
        while True:
            place += 1
            size |= (data[place] & 0x7F) << shift
            shift += 7
            if data[place] < 0x80:
                break
        place += 1 + size
        yield tag, data[place - size : place]


_FOREIGN = {"hdf5": _hdf5, "lmdb": _lmdb, "parquet": _parquet, "tfrecord": _tfrecord, "webdataset": _webdataset}


def main(root: Path, numbers: list[int]) -> None:
    """Write a line for every batch, and nothing else: what libraries print goes to standard error."""
    with entry_point() as (_, answers):
        for number in numbers:
            try:
                for rows, fault in compare(Layout(root), number):
                    send(answers, event="rows", rows=rows, fault=fault)
            except Exception as error:  # of whatever library
                send(answers, event="rows", rows=0, fault=f"{type(error).__name__}: {shorten(error, LONG)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(number) for number in sys.argv[2:]])
