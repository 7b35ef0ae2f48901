"""Read every value of a shard, check its values, and describe what is wrong with them."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from packer.assembly.packed_rows import batch_rows
from packer.assembly.samples import codecs_of
from packer.workspace.hashing import DIGEST_BYTES, digest
from readers.formats.gather import without_advice
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
"""Most values of a field, or runs of damaged samples, that are listed for one shard; the rest are counted."""

_KEY = np.dtype((np.void, DIGEST_BYTES))


class Batch(NamedTuple):
    """Rows of a shard that were read together.

    Attributes
    ----------
    rows : range
    keys : list of (str or None)
        The key of each row, None if it cannot be read; empty if the dataset has no keys.
    columns : dict or None
        The encoded values; None if some of them cannot be read.
    faults : list of Fault
        What is wrong, by row of the batch.
    """

    rows: range
    keys: Sequence[str | None]
    columns: Columns | None
    faults: list[Fault]


class ShardWalk:
    """Reads the rows of a shard batch by batch, and checks their values.

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
        self._reader = open_shard(*self._shard)
        self._unchecked: ShardReader | None = None
        self._checks = ValueChecks(self._schema)

    def batches(self, *, damaged: bool = False) -> Iterator[Batch]:
        """Read and check all rows.

        Parameters
        ----------
        damaged : bool
            Whether to read rows one by one that cannot be read together.

        Raises
        ------
        DatasetError
            If rows cannot be read, without `damaged`.
        """
        shard = self._shard[2]
        step = batch_rows(shard)
        for first in range(0, shard.samples, step):
            rows = range(first, min(first + step, shard.samples))
            columns = self._try(rows)
            if isinstance(columns, DatasetError):
                if not damaged:
                    raise columns
                faults = [fault for place, row in enumerate(rows) for fault in self._faults_of_row(place, row)]
                yield Batch(rows, [self.key(row) for row in rows] if "key" in self._schema else [], None, faults)
            else:
                yield Batch(rows, _keys_in(columns), columns, list(self._checks.faults(columns)))

    def key(self, row: int) -> str | None:
        """Return the key of a row; None if it cannot be read.

        Ignores the checksums of the format, because they cover more than the key.
        """
        if "key" not in self._schema:
            return None
        try:
            if self._unchecked is None:
                self._unchecked = open_shard(*self._shard, checksums=False)
            (key,) = _keys_in(self._read(self._unchecked, range(row, row + 1), ["key"]))
        except DatasetError:
            return None
        return key

    def close(self) -> None:
        """Close the shard."""
        self._reader.close()
        if self._unchecked is not None:
            self._unchecked.close()

    def _faults_of_row(self, place: int, row: int) -> Iterator[Fault]:
        """Yield the fields of a row that cannot be read as one fault, or else its invalid values."""
        columns = self._try(range(row, row + 1))
        if not isinstance(columns, DatasetError):
            yield from (found._replace(row=place) for found in self._checks.faults(columns))
            return
        names = self._schema.names
        tried = {name: self._try(range(row, row + 1), [name]) for name in names}
        broken = [(name, found) for name, found in tried.items() if isinstance(found, DatasetError)]
        if not broken or len(broken) == len(names):
            yield Fault(place, "", self._describe(broken[0][1] if broken else columns))
            return
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        yield Fault(place, f"{broken[0][0]}{more}", self._describe(broken[0][1]))

    def _describe(self, error: DatasetError) -> str:
        return describe_error(error, self._shard[0])

    def _try(self, rows: range, fields: Sequence[str] | None = None) -> Columns | DatasetError:
        try:
            return self._read(self._reader, rows, self._schema.names if fields is None else fields)
        except DatasetError as error:
            return error

    def _read(self, reader: ShardReader, rows: range, fields: Sequence[str]) -> Columns:
        out = allocate(self._schema.select(list(fields)), len(rows))
        reader.read(np.arange(rows.start, rows.stop), fields, out, np.arange(len(rows)))
        return out


def describe_error(error: DatasetError, layout: Layout) -> str:
    """Return a reader's message without the advice and the dataset's folder, which the report already gives."""
    return without_advice(error).replace(f"{layout.root}/", "") or type(error).__name__


def _keys_in(columns: Columns) -> list[str]:
    return [bytes(key).decode(errors="replace") for key in columns.get("key", ())]


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
        A digest of each sample's key, up to where the shard could be read.
    """
    path = layout.shard(shard, manifest.format)
    listed: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    digests = np.zeros(shard.samples, _KEY)
    rows_read = 0
    try:
        with closing(ShardWalk(layout, manifest, shard)) as walk:
            for rows, keys, columns, faults in walk.batches():
                assert columns is not None
                if keys:
                    digests[rows.start : rows.stop] = np.array([digest(key) for key in columns["key"]], _KEY)
                rows_read = rows.stop
                for place, field, message in (*faults, *_index_faults(columns, index, start + rows.start)):
                    counts[field] += 1
                    if counts[field] <= FAULTS_LISTED:
                        row = f"{path}, row {rows[place]}{f' (key {keys[place]!r})' if keys else ''}"
                        listed.setdefault(field, []).append(f"{row}, {_of_field(field)}{message}")
    except DatasetError as error:
        listed.setdefault("", []).append(str(error))
    more = [
        f"{path}, {_of_field(field)}and {count - FAULTS_LISTED} more"
        for field, count in counts.items()
        if count > FAULTS_LISTED
    ]
    return [text for texts in listed.values() for text in texts] + more, digests[:rows_read]


def _of_field(field: str) -> str:
    name, _, more = field.partition(" ")
    return f"field {name!r}{' ' if more else ''}{more}: " if field else ""


class _DamagedRow(NamedTuple):
    """Damage of one row: its number in the shard, its key, and the first fault."""

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
    keys: list[str] = []
    bad: list[_DamagedRow] = []
    try:
        with closing(ShardWalk(layout, layout.load(), shard)) as walk:
            for batch in walk.batches(damaged=True):
                keys += [key for key in batch.keys if key is not None]
                first = {fault.row: fault for fault in reversed(batch.faults)}
                for place in sorted(first):
                    fault = f"{_of_field(first[place].field)}{first[place].message}"
                    bad.append(_DamagedRow(batch.rows[place], batch.keys[place] if batch.keys else None, fault))
                tried(len(batch.rows))
    except DatasetError as error:
        why = f"the shard cannot be opened ({describe_error(error, layout)})"
        bad = [_DamagedRow(row, None, why) for row in range(shard.samples)]
        tried(shard.samples)
    place_of_shard = f"the shard holds rows {start} to {start + shard.samples - 1} of the dataset"
    if keys:
        place_of_shard += f", keys {keys[0]!r} to {keys[-1]!r}"
    if not bad:
        return f"{place_of_shard}; all of them can be read, so which have changed is unknown"
    runs = [list(run) for _, run in groupby(enumerate(bad), lambda pair: (pair[1].row - pair[0], pair[1].fault))]
    texts = [_describe_run(start, [damage for _, damage in run]) for run in runs[:FAULTS_LISTED]]
    if len(runs) > FAULTS_LISTED:
        texts.append(f"and {sum(map(len, runs[FAULTS_LISTED:]))} more")
    return f"{place_of_shard}; {len(bad)} cannot be read whole: {'; '.join(texts)}"


def _describe_run(start: int, run: list[_DamagedRow]) -> str:
    """Describe one damaged row, or adjacent rows with the same damage."""
    (first, first_key, what), (last, last_key, _) = run[0], run[-1]
    if first == last:
        return f"row {start + first}{f' (key {first_key!r})' if first_key is not None else ''}: {what}"
    keys = f" (keys {first_key!r} to {last_key!r})" if first_key is not None and last_key is not None else ""
    return f"rows {start + first} to {start + last}{keys}: {what}"


def check_keys(shards: Sequence[tuple[Shard, int, npt.NDArray[Any]]], layout: Layout, manifest: Manifest) -> list[str]:
    """Report every key that more than one sample has.

    Parameters
    ----------
    shards : sequence of (Shard, int, ndarray)
        Each shard, the row in the dataset of its first row, and the digests of its keys.
    """
    if not shards:
        return []
    digests = np.concatenate([keys for _, _, keys in shards])
    rows = np.concatenate([start + np.arange(len(keys)) for _, start, keys in shards])
    words = digests.view(np.uint64).reshape(-1, 2)
    order = np.lexsort((words[:, 1], words[:, 0]))
    words = words[order]
    twins = np.flatnonzero((words[1:] == words[:-1]).all(axis=1))

    def key_of(row: int) -> str:
        shard, start = next((shard, start) for shard, start, keys in shards if row < start + len(keys))
        with closing(ShardWalk(layout, manifest, shard)) as walk:
            return repr(walk.key(row - start))

    texts = [
        f"{layout.root}: expected every key once, found {key_of(int(rows[order[twin]]))} in rows "
        f"{rows[order[twin]]} and {rows[order[twin + 1]]}"
        for twin in twins[:FAULTS_LISTED].tolist()
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
