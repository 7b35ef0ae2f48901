"""The table of formats: what a shard of each is called, who writes it, who reads it.

A new format is one writer file, one reader file and one line here; the conformance tests, the benchmarks, ``verify``,
``convert`` and the command line pick it up from this table.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shardspec.errors import UsageError
from shardspec.registry import Entry


@dataclass(frozen=True)
class Format:
    """One format.

    Attributes
    ----------
    suffix : str
        Of the shard's file, with the dot. Empty where a shard is a folder.
    reader, writer : Entry
    dataset : str
        Name of the dataset class in `readers`.
    sidecar : str or None
        Suffix of a second file that belongs to each shard.
    """

    suffix: str
    reader: Entry
    writer: Entry
    dataset: str
    sidecar: str | None = None


FORMATS: Mapping[str, Format] = {
    "hdf5": Format(
        ".h5",
        Entry("readers.formats.hdf5:HDF5ShardReader"),
        Entry("packer.assembly.writers.hdf5:HDF5ShardWriter", "hdf5"),
        "HDF5Dataset",
    ),
    "lmdb": Format(
        ".lmdb",
        Entry("readers.formats.lmdb:LMDBShardReader"),
        Entry("packer.assembly.writers.lmdb:LMDBShardWriter"),
        "LMDBDataset",
    ),
    "npy": Format(
        "",
        Entry("readers.formats.npy:NpyShardReader"),
        Entry("packer.assembly.writers.npy:NpyShardWriter"),
        "NpyDataset",
    ),
    "parquet": Format(
        ".parquet",
        Entry("readers.formats.parquet:ParquetShardReader"),
        Entry("packer.assembly.writers.parquet:ParquetShardWriter", "parquet"),
        "ParquetDataset",
    ),
    "tfrecord": Format(
        ".tfrecord",
        Entry("readers.formats.tfrecord:TFRecordShardReader", "tfrecord"),
        Entry("packer.assembly.writers.tfrecord:TFRecordShardWriter", "tfrecord"),
        "TFRecordDataset",
        sidecar=".idx",
    ),
}


def get_format(name: str) -> Format:
    """The format of that name; an unknown one is a `UsageError` that lists the known."""
    try:
        return FORMATS[name]
    except KeyError:
        raise UsageError(f"unknown format {name!r}: expected one of {', '.join(sorted(FORMATS))}") from None
