"""The contract on disk: the meaning of a packed dataset's bytes.

It has the schema, the manifest, the layout of the folder, codecs, formats, point layouts and errors. Importing it loads
only the standard library and NumPy; names resolve on first use. ``SPEC.md`` is the same contract in prose.
"""

from typing import TYPE_CHECKING

from shardspec.registry import Entry, lazy_names

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
            "SPEC_VERSION": Entry("shardspec.manifest:SPEC_VERSION"),
            "Columns": Entry("shardspec.columns:Columns"),
            "Counts": Entry("shardspec.entries:Counts"),
            "Field": Entry("shardspec.schema:Field"),
            "FileEntry": Entry("shardspec.entries:FileEntry"),
            "Generation": Entry("shardspec.entries:Generation"),
            "Layout": Entry("shardspec.layout:Layout"),
            "Manifest": Entry("shardspec.manifest:Manifest"),
            "NamedConfig": Entry("shardspec.schema:NamedConfig"),
            "Schema": Entry("shardspec.schema:Schema"),
            "Shard": Entry("shardspec.entries:Shard"),
            "ShardspecError": Entry("shardspec.errors:ShardspecError"),
            "allocate": Entry("shardspec.columns:allocate"),
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
