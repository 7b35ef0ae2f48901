"""Packed datasets: map-style datasets of any format, read by the batch."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from readers.dataset.subset import DivisibleDataset
from readers.decode.decoding import Decoding
from readers.decode.plans import DecodePlan
from readers.decode.values import BatchLayout, allocate_values
from readers.formats.pool import RowsOfShards, ShardPool, Verify
from readers.order.order import Blocks, SampledRows
from readers.order.shuffle_choice import StoredData
from readers.staging.layout import CachedLayout, dataset_layout
from readers.transforms import AnyTransform
from shardspec.columns import Columns, IntArray, mark_missing, missing_in
from shardspec.errors import UsageError
from shardspec.formats import get_format
from shardspec.manifest import Manifest
from shardspec.schema import Field, Schema
from shardspec.typing.join import DatasetKeys, join_frame, key_fields
from shardspec.wording import counted, shorten

_COLUMN_CHUNK = 4096


class PackedDataset(DivisibleDataset):
    """A packed dataset of any format.

    ``ds[i]`` is a dict of numpy values: ``image`` (H, W, 3) uint8 RGB, text as ``str``. Opening a dataset reads only
    the manifest and the sizes of the shards. Shards are opened when they are first read, and hold no file descriptors.
    A dataset may be used from several threads and after a fork, and be pickled: open handles are not pickled.

    `open_dataset` makes it, and describes the parameters and errors.
    """

    format: ClassVar[str | None] = None

    def __init__(
        self,
        path: str | PathLike[str],
        fields: Sequence[str] | None = None,
        transform: AnyTransform | None = None,
        verify: Verify | bool = "size",
        checksums: bool = True,
        decode: Mapping[str, DecodePlan] | None = None,
        cache: str | PathLike[str] | None = None,
        cache_size: int | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(transform)
        if fields is not None and not _are_names(fields):
            raise UsageError(option="fields", expected="a list of names, or None for all", found=shorten(fields))
        layout = dataset_layout(path, cache, cache_size, storage_options)
        how: Verify = verify if isinstance(verify, str) else ("digest" if verify else "off")
        self.pool = ShardPool(layout, how, checksums)
        self.manifest: Manifest = self.pool.manifest
        found = self.manifest.format
        if self.format is not None and found != self.format:
            raise UsageError(
                place=layout.root,
                expected=f"a dataset of format {self.format!r}",
                found=f"{found!r}",
                hint=f"use {get_format(found).dataset}, or open_dataset for any format",
            )
        selected = self.manifest.schema.select(None if fields is None else list(fields))
        self._decoding = Decoding(self.pool, selected, {} if decode is None else decode)
        self._blocks = Blocks.of_shards(self.manifest.shards, whole=not layout.is_local)

    def __len__(self) -> int:
        return len(self.pool)

    def __repr__(self) -> str:
        place, shards = self.pool.layout.shown, len(self.manifest.shards)
        return (
            f"{type(self).__name__}({place!r}): {len(self)} samples ({', '.join(self.schema.names)}), "
            f"{self.manifest.format}, {counted(shards, 'shard')}"
        )

    @property
    def path(self) -> Path:
        """Folder of the dataset; of a remote dataset, the folder in the cache."""
        return self.pool.layout.root

    @property
    def schema(self) -> Schema:
        """Fields that are read."""
        return self._decoding.schema

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of ``label``; empty if there is no such field, or its classes have no names."""
        schema = self.pool.schema
        return (schema["label"].classes or ()) if "label" in schema else ()

    @property
    def small_fields(self) -> tuple[str, ...]:
        """Fields with a number or a text per sample, including those that are not read and those of joined tables."""
        return tuple(field.name for field in self.pool.schema if field.is_small)

    @property
    def blocks(self) -> Blocks:
        """Runs of rows that are cheap to read together."""
        return self._blocks

    @property
    def raw_layout(self) -> BatchLayout:
        """Layout of the values before the transform."""
        return self._decoding.layout

    @property
    def draws_at_random(self) -> bool:
        """True if reading draws from a sample's generator."""
        return super().draws_at_random or any(plan.random for plan in self._decoding.plans.values())

    def read_raw(self, picks: SampledRows, out: Columns, at: IntArray) -> None:
        """Read rows without the transform, row i into place ``at[i]`` of a batch."""
        self._decoding.read_into(picks, out, at)

    def with_decode(self, decode: Mapping[str, DecodePlan] | None) -> Self:
        """Return the same dataset with other decode plans (`SampleDataset.with_decode`)."""
        other = copy(self)
        other._decoding = Decoding(self.pool, self.schema, {} if decode is None else decode)
        other._layout = None
        return other

    @property
    def stored(self) -> tuple[StoredData, ...]:
        """The folder and the bytes of all shards and columns."""
        found, layout = StoredData(self.path, self.manifest.stored_bytes, self.manifest.digest), self.pool.layout
        if isinstance(layout, CachedLayout):
            largest = max((part.bytes for part in self.manifest.parts), default=0)
            found = replace(
                found, url=layout.url, shard_bytes=largest, fetched_bytes=found.bytes, cache=layout.cache,
                cache_bytes=layout.limit,
            )  # fmt: skip
        return (found,)

    def locate(self, picks: SampledRows) -> Iterator[RowsOfShards]:
        """Yield the rows that a read of some rows touches: `picks` themselves."""
        yield RowsOfShards(self.pool, picks.rows, self.schema.names)

    def describe(self, row: int) -> str:
        """Describe key and place of a row, for messages."""
        return self._decoding.describe(row)

    def column(self, name: str) -> npt.NDArray[Any] | list[Any]:
        """Return one field of the whole dataset, even if it is not among `fields`.

        Scalar fields come from the index, mapped into memory, without reading a shard. Any other field is read from the
        shards, and images are decoded, from the first row to the last.

        Missing numbers are masked, missing texts are None. Other fields have zeros or nothing instead;
        ``<field>_valid`` tells where.

        Returns
        -------
        ndarray, (N, *shape), read-only if it is mapped; a list of N if the shape varies
            A `numpy.ma.MaskedArray` if numbers are missing.
        """
        field = self.pool.schema[name]
        index = self.pool.map_index(field) if name in self.manifest.schema and field.is_scalar else None
        values = self._read_column(field) if index is None else index
        validity = self.pool.schema.validity(name) if field.is_small else None
        column: npt.NDArray[Any] | list[Any] = values
        if validity is not None:
            column = mark_missing(values, np.asarray(self.column(validity)))
        return column

    def _join(
        self, frame: Any, on: str | Sequence[str], required: npt.NDArray[np.bool_] | None, how: Mapping[str, Any]
    ) -> Self:
        schema = self.pool.schema
        keys = [self._keys(field) for field in key_fields(schema, on)]
        found = join_frame(frame, keys, taken=schema.names, required=required, **how)
        other = copy(self)
        other.pool = self.pool.join(found.fields, found.columns)
        other._decoding = Decoding(other.pool, Schema((*self.schema, *found.fields)), self._decoding.plans)
        other._layout = None
        return other

    def _keys(self, field: Field) -> DatasetKeys:
        column = self.column(field.name)
        valid = ~missing_in(column)
        if field.is_fixed:
            return DatasetKeys(field, np.ma.getdata(column), valid)
        texts = [value or "" for value in column]
        return DatasetKeys(field, texts, valid & np.array([text != "" for text in texts], np.bool_))

    def _read_column(self, field: Field) -> npt.NDArray[Any] | list[Any]:
        decoding = Decoding(self.pool, Schema((field,)), {})
        whole = allocate_values(decoding.layout, len(self))
        for start in range(0, len(self), _COLUMN_CHUNK):
            rows = np.arange(start, min(start + _COLUMN_CHUNK, len(self)))
            decoding.read_into(SampledRows(rows, np.zeros(len(rows), np.uint64), 0), whole, rows)
        column: npt.NDArray[Any] | list[Any] = whole[field.name]
        return column


def _are_names(fields: Any) -> bool:
    named = isinstance(fields, Collection) and not isinstance(fields, str) and len(fields) > 0
    return named and all(isinstance(name, str) for name in fields)


class HDF5Dataset(PackedDataset):
    """A packed dataset of HDF5 shards."""

    format = "hdf5"


class LMDBDataset(PackedDataset):
    """A packed dataset of LMDB shards."""

    format = "lmdb"


class NpyDataset(PackedDataset):
    """A packed dataset of npy shards."""

    format = "npy"


class ParquetDataset(PackedDataset):
    """A packed dataset of Parquet shards."""

    format = "parquet"


class TFRecordDataset(PackedDataset):
    """A packed dataset of TFRecord shards."""

    format = "tfrecord"


class WebDatasetDataset(PackedDataset):
    """A packed dataset of WebDataset shards: tar files."""

    format = "webdataset"


_CLASSES: Mapping[str | None, type[PackedDataset]] = {
    c.format: c for c in (HDF5Dataset, LMDBDataset, NpyDataset, ParquetDataset, TFRecordDataset, WebDatasetDataset)
}


def open_dataset(
    path: str | PathLike[str],
    fields: Sequence[str] | None = None,
    transform: AnyTransform | None = None,
    verify: Verify | bool = "size",
    checksums: bool = True,
    decode: Mapping[str, DecodePlan] | None = None,
    cache: str | PathLike[str] | None = None,
    cache_size: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> PackedDataset:
    """Open a packed dataset of any format.

    Parameters
    ----------
    path : path or str
        Folder of the dataset; or its URL in a store or on a web server, such as ``s3://bucket/faces``.
    fields : sequence of str, optional
        Fields to read, in this order; all by default. Other fields are not read from the disk.
    transform : callable, optional
        Called with every sample, a dict; returns the changed sample. A transform with an attribute ``seeded = True``,
        like those of `readers.augment`, also gets a generator that is a function of seed, epoch and row.
    verify : {"size", "digest", "off"} or bool
        ``"size"``: check now that every shard and column exists and has its size, and check the SHA-256 of columns and
        index files, once per process, before each is first used. ``"digest"``: also check that of shards. True is
        ``"digest"``, False is ``"off"``.
    checksums : bool
        Whether the format's own checksums, if any, are checked at every read.
    decode : dict of str to DecodePlan, optional
        For image fields: a crop or size to decode to (`RandomResizedCrop`, `CenterCrop`, `Resize`), the JPEG decoder's
        faster modes (`Whole`), or no decoding (`Encoded`). A crop or size for ``image`` also applies to its masks, by
        the nearest pixels; ``landmarks`` and other geometry of the stored image cannot be read then.
    cache : path, optional
        Folder to which the files of a remote dataset are downloaded; by default ``$FACEPACK_CACHE``, or ``~/.cache``.
        All processes of a machine share one download. Only files below ``facepack`` in this folder are ever deleted.
    cache_size : int or str, optional
        Bytes that the cache may hold, such as ``"500GB"``; by default ``$FACEPACK_CACHE_SIZE``, or 90 % of the free disk.
        If datasets that are open together give several sizes, the largest counts.
    storage_options : mapping, optional
        Credentials, region and endpoint of the store, by the names of obstore; by default from the environment. They
        are never pickled or shown.

    Returns
    -------
    PackedDataset
        Of the class for the format, such as `LMDBDataset`.

    Raises
    ------
    NotADatasetError, ManifestError, VersionError
        If there is no dataset, or it cannot be read.
    ShardMissingError, ShardCorruptError
        If a file is missing or differs.
    StoreError
        If a remote dataset cannot be read.
    UsageError
        If an argument is invalid, `cache_size` does not hold two of the largest shards, or a plan of
        `decode` would move the pixels under a field with coordinates.
    """
    dataset = PackedDataset(path, fields, transform, verify, checksums, decode, cache, cache_size, storage_options)
    # The class of a format adds only its name. Choosing it first would mean reading the manifest twice.
    dataset.__class__ = _CLASSES.get(dataset.manifest.format, PackedDataset)
    return dataset
