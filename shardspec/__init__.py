"""The on-disk contract: how a packed dataset is stored.

The package contains the schema, the manifest, the folder layout, codecs, formats, point layouts and errors. Importing
it loads only the standard library and NumPy; names resolve on first use. ``SPEC.md`` is the same contract in prose.
"""

from typing import TYPE_CHECKING

from shardspec.registry import ImportTarget, lazy_names

if TYPE_CHECKING:
    from shardspec.columns import Columns, allocate
    from shardspec.entries import Counts, FileEntry, Generation, Shard
    from shardspec.errors import ShardspecError
    from shardspec.layout import Layout
    from shardspec.manifest import SPEC_VERSION, Manifest
    from shardspec.schema import Field, NamedConfig, Schema
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "SPEC_VERSION": ImportTarget("shardspec.manifest:SPEC_VERSION"),
            "Columns": ImportTarget("shardspec.columns:Columns"),
            "Counts": ImportTarget("shardspec.entries:Counts"),
            "Field": ImportTarget("shardspec.schema:Field"),
            "FileEntry": ImportTarget("shardspec.entries:FileEntry"),
            "Generation": ImportTarget("shardspec.entries:Generation"),
            "Layout": ImportTarget("shardspec.layout:Layout"),
            "Manifest": ImportTarget("shardspec.manifest:Manifest"),
            "NamedConfig": ImportTarget("shardspec.schema:NamedConfig"),
            "Schema": ImportTarget("shardspec.schema:Schema"),
            "Shard": ImportTarget("shardspec.entries:Shard"),
            "ShardspecError": ImportTarget("shardspec.errors:ShardspecError"),
            "allocate": ImportTarget("shardspec.columns:allocate"),
        },
    )

__all__ = [
    "SPEC_VERSION",
    "Columns",
    "Counts",
    "Field",
    "FileEntry",
    "Generation",
    "Layout",
    "Manifest",
    "NamedConfig",
    "Schema",
    "Shard",
    "ShardspecError",
    "allocate",
]
