"""Comparison of the formats: size, pack time and reading speed of the same 10,000 crops in every format.

``python -m benchmarks.formats --folder /somewhere --json out.json`` prints the tables of ``docs/background/formats.md``;
``python -m benchmarks.tables out.json`` prints them again.

Method. The crops are 224 × 224 windows of scikit-image's photographs at seeded places, once raw and once as JPEG of
quality 95, in shards of 256 MB. Every format packs the same encoded rows with the project's writer: the time includes
flushing to the disk and SHA-256. Reading is a pass over all rows in batches of 64 of the fields image and label, in one
thread, from a page cache that a plain read of the files has filled: *random* is one permutation of all rows,
*blockwise* a permutation of the manifest's blocks, *sequential* the stored order. *First* is a pass by fresh readers,
which compare each checksum once and touch each page of the mapped file for the first time; *unchecked* the same without
checksums; *later* a second pass by the same readers. JPEG bytes are joined after reading, so that each format touches
them. Rates are per second of processor time, which other work on the machine disturbs less, and the best of
`--repeats`. The copy in memory takes the same rows, in the same random batches, out of one array.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import skimage.data

from benchmarks.measure import machine, versions
from benchmarks.tables import ORDERS, formats_table
from packer.assembly.shard import place_shard, write_shard
from packer.assembly.writers.base import ShardSize
from packer.workspace.durable import remove_tree
from readers.formats.shards import reader_class
from shardspec.columns import Columns, allocate
from shardspec.entries import Shard
from shardspec.formats import FORMATS
from shardspec.layout import Layout
from shardspec.schema import Field, NamedConfig, Schema

SIZE, BATCH = 224, 64
SHARD_BYTES = 256 << 20
FIELDS = ("image", "label")
LIBRARIES = ("numpy", "lmdb", "pyarrow", "h5py", "google-crc32c")

_KEY = Field("key", "text", "|u1", (None,), NamedConfig("utf8"))
_LABEL = Field("label", "fixed", "<i8", ())
SCHEMAS = {
    "raw": Schema((_KEY, Field("image", "fixed", "|u1", (SIZE, SIZE, 3)), _LABEL)),
    "jpeg": Schema((_KEY, Field("image", "bytes", "|u1", (SIZE, SIZE, 3), NamedConfig("jpeg")), _LABEL)),
}


def crops(rows: int) -> Any:
    """Windows of photographs: (rows, 224, 224, 3), uint8."""
    photographs = [skimage.data.astronaut(), skimage.data.coffee(), skimage.data.chelsea()]
    rng = np.random.default_rng(0)
    out = np.empty((rows, SIZE, SIZE, 3), np.uint8)
    for row in range(rows):
        photograph = photographs[row % len(photographs)]
        y, x = (int(rng.integers(0, side - SIZE + 1)) for side in photograph.shape[:2])
        out[row] = photograph[y : y + SIZE, x : x + SIZE]
    return out


def encoded(kind: str, photos: Any) -> Columns:
    """The rows as writers take them."""
    images = photos
    if kind == "jpeg":
        images = [simplejpeg.encode_jpeg(picture, quality=95, colorsubsampling="420") for picture in photos]
    keys = [b"%08d-000000" % row for row in range(len(photos))]
    return {"key": keys, "image": images, "label": np.arange(len(photos)) % 1000}


def pack(root: Path, format: str, schema: Schema, rows: Columns, shard_rows: int) -> list[Shard]:
    """Write all rows; the shards."""
    shards = []
    count = len(rows["key"])
    for start in range(0, count, shard_rows):
        end = min(start + shard_rows, count)
        part = {name: column[start:end] for name, column in rows.items()}
        size = shard_size(schema, part)
        batches = [{n: c[a : a + BATCH] for n, c in part.items()} for a in range(0, end - start, BATCH)]
        name = f"shard-{len(shards):05d}"
        shards.append(write_shard(root / "staging", format, name, schema, size, batches))
        place_shard(root, root / "staging")
        remove_tree(root / "staging")
    return shards


def shard_size(schema: Schema, rows: Columns) -> ShardSize:
    """Size of a shard of these rows."""
    count = len(rows["key"])
    field_bytes = {f.name: f.row_bytes * count if f.is_fixed else sum(map(len, rows[f.name])) for f in schema}
    return ShardSize(count, field_bytes)


def order_of(order: str, shards: list[Shard]) -> Any:
    """All rows in one of the orders."""
    count = sum(shard.samples for shard in shards)
    rng = np.random.default_rng(1)
    if order == "random":
        return rng.permutation(count)
    if order == "sequential":
        return np.arange(count)
    blocks, first = [], 0
    for shard in shards:
        blocks += [
            np.arange(first + a, first + min(a + shard.block_rows, shard.samples))
            for a in range(0, shard.samples, shard.block_rows)
        ]
        first += shard.samples
    return np.concatenate([blocks[number] for number in rng.permutation(len(blocks))])


def batches_of(rows: Any, shards: list[Shard]) -> Iterator[list[tuple[int, Any, Any]]]:
    """Batches, each as (shard, rows in it, places in the batch); in a batch, rows are sorted by shard."""
    ends = np.cumsum([shard.samples for shard in shards])
    starts = ends - [shard.samples for shard in shards]
    for first in range(0, len(rows) - BATCH + 1, BATCH):
        batch = rows[first : first + BATCH]
        number = np.searchsorted(ends, batch, side="right")
        yield [
            (int(n), batch[number == n] - starts[n], np.flatnonzero(number == n)) for n in sorted(set(number.tolist()))
        ]


def read_rates(
    root: Path, format: str, schema: Schema, shards: list[Shard], order: str, checksums: bool
) -> tuple[float, float]:
    """Samples per second of processor time of a first pass and of a second one."""
    kind = reader_class(format)
    plan = list(batches_of(order_of(order, shards), shards))
    out = allocate([schema[name] for name in FIELDS], BATCH)
    readers: dict[int, Any] = {}
    rates = []
    for _ in range(2):
        start = time.process_time()
        for batch in plan:
            for number, rows, at in batch:
                if number not in readers:
                    shard = shards[number]
                    readers[number] = kind(
                        Layout(root).shard(shard, format), shard, schema, format, checksums=checksums
                    )
                readers[number].read(rows, FIELDS, out, at)
            if not schema["image"].is_fixed:
                b"".join(out["image"])
        rates.append(len(plan) * BATCH / (time.process_time() - start))
    for reader in readers.values():
        reader.close()
    return rates[0], rates[1]


def warm(root: Path) -> None:
    """Fill the page cache with files as reading would; the state after writing depends on the sizes of the writes."""
    for path in sorted(root.rglob("*")):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                while file.read(1 << 20):
                    pass


def copy_rate(schema: Schema, rows: Columns) -> float:
    """Samples per second of processor time of taking random batches out of memory."""
    order = np.random.default_rng(1).permutation(len(rows["key"]))
    count = len(order) // BATCH
    out = np.empty((BATCH, SIZE, SIZE, 3), np.uint8)
    start = time.process_time()
    for batch in order[: count * BATCH].reshape(count, BATCH):
        if schema["image"].is_fixed:
            np.take(rows["image"], batch, axis=0, out=out, mode="clip")
        else:
            b"".join([rows["image"][row] for row in batch])
    return count * BATCH / (time.process_time() - start)


def survey(kind: str, photos: Any, folder: Path, repeats: int, formats: list[str]) -> dict[str, Any]:
    """Pack and read one kind of rows in every format."""
    schema, rows = SCHEMAS[kind], encoded(kind, photos)
    bytes_per_row = shard_size(schema, rows).row_bytes
    found: dict[str, Any] = {
        "bytes_per_row": bytes_per_row,
        "copy": max(copy_rate(schema, rows) for _ in range(repeats)),
    }
    for format in formats:
        root = folder / f"{kind}-{format}"
        root.mkdir(parents=True)
        start = time.perf_counter()
        shards = pack(root, format, schema, rows, max(1, SHARD_BYTES // bytes_per_row))
        row: dict[str, Any] = {"pack_s": time.perf_counter() - start}
        row["bytes"] = sum(shard.bytes for shard in shards)
        row["block_rows"] = shards[0].block_rows
        warm(root)
        for order in ORDERS:
            checked = [read_rates(root, format, schema, shards, order, True) for _ in range(repeats)]
            unchecked = [read_rates(root, format, schema, shards, order, False) for _ in range(repeats)]
            row[f"{order}_first"] = max(first for first, _ in checked)
            row[f"{order}_unchecked"] = max(first for first, _ in unchecked)
            row[f"{order}_later"] = max(later for _, later in checked + unchecked)
        found[format] = row
        shutil.rmtree(root)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--formats", nargs="*", default=sorted(FORMATS))
    parser.add_argument("--kinds", nargs="*", default=list(SCHEMAS))
    parser.add_argument("--folder", type=Path, help="where to pack; needs room for one format at a time")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    photos = crops(arguments.rows)
    found: dict[str, Any] = {
        "benchmark": "formats",
        "time_utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {"python": platform.python_version()} | versions(LIBRARIES),
        "rows": arguments.rows,
    }
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for kind in arguments.kinds:
            found[kind] = survey(kind, photos, Path(folder), arguments.repeats, arguments.formats)
            print(formats_table(kind, found[kind]) + "\n", flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
