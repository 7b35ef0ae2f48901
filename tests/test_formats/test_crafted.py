"""Crafted indexes, whose checksums are right: our error or some data, never a crash, a hang or another error.

A crafted index can vouch for any values, so other data is no fault here.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.command import run_packer
from support.crafted import CraftedIndex, Rewrite, craft_index, every_byte
from support.datasets import encode, every_kind_schema, face_schema, fixed, ragged, text, values_for, write_encoded
from support.hostile import OURS, SAME, WRONG, outcomes

from shardspec.entries import Generation, Shard
from shardspec.formats import FORMATS
from shardspec.layout import Layout, describe_file
from shardspec.manifest import Manifest
from shardspec.schema import Schema

INDEXED = sorted(format for format in FORMATS if FORMATS[format].suffix)
FORMAT = pytest.mark.parametrize("format", INDEXED)
SCHEMAS = {
    "faces": (face_schema(8), 12),
    "few": (Schema((text("key"), fixed("image", "|u1", 100, 100, 3), fixed("label", "<i8"))), 20),
    "kinds": (every_kind_schema(), 9),
}
FEW, MANY = 60, 3000


def index_name(format: str) -> str:
    return f"shard-00000{FORMATS[format].suffix}.index"


def survey(root: Path, format: str, schema: Schema, rows: int, count: int) -> None:
    manifest = write_encoded(root, format, schema, encode(schema, values_for(schema, rows)))
    data_bytes = (root / f"shard-00000{FORMATS[format].suffix}").stat().st_size
    for checksums in (True, False):
        crafted = craft_index(root / index_name(format), count, int(checksums), data_bytes)
        found = outcomes(root, crafted, checksums=checksums)
        bad = [pair for pair in zip(crafted, found, strict=True) if pair[1] not in (SAME, OURS, WRONG)]
        assert not bad, bad[:3]
        assert Counter(found)[OURS] >= count // 4
    assert len(manifest.shards) == 1


@FORMAT
@pytest.mark.parametrize("schema", SCHEMAS)
def test_crafted_indexes(tmp_path: Path, format: str, schema: str) -> None:
    survey(tmp_path / "packed", format, *SCHEMAS[schema], FEW)


@pytest.mark.slow
@FORMAT
@pytest.mark.parametrize("schema", SCHEMAS)
def test_many_crafted_indexes(tmp_path: Path, format: str, schema: str) -> None:
    survey(tmp_path / "packed", format, *SCHEMAS[schema], MANY)


@pytest.mark.parametrize("format", ["hdf5", "tfrecord"])
def test_every_byte_of_the_facts_and_the_directory(tmp_path: Path, format: str) -> None:
    schema, rows = SCHEMAS["few"]
    write_encoded(tmp_path, format, schema, encode(schema, values_for(schema, rows)))
    found = outcomes(tmp_path, every_byte(tmp_path / index_name(format), (0, 1, 255)), checksums=True)
    assert set(found) == {SAME, OURS}


KEY, POINTS, FLAGS, IMAGE = range(4)
SMALL = Schema((text("key"), ragged("points", "<f4", 2), ragged("flags", "|b1"), fixed("image", "|u1", 300, 300, 3)))


def lies(format: str, data_bytes: int) -> dict[str, list[tuple[int, str, int, int]]]:
    """Claims that an index may make: section, array, number and value; of the formats that have the array."""
    start, width = ("runs", 2) if format in ("hdf5", "parquet") else ("starts", 2)
    out = {
        "a place beyond the file": [(IMAGE, start, width, data_bytes)],
        "a place so that the value ends beyond the file": [(IMAGE, start, width, data_bytes - 1)],
        "a place of 64 bits": [(IMAGE, start, width, 2**64 - 1)],
        "a size beyond the file": [(KEY, "sizes", 1, data_bytes + 1)],
        "a size of 64 bits": [(KEY, "sizes", 1, 2**64 - 1)],
        "sizes whose sum overflows": [(KEY, "sizes", row, 2**63 - 1) for row in range(4)],
        "a size that overlaps the next value": [(KEY, "sizes", 1, data_bytes // 2)],
        "part of a row": [(POINTS, "sizes", 1, 7)],
    }
    if format != "hdf5":
        out["values that overlap"] = [(KEY, "starts", 1, -1)]
    return out


@FORMAT
@pytest.mark.parametrize("checksums", [True, False])
def test_an_index_with_wrong_entries_is_an_error(tmp_path: Path, format: str, checksums: bool) -> None:
    """With numbers of 64 bits, too, so that sums of them may overflow."""
    write_encoded(tmp_path, format, SMALL, encode(SMALL, values_for(SMALL, 12)))
    data_bytes = (tmp_path / f"shard-00000{FORMATS[format].suffix}").stat().st_size
    crafted = []
    for changes in lies(format, data_bytes).values():
        index = CraftedIndex(tmp_path / index_name(format))
        index.widen()
        for section, array, number, value in changes:
            if value == -1:
                value = index.get(section, array, number - 1)
            index.set(section, array, number, value)
        crafted.append(index.sealed())
    plain = CraftedIndex(tmp_path / index_name(format))
    plain.widen()
    found = outcomes(tmp_path, [plain.sealed(), *crafted], checksums=checksums)
    assert dict(zip(["nothing", *lies(format, data_bytes)], found, strict=True)) == {
        "nothing": SAME,
        **dict.fromkeys(lies(format, data_bytes), OURS),
    }


@FORMAT
def test_the_index_of_another_shard_is_an_error(tmp_path: Path, format: str) -> None:
    """Of fewer rows, and of other fields."""
    schema, rows = SCHEMAS["few"]
    encoded = encode(schema, values_for(schema, rows))
    write_encoded(tmp_path / "a", format, schema, encoded)
    fewer = {name: column[:-1] for name, column in encoded.items()}
    renamed = Schema((text("key"), schema["image"], fixed("lapel", "<i8")))
    crafted = []
    for number, (fields, columns) in enumerate([(schema, fewer), (renamed, {**encoded, "lapel": encoded["label"]})]):
        root = tmp_path / str(number)
        write_encoded(root, format, fields, columns)
        data = (root / index_name(format)).read_bytes()
        crafted.append(
            Rewrite(index_name(format), [(0, (tmp_path / "a" / index_name(format)).stat().st_size, data.hex())])
        )
    assert set(outcomes(tmp_path / "a", crafted, checksums=True)) == {OURS}


def vouch(root: Path, manifest: Manifest, crafted: Rewrite) -> None:
    """Put a crafted file into a dataset, and its digest into the manifest."""
    path = root / crafted.file
    path.write_bytes(crafted.apply(path.read_bytes()))
    (generation,), (shard,) = manifest.generations, manifest.shards
    files = tuple(describe_file(root, root / entry.name) for entry in shard.files)
    shards = (Shard(shard.name, shard.samples, shard.block_rows, files),)
    changed = Generation("build", generation.fingerprint, {}, {}, generation.counts, shards)
    Layout(root).manifest.write_bytes(Manifest(manifest.format, manifest.schema, (changed,), manifest.files).dumps())


def test_commands_and_readers_survive_crafted_shards_with_matching_digests(tmp_path: Path) -> None:
    schema, rows = SCHEMAS["faces"]
    for format in ("hdf5", "lmdb"):
        root = tmp_path / format
        manifest = write_encoded(root, format, schema, encode(schema, values_for(schema, rows)))
        index = CraftedIndex(root / index_name(format))
        index.set(0, "sizes", 3, 2**31)
        vouch(root, manifest, index.sealed())
        for command in (
            ["verify", root],
            ["verify", "--deep", root],
            ["convert", root, tmp_path / f"{format}-out", "--format", "npy"],
        ):
            done = run_packer(*command, expect=1)
            assert "expected" in done.stdout + done.stderr
            assert "Traceback" not in done.stderr
        code = f"import readers; ds = readers.open_dataset({str(root)!r}, verify='digest'); ds[0]"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert (done.returncode, "ShardCorruptError" in done.stderr) == (1, True)


def test_a_crafted_npy_header_is_an_error_on_a_small_stack_too(tmp_path: Path) -> None:
    """Systems other than Linux give threads 512 KiB."""
    header = b"-" * 9000
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(12))
    code = f"""
import sys, threading
import numpy as np
from pathlib import Path
from readers.formats.npy import map_npy
def read():
    try:
        map_npy(Path({str(tmp_path / "a.npy")!r}), np.dtype("<f4"), (3,))
    except Exception as error:
        print(type(error).__name__)
threading.stack_size(1 << 19)
thread = threading.Thread(target=read)
thread.start()
thread.join()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ShardCorruptError\n")
