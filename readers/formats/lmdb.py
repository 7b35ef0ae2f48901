"""lmdb: a shard is one single-file LMDB environment, whose values are the encoded bytes."""

from readers.formats.indexed import IndexedReader


class LMDBShardReader(IndexedReader):
    """Reads one LMDB file through its index.

    LMDB's library refuses to open a file twice in one process, hangs or fails after a fork, and trusts every page; the
    mapping has none of these problems and copies a batch with less work. LMDB has no checksums: a flipped bit of a
    value reads as another value, which only ``verify=`` finds.
    """

    format = "lmdb"
