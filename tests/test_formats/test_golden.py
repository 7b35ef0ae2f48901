"""Shards written once and committed: they read as what they were, and writers still write them.

``python -m support.golden`` wrote them; no test does.
"""

import json
import mmap
from importlib.metadata import version
from pathlib import Path

import pytest
from support.datasets import assert_same, open_shard, read_rows, write_encoded
from support.golden import LIBRARIES, SCHEMA, VERSIONS_NAME, golden_columns

from shardspec.formats import FORMATS
from shardspec.layout import Layout

GOLDEN = Path(__file__).parent / "golden"
FORMAT = pytest.mark.parametrize("format", sorted(FORMATS))


@FORMAT
def test_golden_shards_read_as_what_was_written(format: str) -> None:
    root = GOLDEN / format
    manifest = Layout(root).load()
    assert manifest.schema == SCHEMA
    assert manifest.format == format
    for entry in manifest.shards[0].files:
        Layout(root).check_digest(entry)
    reader = open_shard(root, manifest)
    assert_same(SCHEMA, read_rows(reader, SCHEMA, [0, 1, 2]), golden_columns())
    reader.close()


@FORMAT
def test_writers_still_write_the_golden_bytes(tmp_path: Path, format: str) -> None:
    versions = json.loads((GOLDEN / VERSIONS_NAME).read_text())
    if format in LIBRARIES and versions[format] != version(LIBRARIES[format]):
        pytest.skip(f"{LIBRARIES[format]} {versions[format]} wrote them")
    if format == "lmdb" and mmap.PAGESIZE != 4096:
        pytest.skip("LMDB's pages are the system's")
    written = write_encoded(tmp_path, format, SCHEMA, golden_columns())
    golden = Layout(GOLDEN / format).load()
    assert written.digest == golden.digest
    for entry in golden.shards[0].files:
        assert (tmp_path / entry.name).read_bytes() == (GOLDEN / format / entry.name).read_bytes()
