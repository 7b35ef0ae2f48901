"""Tables in memory as further fields of a dataset: read, typed by the rules of the contract, and matched by a key."""

from shardspec.frames.cells import Cells
from shardspec.frames.join import DatasetKeys, JoinedColumns, join_frame, key_columns, key_fields

__all__ = ["Cells", "DatasetKeys", "JoinedColumns", "join_frame", "key_columns", "key_fields"]
