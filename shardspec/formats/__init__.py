"""The table of formats: what a shard of each is called, and which classes write and read it.

A new format is one writer file, one reader file and one line here; the conformance tests, the benchmarks, ``verify``,
``convert`` and the command line pick it up from this table.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shardspec.errors import UsageError
from shardspec.formats.index import INDEX_SUFFIX
from shardspec.registry import Entry
from shardspec.wording import shorten


@dataclass(frozen=True)
class Format:
    """One format.

    Attributes
    ----------
    suffix : str
        Suffix of the shard's file, with the dot. Empty if a shard is a folder.
    reader, writer : Entry
    dataset : str
        Name of the dataset class in `readers`.
    sidecars : tuple of str
        Suffixes of further files that belong to each shard.
    libraries : tuple of str
        Distributions whose versions may decide a shard's bytes, apart from numpy.
    needs : tuple of str
        Modules without which it cannot be written, beside those that are always there.
    card : str or None
        Text of a file ``README.md`` beside the shards, for formats whose tools look for one.
    """

    suffix: str
    reader: Entry
    writer: Entry
    dataset: str
    sidecars: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    card: str | None = None


def _hugging_face_card(shards: str) -> str:
    """A dataset card that names the shards: https://huggingface.co/docs/hub/datasets-manual-configuration."""
    return f"""\
---
configs:
- config_name: default
  data_files:
  - split: train
    path: {shards}
---

A dataset packed by facepack: manifest.json says what it holds. \
The lines above say to `datasets.load_dataset` which files
are the data; without them it guesses by names, and takes those of the index.
"""


FORMATS: Mapping[str, Format] = {
    "hdf5": Format(
        ".h5",
        Entry("readers.formats.hdf5:HDF5ShardReader"),
        Entry("packer.assembly.writers.hdf5:HDF5ShardWriter", "hdf5"),
        "HDF5Dataset",
        sidecars=(".h5" + INDEX_SUFFIX,),
        libraries=("h5py",),
        needs=("h5py",),
    ),
    "lmdb": Format(
        ".lmdb",
        Entry("readers.formats.lmdb:LMDBShardReader"),
        Entry("packer.assembly.writers.lmdb:LMDBShardWriter"),
        "LMDBDataset",
        sidecars=(".lmdb" + INDEX_SUFFIX,),
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
        sidecars=(".parquet" + INDEX_SUFFIX,),
        libraries=("pyarrow",),
        needs=("pyarrow",),
        card=_hugging_face_card("shard-*.parquet"),
    ),
    "tfrecord": Format(
        ".tfrecord",
        Entry("readers.formats.tfrecord:TFRecordShardReader", "tfrecord"),
        Entry("packer.assembly.writers.tfrecord:TFRecordShardWriter", "tfrecord"),
        "TFRecordDataset",
        sidecars=(".idx", ".tfrecord" + INDEX_SUFFIX),
        needs=("google_crc32c",),
    ),
    "webdataset": Format(
        ".tar",
        Entry("readers.formats.webdataset:WebDatasetShardReader"),
        Entry("packer.assembly.writers.webdataset:WebDatasetShardWriter"),
        "WebDatasetDataset",
        sidecars=(".idx", ".tar" + INDEX_SUFFIX),
        card=_hugging_face_card("shard-*.tar"),
    ),
}


def get_format(name: str) -> Format:
    """The format of that name.

    Raises
    ------
    UsageError
        If there is none; the message lists the known names.
    """
    try:
        return FORMATS[name]
    except (KeyError, TypeError):  # or of a type that no key may have
        raise UsageError(f"unknown format {shorten(name)}: expected one of {', '.join(sorted(FORMATS))}") from None
