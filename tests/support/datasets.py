"""Small packed datasets, written by the real writers.

Columns here hold *values*: an array (n, *shape) for a fixed field, a list of n values (arrays, strings, bytes) for any
other.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from packer.assembly.shard import write_shard
from packer.assembly.writers.base import ShardSize
from packer.workspace.durable import remove_tree
from readers.formats import shards
from shardspec.codecs import codec_for
from shardspec.columns import Columns
from shardspec.entries import Counts, Generation, Shard
from shardspec.layout import Layout, describe_file
from shardspec.manifest import Manifest, sha256_json
from shardspec.schema import Field, NamedConfig, Schema


def fixed(name: str, dtype: str, *shape: int, **more: Any) -> Field:
    """A fixed field."""
    return Field(name, "fixed", dtype, shape, **more)


def ragged(name: str, dtype: str, *tail: int) -> Field:
    """A ragged field."""
    return Field(name, "ragged", dtype, (None, *tail))


def text(name: str, codec: str = "utf8") -> Field:
    """A text field."""
    return Field(name, "text", "|u1", (None,), NamedConfig(codec))


def picture(name: str, codec: str = "jpeg", size: int | None = None) -> Field:
    """An encoded image, (size, size, 3) or of varying size."""
    return Field(name, "bytes", "|u1", (size, size, 3), NamedConfig(codec))


def face_schema(size: int = 32, codec: str | None = None) -> Schema:
    """The fields of a face sample with five points; raw fixed images unless a codec is named."""
    image = fixed("image", "|u1", size, size, 3) if codec is None else picture("image", codec, size)
    return Schema(
        (
            text("key"),
            text("source"),
            image,
            fixed("label", "<i8", classes=("real", "fake")),
            fixed("landmarks", "<f4", 5, 2, layout="5"),
            fixed("landmarks_valid", "|b1"),
            fixed("hull", "<f4", 16, 2),
            fixed("regions", "<f4", 4, 4),
            fixed("box", "<f4", 4),
            fixed("score", "<f4"),
            fixed("matrix", "<f4", 2, 3),
            fixed("frame", "<i8"),
            fixed("time", "<f8"),
            fixed("track", "<i8"),
        )
    )


def every_kind_schema() -> Schema:
    """Fields of every kind, dtype and number of axes that the contract has."""
    dtypes = ("|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8")
    letters = [dtype[1:] for dtype in dtypes]
    return Schema(
        (
            text("key"),
            text("note"),
            text("document", "json"),
            fixed("image", "|u1", 6, 5, 3),
            *(fixed(f"scalar_{letter}", dtype) for letter, dtype in zip(letters, dtypes, strict=True)),
            *(fixed(f"pair_{letter}", dtype, 2) for letter, dtype in zip(letters, dtypes, strict=True)),
            fixed("label", "<i8", classes=("cat", "dog", "über")),
            fixed("nothing", "<f4", 0),
            fixed("nothing_2d", "<i2", 3, 0),
            fixed("cube", "<i2", 2, 3, 2),
            ragged("ragged_i2", "<i2"),
            ragged("ragged_f4", "<f4", 2),
            ragged("ragged_b1", "|b1"),
            ragged("ragged_f2", "<f2", 2, 2),
            ragged("ragged_nothing", "<f4", 0),
            Field("blob", "bytes", "|u1", (None,)),
            Field("array", "bytes", "<f4", (None, None)),
            picture("photo", "png"),
            picture("photo_raw", "raw"),
        )
    )


def values_for(schema: Schema, rows: int, seed: int = 0) -> Columns:
    """Seeded values of every field, including extremes, NaN, empty values and text in several scripts.

    For one seed, a row's values do not depend on `rows`.
    """
    columns: Columns = {field.name: [] for field in schema}
    for row in range(rows):
        for position, field in enumerate(schema):
            rng = np.random.default_rng((seed, row, position))
            columns[field.name].append(_value(field, row, rng))
    for field in schema:
        if field.is_fixed:
            stacked = np.empty((rows, *field.fixed_shape), field.numpy_dtype)
            for row, value in enumerate(columns[field.name]):
                stacked[row] = value
            columns[field.name] = stacked
    return columns


def _value(field: Field, row: int, rng: np.random.Generator) -> Any:
    if field.kind == "text":
        return _text(field, row, rng)
    if field.kind == "bytes" and len(field.shape) == 1:
        return rng.bytes(int(rng.integers(0, 40)) * (row % 3))
    varying = rng.integers(0, 7, len(field.shape))
    least = 1 if field.is_image else 0
    shape = [max(least, int(v)) if axis is None else axis for axis, v in zip(field.shape, varying, strict=True)]
    if field.classes is not None:
        return rng.integers(0, len(field.classes), shape).astype(field.numpy_dtype)
    if field.dtype == "|b1":
        return rng.random(shape) < 0.5
    # Any bit pattern is a value: this gives infinities and NaN of every payload too.
    raw = rng.bytes(int(np.prod(shape, dtype=int)) * field.numpy_dtype.itemsize)
    return np.frombuffer(raw, field.numpy_dtype).reshape(shape)


def _text(field: Field, row: int, rng: np.random.Generator) -> Any:
    if field.name == "key":
        return f"{row:08d}-{int(rng.integers(0, 10**6)):06d}"
    words = ["", "plain", "ünïcödé", "人脸", "🙂 smile"]
    words += ["tab\tnewline\n", "quote\"'\\", "\udcff not utf-8", "\0 nul"]
    word = words[row % len(words)] * int(rng.integers(1, 4))
    return word if field.codec.name == "utf8" else {"n": row, "word": word.replace("\udcff", ""), "none": None}


def encode(schema: Schema, columns: Mapping[str, Any]) -> Columns:
    """Columns as writers take them, with all but fixed fields encoded."""
    out: Columns = {}
    for field in schema:
        if field.is_fixed:
            out[field.name] = np.ascontiguousarray(columns[field.name], field.numpy_dtype)
        else:
            codec = codec_for(field)
            out[field.name] = [bytes(codec.encode(value)) for value in columns[field.name]]
    return out


def size_of(schema: Schema, encoded: Columns) -> ShardSize:
    """The size of some encoded rows."""
    rows = len(encoded[schema.names[0]])
    field_bytes = {f.name: f.row_bytes * rows if f.is_fixed else sum(map(len, encoded[f.name])) for f in schema}
    return ShardSize(rows, field_bytes)


def slice_rows(schema: Schema, encoded: Columns, start: int, end: int) -> Columns:
    """Some of the rows, without a copy."""
    return {field.name: encoded[field.name][start:end] for field in schema}


def write_encoded(
    root: Path, format: str, schema: Schema, encoded: Columns, *, shard_rows: int | None = None, batch_rows: int = 7
) -> Manifest:
    """Write a dataset of encoded columns into `root`, with its manifest and index, and return the manifest."""
    root.mkdir(parents=True, exist_ok=True)
    rows = len(encoded[schema.names[0]])
    step = rows if shard_rows is None else shard_rows
    shards: list[Shard] = []
    for start in range(0, max(rows, 1), max(step, 1)):
        part = slice_rows(schema, encoded, start, min(start + max(step, 1), rows))
        size = size_of(schema, part)
        batches = [slice_rows(schema, part, a, a + batch_rows) for a in range(0, size.samples, batch_rows)]
        name = f"shard-{len(shards):05d}"
        published = root / ".build" / name
        published.parent.mkdir(exist_ok=True)
        shard = write_shard(published, format, name, schema, size, batches)
        for entry in shard.files:  # names of earlier versions, so that these keep being read
            (root / entry.own_name).parent.mkdir(exist_ok=True)
            (published / entry.name).rename(root / entry.own_name)
        shards.append(replace(shard, name=name, files=tuple(replace(e, name=e.own_name) for e in shard.files)))
    remove_tree(root / ".build")
    counts = Counts(rows, rows, 0, 0, rows, 0, 0, 0)
    fingerprint = sha256_json([shard.to_json() for shard in shards])  # as of builds, another for other samples
    recipe = {"of": fingerprint}  # so that no merge joins it with another
    generation = Generation("build", fingerprint, recipe, {}, counts, tuple(shards))
    manifest = Manifest(format, schema, (generation,), tuple(_write_index(root, schema, encoded)))
    Layout(root).manifest.write_bytes(manifest.dumps())
    return manifest


def _write_index(root: Path, schema: Schema, encoded: Columns) -> list[Any]:
    """Write the scalar fields again, for the whole dataset."""
    entries = []
    for field in schema:
        if field.is_fixed and field.shape == ():
            path = root / "index" / f"{field.name}.npy"
            path.parent.mkdir(exist_ok=True)
            np.save(path, encoded[field.name], allow_pickle=False)
            entries.append(describe_file(root, path))
    return entries


def write_dataset(
    root: Path, format: str, schema: Schema, columns: Mapping[str, Any], *, shard_rows: int | None = None
) -> Manifest:
    """Write a dataset of decoded columns into `root` (see the module) and return its manifest."""
    return write_encoded(root, format, schema, encode(schema, columns), shard_rows=shard_rows)


def manifest_document(root: Path) -> dict[str, Any]:
    """The manifest as JSON, without its checksum, so that a changed one is read too."""
    document: dict[str, Any] = json.loads(Layout(root).manifest.read_bytes())
    document.pop("sha256", None)  # unless a test has removed it
    return document


def open_shard(root: Path, manifest: Manifest, number: int = 0, **options: Any) -> Any:
    """The reader of one shard."""
    layout = Layout(root)
    return shards.open_shard(layout, manifest, manifest.shards[number], **options)


def read_rows(reader: Any, schema: Schema, rows: Sequence[int], fields: Sequence[str] | None = None) -> Columns:
    """Rows of a shard as encoded columns, varying values as bytes."""
    wanted = schema.select(None if fields is None else list(fields))
    out: Columns = {
        f.name: np.empty((len(rows), *f.fixed_shape), f.numpy_dtype) if f.is_fixed else [b""] * len(rows)
        for f in wanted
    }
    reader.read(np.asarray(rows, np.int64), wanted.names, out, np.arange(len(rows)))
    return {f.name: out[f.name] if f.is_fixed else [bytes(value) for value in out[f.name]] for f in wanted}


def assert_same(schema: Schema, found: Columns, expected: Columns, rows: Sequence[int] | None = None) -> None:
    """Whether encoded columns hold the same bytes; `rows` picks rows of `expected`."""
    for name, column in found.items():
        field = schema[name]
        picked = expected[name] if rows is None else [expected[name][row] for row in rows]
        if field.is_fixed:
            whole = np.asarray(picked, field.numpy_dtype).reshape(len(picked), *field.fixed_shape)
            assert column.dtype == field.numpy_dtype
            assert column.shape == whole.shape, name
            assert column.tobytes() == whole.tobytes(), name
        else:
            assert [bytes(value) for value in column] == [bytes(value) for value in picked], name


def assert_equal(found: Any, expected: Any) -> None:
    """Whether two values of a field are the same, with the same dtype."""
    if isinstance(expected, np.ndarray | np.generic):
        assert found.dtype == expected.dtype
        if expected.size == found.size == 0:  # rows of no bytes cannot be counted
            return
        assert np.array_equal(found, expected, equal_nan=expected.dtype.kind == "f")
    else:
        assert found == expected
