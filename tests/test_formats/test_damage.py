"""Damaged shards: our error or the right data, never a crash, a hang or another error; wrong data only if unchecked.

The reader is asked without the checks of size and digest that stand in front of it in use.
"""

from collections import Counter
from pathlib import Path

import pytest
from support.datasets import encode, every_kind_schema, face_schema, values_for, write_encoded
from support.hostile import OURS, SAME, WRONG, Change, damaged, flips, outcomes, truncations

from shardspec.errors import ShardCorruptError, ShardMissingError
from shardspec.formats import FORMATS
from shardspec.layout import Layout
from shardspec.schema import Schema

FORMAT = pytest.mark.parametrize("format", sorted(FORMATS))
UNCHECKED = ("lmdb", "npy", "webdataset")
"""Formats without checksums of values: a flipped bit of a value is another value, unless ``verify=`` compares the digests."""

FEW, MANY = 40, 500
SCHEMAS = {"faces": (face_schema(8), 12), "kinds": (every_kind_schema(), 9)}


def survey(root: Path, format: str, schema: Schema, rows: int, count: int, step: int) -> None:
    encoded = encode(schema, values_for(schema, rows))
    manifest = write_encoded(root, format, schema, encoded)
    flipped, cut = flips(root, manifest, encoded, count, seed=0), truncations(root, manifest, step)
    for checksums in (True, False):
        found = outcomes(root, flipped, checksums=checksums)
        allowed = {SAME, OURS} if checksums and format not in UNCHECKED else {SAME, OURS, WRONG}
        assert set(found) <= allowed, [pair for pair in zip(flipped, found, strict=True) if pair[1] not in allowed][:5]
        # Half of the flips hit values, which a format with checksums must notice, and one without must not crash over.
        counts = Counter(found)
        assert counts[OURS if checksums and format not in UNCHECKED else WRONG] >= count // 3
        assert set(outcomes(root, cut, checksums=checksums)) == {OURS}
    layout = Layout(root)
    for change in damaged(root, [*flipped, *cut]):
        entry = next(e for e in manifest.shards[0].files if e.name == change.file)
        with pytest.raises((ShardCorruptError, ShardMissingError)):
            layout.check_digest(entry)


@FORMAT
def test_flipped_bits_and_cut_files(tmp_path: Path, format: str) -> None:
    survey(tmp_path / "packed", format, *SCHEMAS["kinds"], FEW, 2048)


@pytest.mark.slow
@FORMAT
@pytest.mark.parametrize("schema", SCHEMAS)
def test_many_flipped_bits_and_every_64th_cut(tmp_path: Path, format: str, schema: str) -> None:
    survey(tmp_path / "packed", format, *SCHEMAS[schema], MANY, 64)


def test_a_change_alters_only_the_named_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    seen = [(tmp_path / "a").read_bytes() for _ in damaged(tmp_path, [Change("a", 1, 0), Change("a", 2)])]
    assert seen == [b"acc", b"ab"]
    assert (tmp_path / "a").read_bytes() == b"abc"
