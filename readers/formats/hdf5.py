"""hdf5: a shard is one HDF5 file, whose datasets are chunked along their first axis."""

from readers.formats.indexed import IndexedReader
from shardspec.formats.hdf5 import CHUNK_BYTES
from shardspec.formats.index import Stored
from shardspec.schema import Field


class HDF5ShardReader(IndexedReader):
    """Reads one HDF5 file through its index; HDF5's library, whose process a crafted file can crash, is not used."""

    format = "hdf5"

    @staticmethod
    def stored(field: Field, block_rows: int) -> Stored:
        """See `IndexedReader.stored`."""
        unit = field.row_bytes if field.kind in ("fixed", "ragged") else 1
        rows = max(1, CHUNK_BYTES // unit)
        return Stored(unit, rows) if field.is_fixed else Stored(None, chunk_bytes=rows * unit, step=unit)
