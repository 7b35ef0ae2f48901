"""Read every value of a shard, check its values, and describe what is wrong with them."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from packer.assembly.packed_rows import batch_rows
from packer.assembly.samples import codecs_of
from packer.workspace.hashing import DIGEST_BYTES, digest
from readers.formats.shards import ShardReader, open_shard
from shardspec.codecs.base import Codec
from shardspec.columns import Columns, allocate
from shardspec.entries import Column, Shard
from shardspec.errors import DatasetError
from shardspec.layout import Layout
from shardspec.manifest import Manifest
from shardspec.schema import NO_CLASS, Field, Schema

BoolArray = npt.NDArray[np.bool_]


class Fault(NamedTuple):
    """An invalid value: its row in the batch, its field, and a message with what was expected and found."""

    row: int
    field: str
    message: str


class ValueChecks:
    """Decodes every value of a batch and checks shapes, dtypes and ranges.

    Parameters
    ----------
    schema : Schema
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._codecs = codecs_of(schema)

    def faults(self, columns: Columns) -> Iterator[Fault]:
        """Yield everything that is wrong in a batch of encoded columns."""
        sides: npt.NDArray[np.float64] | None = None
        for field in self._schema:
            if field.is_fixed:
                yield from _fixed_faults(field, columns[field.name])
                continue
            shapes = np.full((len(columns[field.name]), 2), np.nan)
            for row, data in enumerate(columns[field.name]):
                shape, message = _decode(field, self._codecs[field.name], data)
                if message:
                    yield Fault(row, field.name, message)
                elif field.name == "image" and len(shape) == 3:
                    shapes[row] = shape[1], shape[0]
            if field.name == "image":
                sides = shapes
        if sides is None and "image" in self._schema and self._schema["image"].is_fixed:
            height, width = (*self._schema["image"].fixed_shape, 1, 1)[:2]
            sides = np.tile(np.array([width, height], np.float64), (len(columns["image"]), 1))
        yield from self._geometry_faults(columns, sides)

    def _geometry_faults(self, columns: Columns, sides: npt.NDArray[np.float64] | None) -> Iterator[Fault]:
        """Yield invalid points, boxes and matrices of face samples."""
        for name, (shape, wrong, expected) in _GEOMETRY.items():
            if name not in self._schema or not self._schema[name].is_fixed:
                continue
            field = self._schema[name]
            if field.dtype[1] != "f" or not _fits(field.fixed_shape, shape):
                continue
            values = columns[name].astype(np.float64)
            for row in np.flatnonzero(wrong(values, sides)).tolist():
                yield Fault(row, name, f"expected {expected}, found {np.array2string(values[row], threshold=12)}")


def _decode(field: Field, codec: Codec, data: Any) -> tuple[tuple[int, ...], str]:
    """Return the shape of a decoded value, and a description of what is wrong with it (empty if nothing)."""
    try:
        value = codec.decode(data)
    except Exception as error:  # any error of a library over hostile bytes is a finding
        return (), f"expected a value that decodes, found {type(error).__name__}: {error}"
    if not isinstance(value, np.ndarray):
        return (), ""
    fits = value.ndim == len(field.shape) and all(
        axis is None or axis == found for axis, found in zip(field.shape, value.shape, strict=True)
    )
    if not fits or value.dtype != field.numpy_dtype:
        return (), f"expected {field.dtype} of shape {field.shape}, found {value.dtype.str} of shape {value.shape}"
    return value.shape, ""


def _fixed_faults(field: Field, column: npt.NDArray[Any]) -> Iterator[Fault]:
    if field.dtype == "|b1":
        wrong = (column.view(np.uint8) > 1).reshape(len(column), -1).any(axis=1)
        for row in np.flatnonzero(wrong).tolist():
            yield Fault(row, field.name, "expected bytes 0 or 1 for a boolean, found others")
    if field.classes is not None:
        known = (column >= 0) & (column < len(field.classes))
        for row in np.flatnonzero(~known & (column != NO_CLASS)).tolist():
            message = f"expected a class of 0 to {len(field.classes) - 1}, or {NO_CLASS} for none, found {column[row]}"
            yield Fault(row, field.name, message)


def _not_finite(values: npt.NDArray[np.float64], _: Any) -> BoolArray:
    return np.asarray(~np.isfinite(values).reshape(len(values), -1).all(axis=1), np.bool_)


def _far_points(values: npt.NDArray[np.float64], sides: npt.NDArray[np.float64] | None) -> BoolArray:
    """Return which rows have points that are not finite, or further outside the image than its own size."""
    wrong = _not_finite(values, None)
    if sides is None:
        return wrong
    points = values.reshape(len(values), -1, 2)
    limits = sides[:, None, :]
    with np.errstate(invalid="ignore"):
        return wrong | ((points < -limits) | (points > 2 * limits)).any(axis=(1, 2))


def _bad_boxes(values: npt.NDArray[np.float64], _: Any) -> BoolArray:
    boxes = values.reshape(len(values), -1, 4)
    with np.errstate(invalid="ignore"):
        turned = (boxes[..., 0] > boxes[..., 2]) | (boxes[..., 1] > boxes[..., 3])
    return _not_finite(values, None) | np.asarray(turned.any(axis=1), np.bool_)


def _far_boxes(values: npt.NDArray[np.float64], sides: npt.NDArray[np.float64] | None) -> BoolArray:
    return _bad_boxes(values, None) | _far_points(values, sides)


def _flat_matrices(values: npt.NDArray[np.float64], _: Any) -> BoolArray:
    with np.errstate(all="ignore"):
        flat = values[:, 0, 0] * values[:, 1, 1] - values[:, 0, 1] * values[:, 1, 0] == 0
    return np.asarray(_not_finite(values, None) | flat, np.bool_)


_POINTS = "finite points, none further outside the image than its own size"
_Rule = tuple[tuple[int | None, ...], Callable[..., BoolArray], str]
_GEOMETRY: Mapping[str, _Rule] = {
    "landmarks": ((None, 2), _far_points, _POINTS),
    "hull": ((None, 2), _far_points, _POINTS),
    "regions": ((None, 4), _far_boxes, "finite boxes (left, top, right, bottom) about the image"),
    "box": ((4,), _bad_boxes, "a finite box (left, top, right, bottom)"),
    "matrix": ((2, 3), _flat_matrices, "a finite matrix that can be inverted"),
    "score": ((), _not_finite, "a finite number"),
    "time": ((), _not_finite, "a finite number of seconds"),
}


def _fits(shape: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    return len(shape) == len(expected) and all(e in (None, s) for s, e in zip(shape, expected, strict=True))


FAULTS_LISTED = 20
"""Most values of a field that are listed for one shard; the rest are counted."""

_KEY = np.dtype((np.void, DIGEST_BYTES))


class Batch(NamedTuple):
    """Rows of a shard that were read together.

    Attributes
    ----------
    rows : range
    columns : dict or None
        The encoded values; None if some of them cannot be read.
    faults : list of Fault
        What is wrong, by row of the batch.
    """

    rows: range
    columns: Columns | None
    faults: list[Fault]


class ShardWalk:
    """Reads the rows of a shard and checks their values.

    Parameters
    ----------
    layout : Layout
    manifest : Manifest
    shard : Shard or Column

    Raises
    ------
    DatasetError
        If the shard cannot be opened.
    """

    def __init__(self, layout: Layout, manifest: Manifest, shard: Shard | Column) -> None:
        self._schema = manifest.shard_schema if isinstance(shard, Shard) else manifest.schema.select([shard.field])
        self._shard = (layout, manifest, shard)
        self._release = layout.hold(shard.files)
        try:
            self._reader = open_shard(*self._shard)
        except BaseException:
            self._release()
            raise
        self._unchecked: ShardReader | None = None
        self._checks = ValueChecks(self._schema)

    def batches(self) -> Iterator[Batch]:
        """Read and check all rows, one by one if they cannot be read together."""
        shard = self._shard[2]
        step = batch_rows(shard.bytes / max(1, shard.samples))
        for first in range(0, shard.samples, step):
            yield from self._check(range(first, min(first + step, shard.samples)))

    def key(self, row: int) -> str | None:
        """Return the key of a row; None if it cannot be read.

        Ignores the checksums of the format, because they cover more than the key.
        """
        if "key" not in self._schema:
            return None
        try:
            if self._unchecked is None:
                self._unchecked = open_shard(*self._shard, checksums=False)
            (key,) = self._read(self._unchecked, range(row, row + 1), ["key"])["key"]
        except DatasetError:
            return None
        return bytes(key).decode(errors="replace")

    def close(self) -> None:
        """Close the shard."""
        self._reader.close()
        if self._unchecked is not None:
            self._unchecked.close()
        self._release()

    def _check(self, rows: range) -> Iterator[Batch]:
        try:
            columns = self._read(self._reader, rows, self._schema.names)
        except DatasetError as error:
            if len(rows) == 1:
                yield Batch(rows, None, [self._locate(rows, error)])
                return
            for row in rows:
                yield from self._check(range(row, row + 1))
        else:
            yield Batch(rows, columns, list(self._checks.faults(columns)))

    def _locate(self, row: range, error: DatasetError) -> Fault:
        """Return the first field of a row that cannot be read, if others can."""
        broken = []
        for name in self._schema.names:
            try:
                self._read(self._reader, row, [name])
            except DatasetError as found:
                broken.append((name, found))
        if 0 < len(broken) < len(self._schema):
            field, error = broken[0]
        else:
            field = ""
        return Fault(0, field, str(error).replace(f"{self._shard[0].root}/", ""))

    def _read(self, reader: ShardReader, rows: range, fields: Sequence[str]) -> Columns:
        out = allocate(self._schema.select(list(fields)), len(rows))
        reader.read(np.arange(rows.start, rows.stop), fields, out, np.arange(len(rows)))
        return out


def check_shard(
    layout: Layout, manifest: Manifest, shard: Shard | Column, start: int, index: Mapping[str, npt.NDArray[Any]]
) -> tuple[list[str], npt.NDArray[Any]]:
    """Decode and check every value of one shard, or of one column.

    Parameters
    ----------
    start : int
        The row in the dataset of the shard's first row.
    index : dict of str to ndarray
        The index of scalar fields, for the whole dataset.

    Returns
    -------
    problems : list of str
    keys : ndarray, (rows,)
        A digest of each sample's key; zeros for samples that cannot be read.
    """
    path = layout.shard(shard, manifest.format)
    listed: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    digests = np.zeros(shard.samples, _KEY)
    try:
        with closing(ShardWalk(layout, manifest, shard)) as walk:
            for rows, columns, faults in walk.batches():
                if columns is not None:
                    faults += _index_faults(columns, index, start + rows.start)
                    if "key" in columns:
                        digests[rows.start : rows.stop] = np.array([digest(key) for key in columns["key"]], _KEY)
                for place, field, message in faults:
                    counts[field] += 1
                    if counts[field] <= FAULTS_LISTED:
                        key = walk.key(rows[place])
                        row = f"{path}, row {rows[place]}{'' if key is None else f' (key {key!r})'}"
                        listed.setdefault(field, []).append(f"{row}, {_of_field(field)}{message}")
    except DatasetError as error:
        listed.setdefault("", []).append(str(error))
    more = [
        f"{path}, {_of_field(field)}and {count - FAULTS_LISTED} more"
        for field, count in counts.items()
        if count > FAULTS_LISTED
    ]
    return [text for texts in listed.values() for text in texts] + more, digests


def _of_field(field: str) -> str:
    return f"field {field!r}: " if field else ""


def check_keys(shards: Sequence[tuple[Shard, int, npt.NDArray[Any]]], layout: Layout, manifest: Manifest) -> list[str]:
    """Report every key that more than one sample has.

    Parameters
    ----------
    shards : sequence of (Shard, int, ndarray)
        Each shard, the row in the dataset of its first row, and the digests of its keys.
    """
    if not shards:
        return []
    words = np.concatenate([keys for _, _, keys in shards]).view(np.uint64).reshape(-1, 2)
    rows = np.flatnonzero(words.any(axis=1))
    rows = rows[np.lexsort((words[rows, 1], words[rows, 0]))]
    twins = np.flatnonzero((words[rows[1:]] == words[rows[:-1]]).all(axis=1))

    def key_of(row: int) -> str:
        shard, start = next((shard, start) for shard, start, keys in shards if row < start + len(keys))
        with closing(ShardWalk(layout, manifest, shard)) as walk:
            return repr(walk.key(row - start))

    texts = [
        f"{layout.root}: expected every key once, found {key_of(first)} in rows {first} and {second}"
        for first, second in zip(*(rows[twins[:FAULTS_LISTED] + at].tolist() for at in (0, 1)), strict=True)
    ]
    if len(twins) > FAULTS_LISTED:
        texts.append(f"{layout.root}: and {len(twins) - FAULTS_LISTED} more keys that occur twice")
    return texts


def _index_faults(columns: Columns, index: Mapping[str, npt.NDArray[Any]], start: int) -> list[Fault]:
    """Return the values that differ from the index in any bit."""
    faults = []
    for name, values in index.items():
        here = columns[name]
        there = np.ascontiguousarray(values[start : start + len(here)])
        if there.dtype != here.dtype or there.tobytes() == here.tobytes():
            continue
        bits = np.dtype((np.void, here.dtype.itemsize))
        for row in np.flatnonzero(there.view(bits) != here.view(bits)).tolist():
            faults.append(Fault(row, name, f"expected what the index has, {there[row]}, found {here[row]}"))
    return faults
