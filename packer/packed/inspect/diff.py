"""``packer diff A B``: the samples and values in which two packed datasets differ."""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from operator import ne
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.assembly.samples import codecs_of
from packer.jobs.progress import ProgressListener, Stage, listener_of
from packer.jobs.result import Result
from packer.packed.export.tables import TABLES
from packer.sources.stores.packed import partial_folder
from packer.workspace.output import check_output, writing_output
from readers.formats.pool import ShardPool
from shardspec.columns import Columns, IntArray, allocate
from shardspec.errors import CodecError, UsageError
from shardspec.layout import given_path, layout_at, place_of
from shardspec.manifest import Manifest
from shardspec.registry import resolve
from shardspec.schema import Field, Schema
from shardspec.wording import counted, list_some, program, shorten

_ROWS, _BATCH_BYTES = 1 << 15, 32 << 20
"""Rows to read at a time: this number, or fewer with about that many bytes."""
_KEY = "key"
_ONLY_A, _ONLY_B = "only in A", "only in B"


@dataclass(frozen=True, repr=False)
class Difference(Result):
    """Differences between two packed datasets. Samples are compared by their key.

    Attributes
    ----------
    a, b : Path or str
        The datasets' folders, or their URLs.
    same : int
        Number of samples that are equal in all common fields.
    only_a, only_b : tuple of str
        Keys of the samples that the other dataset lacks.
    changed : dict of str to tuple of str
        Keys of the samples whose values differ, by field. Images whose pixels are equal do not differ, however they are
        stored.
    fields_a, fields_b : tuple of str
        Fields that the other dataset lacks.
    retyped : tuple of str
        Common fields of another kind, dtype or shape, whose values are not compared.
    table : Path or None
        The table that was written.
    """

    a: Path | str
    b: Path | str
    same: int
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    changed: Mapping[str, tuple[str, ...]]
    fields_a: tuple[str, ...]
    fields_b: tuple[str, ...]
    retyped: tuple[str, ...]
    table: Path | None = None

    @property
    def found(self) -> bool:
        """True if the datasets differ."""
        return any((self.only_a, self.only_b, self.changed, self.fields_a, self.fields_b, self.retyped))

    def rows(self) -> list[dict[str, str]]:
        """Return a row for each sample that differs: its ``key``, and its ``difference``.

        The difference is ``only in A``, ``only in B``, or the names of the fields joined by ``+``.
        """
        found: dict[str, list[str]] = defaultdict(list)
        for what, keys in ((_ONLY_A, self.only_a), (_ONLY_B, self.only_b), *self.changed.items()):
            for key in keys:
                found[key].append(what)
        return [{"key": key, "difference": "+".join(what)} for key, what in sorted(found.items())]

    def to_json(self) -> dict[str, Any]:
        """Return all attributes as JSON; paths as texts."""
        return {
            "a": str(self.a),
            "b": str(self.b),
            "same": self.same,
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
            "changed": {name: list(keys) for name, keys in self.changed.items()},
            "fields_a": list(self.fields_a),
            "fields_b": list(self.fields_b),
            "retyped": list(self.retyped),
            "table": None if self.table is None else str(self.table),
        }

    def describe(self) -> str:
        """Describe the differences, with the commands that show the samples."""
        lines = [f"A: {self.a}, B: {self.b}: {counted(self.same, 'equal sample')}"]
        for what, names in (
            ("fields only in A", self.fields_a),
            ("fields only in B", self.fields_b),
            ("fields of another type", self.retyped),
        ):
            lines += [f"{what}: {', '.join(names)}"] if names else []
        for what, keys in ((_ONLY_A, self.only_a), (_ONLY_B, self.only_b)):
            lines += (
                [f"{what}: {counted(len(keys), 'sample')}: {list_some(list(map(shorten, keys)), 3)}"] if keys else []
            )
        lines += [
            f"{name} differs: {counted(len(keys), 'sample')}: {list_some(list(map(shorten, keys)), 3)}"
            for name, keys in self.changed.items()
        ]
        if not self.found:
            lines[0] += ", no difference"
        elif self.table is not None and len(lines) > 1:
            lines += [
                f"to see them: {program()} view {place} --with {self.table}, with the filter difference != ''"
                for place in (self.a, self.b)
            ]
        return "\n".join(lines)


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    progress: bool | ProgressListener = True,
) -> Difference:
    """Compare the samples of two packed datasets by key, in any order, format and encoding.

    Shards with equal digests are not read. Images are compared by their bytes, and if these differ, by their pixels.

    Parameters
    ----------
    a, b : path
        The datasets.
    out : path, optional
        Table to write (.csv, .jsonl or .parquet) with a row for each sample that differs: ``key`` and ``difference``.
        ``packer view`` joins it (``--with``).
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.

    Returns
    -------
    Difference

    Raises
    ------
    UsageError
        If a dataset has no keys, or the table cannot be written.
    DatasetError
        If a dataset cannot be read.
    """
    table = None if out is None else given_path("out", out)
    folders = [partial_folder(place, name) for place, name in ((a, "a"), (b, "b"))]
    if table is not None:
        check_output(table, *(f".{suffix}" for suffix in TABLES), datasets=folders)
    found = _compare(_ComparedDataset(folders[0]), _ComparedDataset(folders[1]), listener_of(progress))
    if table is None:
        return found
    _write(table, found.rows())
    return replace(found, table=table)


def _write(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    path.unlink(missing_ok=True)
    write = resolve("table", path.suffix.lower().removeprefix("."), TABLES)
    with writing_output(path), closing(write(path, {"key": "text", "difference": "text"})) as opened:
        opened.write(rows)


class _ComparedDataset:
    """One of the two datasets."""

    def __init__(self, folder: Path) -> None:
        self.place = place_of(folder)
        self.pool = ShardPool(layout_at(folder.absolute()), "size", checksums=True)
        self.manifest: Manifest = self.pool.manifest
        self.schema: Schema = self.pool.schema
        if _KEY not in self.schema or self.schema[_KEY].kind != "text":
            raise UsageError(place=self.place, expected="samples with the field 'key'", found="none")
        self.codecs = codecs_of(self.schema)
        self.row_bytes = self.manifest.stored_bytes // max(1, self.manifest.samples)

    def read(self, rows: IntArray, names: Sequence[str]) -> Columns:
        out = allocate([self.schema[name] for name in names], len(rows))
        self.pool.read(rows, list(names), out, np.arange(len(rows)))
        return out

    def keys(self, rows: IntArray, stage: Stage) -> Iterator[bytes]:
        for start in range(0, len(rows), _ROWS):
            some = rows[start : start + _ROWS]
            yield from map(bytes, self.read(some, [_KEY])[_KEY])
            stage.advance(len(some))

    def decode(self, name: str, value: Any) -> Any:
        return value if self.schema[name].is_fixed else self.codecs[name].decode(value)


def _compare(one: _ComparedDataset, other: _ComparedDataset, listener: ProgressListener) -> Difference:
    names = [set(side.schema.names) for side in (one, other)]
    common = [name for name in one.schema.names if name in names[1]]
    retyped = tuple(name for name in common if _type_of(one.schema[name]) != _type_of(other.schema[name]))
    compared = [name for name in common if name not in retyped and name != _KEY]
    (rows, other_rows), skipped = _unequal_rows(one.manifest, other.manifest)
    with Stage(listener, "listing", len(rows) + len(other_rows), "samples") as stage:
        keys, other_keys = list(one.keys(rows, stage)), list(other.keys(other_rows, stage))
    rows_by_key = dict(zip(other_keys, other_rows.tolist(), strict=True))
    partners = np.array([rows_by_key.get(key, -1) for key in keys], np.int64)
    both = np.flatnonzero(partners >= 0)
    changed: dict[str, list[str]] = {}
    touched = np.zeros(len(both), np.bool_)
    step = max(1, min(_ROWS, _BATCH_BYTES // max(1, one.row_bytes, other.row_bytes)))
    with Stage(listener, "comparing", len(both), "samples") as stage:
        for start in range(0, len(both) if compared else 0, step):
            some = both[start : start + step]
            left, right = one.read(rows[some], compared), other.read(partners[some], compared)
            for name in compared:
                differs = _differ(one, other, name, left[name], right[name])
                if differs.any():
                    changed.setdefault(name, []).extend(_text(keys[at]) for at in some[differs].tolist())
                    touched[start : start + step] |= differs
            stage.advance(len(some))
    alone = rows_by_key.keys() - set(keys)
    return Difference(
        one.place,
        other.place,
        same=skipped + len(both) - int(touched.sum()),
        only_a=tuple(_text(keys[at]) for at in np.flatnonzero(partners < 0).tolist()),
        only_b=tuple(_text(key) for key in other_keys if key in alone),
        changed={name: tuple(found) for name, found in changed.items()},
        fields_a=tuple(name for name in one.schema.names if name not in names[1]),
        fields_b=tuple(name for name in other.schema.names if name not in names[0]),
        retyped=retyped,
    )


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")


def _type_of(field: Field) -> tuple[Any, ...]:
    """Return what must be equal for values to be comparable. Images may be stored in any way."""
    if field.is_image or len(field.shape) == 3:
        return ("image", field.dtype, len(field.shape))
    return field.kind, field.dtype, len(field.shape), field.classes


def _unequal_rows(one: Manifest, other: Manifest) -> tuple[tuple[IntArray, IntArray], int]:
    """Return the rows of both datasets outside of shards that both have, and the number of rows in these shards."""
    shards = [_rows_by_digest(manifest) for manifest in (one, other)]
    alike = one.schema == other.schema and _columns_of(one) == _columns_of(other)
    shared = {digest for digest, rows in shards[0].items() if alike and len(rows) == len(shards[1].get(digest, ()))}
    left, right = (
        np.concatenate([np.empty(0, np.int64), *(rows for digest, rows in side.items() if digest not in shared)])
        for side in shards
    )
    return (left, right), sum(len(shards[0][digest]) for digest in shared)


def _rows_by_digest(manifest: Manifest) -> dict[tuple[str, ...], npt.NDArray[np.int64]]:
    found: dict[tuple[str, ...], npt.NDArray[np.int64]] = {}
    start = 0
    for shard in manifest.shards:
        rows = np.arange(start, start + shard.samples)
        digest = tuple(entry.sha256 for entry in shard.files)
        found[digest] = np.concatenate([found[digest], rows]) if digest in found else rows
        start += shard.samples
    return found


def _columns_of(manifest: Manifest) -> set[tuple[str, ...]]:
    """Return the digests of the fields outside the shards, whose values belong to rows of the whole dataset."""
    order = tuple(entry.sha256 for shard in manifest.shards for entry in shard.files) if manifest.columns else ()
    return {(column.field, *(entry.sha256 for entry in column.files), *order) for column in manifest.columns}


def _differ(one: _ComparedDataset, other: _ComparedDataset, name: str, left: Any, right: Any) -> npt.NDArray[np.bool_]:
    """Return a bool array that is true for the rows whose encoded values differ."""
    fields = one.schema[name], other.schema[name]
    if all(field.is_fixed for field in fields):
        if left.shape != right.shape:
            return np.ones(len(left), np.bool_)
        shape = len(left), fields[0].row_bytes
        values = (np.ascontiguousarray(side).reshape(-1).view(np.uint8).reshape(shape) for side in (left, right))
        found: npt.NDArray[np.bool_] = np.any(np.not_equal(*values), axis=1)
        return found
    if any(field.is_fixed for field in fields) or fields[0].codec.name != fields[1].codec.name:
        differs = np.ones(len(left), np.bool_)
    else:
        differs = np.fromiter(map(ne, map(bytes, left), map(bytes, right)), np.bool_, len(left))
        if not fields[0].is_image:
            return differs
    for at in np.flatnonzero(differs).tolist():
        with suppress(CodecError):  # values that cannot be decoded differ if their bytes do
            x, y = one.decode(name, left[at]), other.decode(name, right[at])
            differs[at] = not np.array_equal(x, y) if isinstance(x, np.ndarray) else x != y
    return differs
