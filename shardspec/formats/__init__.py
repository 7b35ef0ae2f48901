"""The table of formats: names of files, and the modules that write and read them.

To add a format with an index, add a writer, a function that returns how the format stores a field, and an entry here. The
conformance tests, the benchmarks, ``verify``, ``convert`` and the command line use this table.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shardspec.errors import UsageError
from shardspec.formats.index import INDEX_SUFFIX
from shardspec.registry import ImportTarget
from shardspec.wording import shorten

_CRC32 = ImportTarget("zlib:crc32")


@dataclass(frozen=True)
class Format:
    """A format of shards.

    Attributes
    ----------
    suffix : str
        Suffix of the shard's file, with the dot. Empty if a shard is a folder.
    writer : ImportTarget
    dataset : str
        Name of the dataset class in `readers`.
    stored : ImportTarget or None
        Function that returns how a field is stored (`shardspec.formats.index.stored`); None if shards have no index.
    checksum : ImportTarget
        Function that computes the checksums in the index.
    sidecars : tuple of str
        Suffixes of further files of each shard.
    libraries : tuple of str
        Distributions, apart from numpy, whose versions may change a shard's bytes.
    needs : tuple of str
        Optional modules that the writer needs.
    card : bool
        Whether a dataset has a card, ``README.md``, because tools of this format look for one.
    """

    suffix: str
    writer: ImportTarget
    dataset: str
    stored: ImportTarget | None = None
    checksum: ImportTarget = _CRC32
    sidecars: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    card: bool = False


FORMATS: Mapping[str, Format] = {
    "hdf5": Format(
        ".h5",
        ImportTarget("packer.assembly.writers.hdf5:HDF5ShardWriter", "hdf5"),
        "HDF5Dataset",
        stored=ImportTarget("shardspec.formats.hdf5:stored"),
        sidecars=(".h5" + INDEX_SUFFIX,),
        libraries=("h5py",),
        needs=("h5py",),
    ),
    "lmdb": Format(
        ".lmdb",
        ImportTarget("packer.assembly.writers.lmdb:LMDBShardWriter"),
        "LMDBDataset",
        stored=ImportTarget("shardspec.formats.index:stored"),
        sidecars=(".lmdb" + INDEX_SUFFIX,),
    ),
    "npy": Format(
        "",
        ImportTarget("packer.assembly.writers.npy:NpyShardWriter"),
        "NpyDataset",
    ),
    "parquet": Format(
        ".parquet",
        ImportTarget("packer.assembly.writers.parquet:ParquetShardWriter", "parquet"),
        "ParquetDataset",
        stored=ImportTarget("shardspec.formats.parquet:stored"),
        sidecars=(".parquet" + INDEX_SUFFIX,),
        libraries=("pyarrow",),
        needs=("pyarrow",),
        card=True,
    ),
    "tfrecord": Format(
        ".tfrecord",
        ImportTarget("packer.assembly.writers.tfrecord:TFRecordShardWriter"),
        "TFRecordDataset",
        stored=ImportTarget("shardspec.formats.tfrecord:stored"),
        checksum=ImportTarget("google_crc32c:value"),
        sidecars=(".idx", ".tfrecord" + INDEX_SUFFIX),
    ),
    "webdataset": Format(
        ".tar",
        ImportTarget("packer.assembly.writers.webdataset:WebDatasetShardWriter"),
        "WebDatasetDataset",
        stored=ImportTarget("shardspec.formats.webdataset:stored"),
        sidecars=(".idx", ".tar" + INDEX_SUFFIX),
        card=True,
    ),
}


def get_format(name: str) -> Format:
    """Return the format with a name; `UsageError` if there is none."""
    try:
        return FORMATS[name]
    except (KeyError, TypeError):  # TypeError if the name is not hashable
        raise UsageError(f"unknown format {shorten(name)}: expected one of {', '.join(sorted(FORMATS))}") from None
