"""``packer add`` and ``packer drop-field``: fields stored next to the shards of a packed dataset."""

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from packer.assembly.columns import change_columns, has_columns
from packer.assembly.packed_rows import PackedRows, read_column
from packer.jobs.progress import ProgressListener, Stage, listener_of
from packer.jobs.result import Result
from packer.sources.tables.base import open_table
from packer.workspace.disk_list import text_list
from packer.workspace.folder import changing, output_folder
from shardspec.errors import UsageError
from shardspec.fields import field_name
from shardspec.layout import Layout, given_path
from shardspec.manifest import Manifest
from shardspec.schema import Field
from shardspec.typing.join import DatasetKeys, join_frame, key_columns, key_fields
from shardspec.wording import counted, did_you_mean, list_some, shorten


@dataclass(frozen=True, repr=False)
class ColumnsResult(Result):
    """Fields that were added to a packed dataset, or dropped from it.

    Attributes
    ----------
    path : Path
        The dataset's folder.
    manifest : Manifest
        Of the dataset as it is now.
    added, replaced, dropped : tuple of str
        Names of fields.
    rows : int
        Rows of the table that were used.
    missing : dict of str to int
        Number of samples without a value, by field.
    unknown : int
        Rows of the table that were skipped, because no sample has their key.
    notes : tuple of str
        Remarks on the table, a line each.
    found_finished : bool
        Whether the dataset already had the fields with equal values, so that nothing was done.
    """

    path: Path
    manifest: Manifest
    added: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    rows: int = 0
    missing: dict[str, int] | None = None
    unknown: int = 0
    notes: tuple[str, ...] = ()
    found_finished: bool = False

    def describe(self) -> str:
        """Describe the change, and the samples and rows that were left out."""
        done = [("added", self.added), ("replaced", self.replaced), ("dropped", self.dropped)]
        text = f"{self.path}: " + ", ".join(f"{what} {list_some(names)}" for what, names in done if names)
        if self.found_finished:
            text += "finished already, nothing was done: the dataset has these fields with equal values"
        if self.rows:
            text += f": {counted(self.rows, 'row')} of the table for {counted(self.manifest.samples, 'sample')}"
        for name, count in (self.missing or {}).items():
            text += f"\n{counted(count, 'sample')} without {name}: {name}_valid is false there"
        if self.unknown:
            text += f"\n{counted(self.unknown, 'row')} of the table skipped, because no sample has their keys"
        return "\n".join((text, *self.notes))

    def to_json(self) -> dict[str, Any]:
        """Return the same as JSON, with the digest of the dataset."""
        names = {name: list(getattr(self, name)) for name in ("added", "replaced", "dropped")}
        counts = {"rows": self.rows, "missing": dict(self.missing or {}), "unknown": self.unknown}
        return {
            "out": str(self.path),
            "digest": self.manifest.digest,
            **names,
            **counts,
            "notes": list(self.notes),
            "found_finished": self.found_finished,
        }


def add(
    dataset: str | os.PathLike[str],
    table: Any,
    *,
    on: str | Sequence[str] = "key",
    key: str | Sequence[str] | None = None,
    fields: Sequence[str] | None = None,
    allow_missing: bool = False,
    allow_unknown: bool = False,
    replace: bool = False,
    unquoted: bool = False,
    progress: bool | ProgressListener = True,
) -> ColumnsResult:
    """Add the columns of a table to a packed dataset as fields. No shard is touched.

    The values are written next to the shards, and read like any other field. The new fields appear in one step, so a
    killed call changes nothing. Readers that have the dataset open continue without them.

    Numbers keep the dtype of the table. In CSV and JSON lines, integers become ``<i8`` and other numbers ``<f8``. Lists
    of numbers become arrays. Texts stay text, except in a column ``label``, where they become classes.

    Parameters
    ----------
    dataset : path
        A packed dataset.
    table : path, or a table as for `readers.PackedDataset.join`
        A file: Parquet, CSV, TSV or JSON lines. In Python also a mapping of arrays, or a table of pandas, polars,
        pyarrow or another library with Arrow's C stream interface.
    on : str or sequence of str
        The dataset's field to compare with the keys: ``"key"``, or another field of text or integers. A row of the
        table goes to all samples with the same value, such as a row per video to all its frames (``"source"``). Several
        fields are compared together, such as ``["source", "frame"]`` for a row per frame.
    key : str or sequence of str, optional
        The table's column of keys, or one for each field of `on`; by default the columns named as `on`.
    fields : sequence of str, optional
        The columns to add; by default all but the keys.
    allow_missing : bool
        Whether to accept samples without a value. They get a sentinel (0, false, "", nothing; -1 for a class), and a field
        ``<field>_valid`` is false for them.
    allow_unknown : bool
        Whether to skip rows of the table whose key no sample has.
    replace : bool
        Whether to replace fields that were added before.
    unquoted : bool
        Whether a CSV or TSV file was written without quoting, so that quotation marks are ordinary characters.
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.

    Returns
    -------
    ColumnsResult

    Raises
    ------
    UsageError
        If the table cannot be read or matched; if samples have no value, or keys have no sample, and that is not
        allowed; if the dataset has a field of the same name.
    DatasetError
        If the dataset cannot be read.
    BuildLockedError
        If another process is at work in the folder.
    BuildError
        If a file cannot be written.
    """
    path, listener = output_folder(dataset, "dataset"), listener_of(progress)
    manifest = Layout(path).load()
    on_fields = key_fields(manifest.schema, on)
    file = open_table(given_path("table", table), unquoted) if isinstance(table, str | os.PathLike) else None
    columns_of_keys = key_columns(key, [field.name for field in on_fields])
    stay_texts = [column for column, field in zip(columns_of_keys, on_fields, strict=True) if field.kind == "text"]
    frame = table if file is None else file.frame(stay_texts)
    with changing(path) as (workspace, manifest), Stage(listener, "adding", 1, "tables") as stage:
        columns = {column.field for column in manifest.columns}
        join = partial(
            join_frame,
            frame,
            [_keys(path, manifest, field) for field in key_fields(manifest.schema, on)],
            replaceable=columns,
            key=key,
            fields=fields,
            allow_missing=allow_missing,
            allow_unknown=allow_unknown,
            what="table" if file is None else os.fspath(table),
        )
        joined = join(taken=set(manifest.schema.names) - columns)
        names = [field.name for field in joined.fields]
        gone = _with_validity(manifest, [name for name in names if name in columns])
        found_finished = not replace and gone == set(names) and has_columns(workspace, manifest, joined)
        if gone and not replace and not found_finished:
            join(taken=set(manifest.schema.names))  # raises an error that names the field
        for field in on_fields:
            if field.name in names:
                raise UsageError(option="on", expected="a field that is not replaced", found=shorten(field.name))
        changed = change_columns(workspace, manifest, gone, joined.fields, joined.columns)
        stage.advance()
    noted = {} if file is None else file.notes
    return ColumnsResult(
        path,
        changed,
        added=tuple(name for name in names if name not in columns),
        replaced=() if found_finished else tuple(name for name in names if name in columns),
        found_finished=found_finished,
        dropped=tuple(sorted(gone - set(names))),
        rows=joined.rows,
        missing=joined.missing,
        unknown=joined.unknown,
        notes=(*(note for name, note in noted.items() if not name or field_name(name) in names), *joined.notes),
    )


def drop_field(
    dataset: str | os.PathLike[str], fields: str | Sequence[str], *, progress: bool | ProgressListener = True
) -> ColumnsResult:
    """Remove fields that were added to a packed dataset, with their ``<field>_valid``. No shard is touched.

    Parameters
    ----------
    dataset : path
        A packed dataset.
    fields : str or sequence of str
        Names of added fields.
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.

    Returns
    -------
    ColumnsResult

    Raises
    ------
    UsageError
        If there is no such field, or it is stored in the shards.
    DatasetError, BuildLockedError, BuildError
        See `add`.
    """
    path, names = output_folder(dataset, "dataset"), [fields] if isinstance(fields, str) else list(fields)
    listener = listener_of(progress)
    with changing(path) as (workspace, manifest), Stage(listener, "dropping", len(names), "fields") as stage:
        columns = [column.field for column in manifest.columns]
        for name in names:
            if name not in columns:
                found = ", which is stored in the shards" if name in manifest.schema else did_you_mean(name, columns)
                raise UsageError(
                    place=path,
                    expected=f"an added field ({list_some(columns) or 'there is none'})",
                    found=f"{shorten(name)}{found}",
                )
        gone = _with_validity(manifest, names)
        changed = change_columns(workspace, manifest, gone, (), {})
        stage.advance(len(names))
    return ColumnsResult(path, changed, dropped=tuple(sorted(gone)))


def _keys(path: Path, manifest: Manifest, field: Field) -> DatasetKeys:
    """Read the values by which rows are found, and whether each value is known."""
    values: Any
    if field.is_fixed:
        values, valid = read_column(path, manifest, field.name), np.ones(manifest.samples, np.bool_)
    else:  # as texts in memory, the keys would take most of the memory
        values = text_list()
        with closing(PackedRows.of(path, check="size", manifest=manifest)) as rows:
            for batch in rows.batches([field.name]):
                values.extend(bytes(value).decode("utf-8", "surrogateescape") for value in batch[field.name])
        valid = np.fromiter((value != "" for value in values), np.bool_, manifest.samples)
    if (validity := manifest.schema.validity(field.name)) is not None:
        valid &= read_column(path, manifest, validity)
    return DatasetKeys(field, values, valid)


def _with_validity(manifest: Manifest, names: Sequence[str]) -> set[str]:
    """Return names of added fields, with those of their validity fields."""
    columns = {column.field for column in manifest.columns}
    marks = {manifest.schema.validity(name) for name in names}
    return {*names, *(mark for mark in marks if mark is not None and mark in columns)}
