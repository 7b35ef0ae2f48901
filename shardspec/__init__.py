"""The contract on disk: what a packed dataset's bytes mean.

Holds the schema, the manifest, the layout of the folder, the codecs, the tables of formats and point layouts, and the errors.
Importing it loads the standard library and numpy only. ``SPEC.md`` beside this file is the same contract in prose.
"""

from shardspec.columns import Columns, allocate
from shardspec.entries import Counts, FileEntry, Generation, Shard
from shardspec.errors import ShardspecError
from shardspec.layout import Layout
from shardspec.manifest import SPEC_VERSION, Manifest
from shardspec.schema import Field, NamedConfig, Schema

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
