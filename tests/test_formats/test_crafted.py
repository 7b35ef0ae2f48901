"""Crafted shards, whose checksums are right: our error or some data, never a crash, a hang or another error.

A crafted checksum can vouch for any values, so other data is no fault here.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.command import run_packer
from support.crafted import Rewrite, craft_hdf5, craft_parquet, craft_webdataset, every_byte, new_footer, new_size
from support.datasets import encode, every_kind_schema, face_schema, fixed, text, values_for, write_encoded
from support.hostile import OURS, SAME, WRONG, outcomes

from shardspec.entries import Generation, Shard
from shardspec.layout import Layout, describe_file
from shardspec.manifest import Manifest
from shardspec.schema import Schema

CRAFTS = {"hdf5": craft_hdf5, "parquet": craft_parquet, "webdataset": craft_webdataset}
SCHEMAS = {
    "faces": (face_schema(8), 12),
    "few": (Schema((text("key"), fixed("image", "|u1", 100, 100, 3), fixed("label", "<i8"))), 20),
    "kinds": (every_kind_schema(), 9),
}
FEW, MANY = 120, 3000


def survey(root: Path, format: str, schema: Schema, rows: int, count: int) -> None:
    manifest = write_encoded(root, format, schema, encode(schema, values_for(schema, rows)))
    for checksums in (True, False):
        crafted = CRAFTS[format](root / manifest.shards[0].files[0].name, count, int(checksums))
        found = outcomes(root, crafted, checksums=checksums)
        bad = [pair for pair in zip(crafted, found, strict=True) if pair[1] not in (SAME, OURS, WRONG)]
        assert not bad, bad[:3]
        # Without checksums, our reader does not look at the headers of a tar file.
        assert Counter(found)[OURS] >= count // (4 if checksums or format != "webdataset" else 8)


@pytest.mark.parametrize("format", CRAFTS)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_crafted_structures(tmp_path: Path, format: str, schema: str) -> None:
    survey(tmp_path / "packed", format, *SCHEMAS[schema], FEW)


@pytest.mark.slow
@pytest.mark.parametrize("format", CRAFTS)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_many_crafted_structures(tmp_path: Path, format: str, schema: str) -> None:
    survey(tmp_path / "packed", format, *SCHEMAS[schema], MANY)


@pytest.mark.parametrize("structure", [b"BTHD", b"FRHP", b"FAHD"])
def test_every_byte_of_a_header_of_an_hdf5_file(tmp_path: Path, structure: bytes) -> None:
    """Some of these ended the process that gave them to the library, by SIGFPE."""
    schema, rows = SCHEMAS["few" if structure == b"FAHD" else "faces"]
    manifest = write_encoded(tmp_path, "hdf5", schema, encode(schema, values_for(schema, rows)))
    crafted = every_byte(tmp_path / manifest.shards[0].files[0].name, structure, (0, 1, 255))
    assert set(outcomes(tmp_path, crafted, checksums=True)) == {SAME, OURS}


FOOTERS = {
    "a schema that contradicts the columns": (b"%\x02\x18\x06source", b"%\x00\x18\x06source"),
    "a path of 2 ** 31 - 1 parts": (b"\x19\x18\x06source", b"\x19\xf8\xff\xff\xff\xff\x07\x06source"),
    "a name of 2 ** 63 bytes": (b"\x18\x06source", b"\x18" + b"\x80" * 9 + b"\x01source"),
    "a thousand structs in each other": (b"\x18\x06source", b"\x1c" * 1000 + b"\x18\x06source"),
}
"""Bytes of a footer and their replacement. The first crashed the process that gave it to the library, by SIGABRT."""


@pytest.mark.parametrize("what", FOOTERS)
def test_a_crafted_footer_of_a_parquet_file(tmp_path: Path, what: str) -> None:
    schema, rows = SCHEMAS["faces"]
    manifest = write_encoded(tmp_path, "parquet", schema, encode(schema, values_for(schema, rows)))
    crafted = new_footer(tmp_path / manifest.shards[0].files[0].name, *FOOTERS[what])
    # Nothing is read by the schema in the footer: that is the manifest's.
    assert outcomes(tmp_path, [crafted], checksums=True) == [SAME if "schema" in what else OURS]


def vouch(root: Path, manifest: Manifest, crafted: Rewrite) -> None:
    """Put a crafted file into a dataset, and its digest into the manifest."""
    path = root / crafted.file
    path.write_bytes(crafted.apply(path.read_bytes()))
    (generation,), (shard,) = manifest.generations, manifest.shards
    files = tuple(describe_file(root, root / entry.name) for entry in shard.files)
    shards = (Shard(shard.name, shard.samples, shard.block_rows, files),)
    changed = Generation("build", generation.fingerprint, {}, {}, generation.counts, shards)
    Layout(root).manifest.write_bytes(Manifest(manifest.format, manifest.schema, (changed,), manifest.files).dumps())


def test_commands_and_readers_survive_a_dataset_that_vouches_for_crafted_shards(tmp_path: Path) -> None:
    schema, rows = SCHEMAS["faces"]
    for format in CRAFTS:
        root = tmp_path / format
        manifest = write_encoded(root, format, schema, encode(schema, values_for(schema, rows)))
        path = root / manifest.shards[0].files[0].name
        if format == "hdf5":
            # The bytes of a B-tree's node, 0.
            crafted = next(change for change in every_byte(path, b"BTHD", (0,)) if change.place == 7)
        elif format == "webdataset":
            crafted = new_size(path.with_suffix(".idx"), b"key.txt", 10**17)
        else:
            crafted = new_footer(path, *FOOTERS["a path of 2 ** 31 - 1 parts"])
        vouch(root, manifest, crafted)
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
