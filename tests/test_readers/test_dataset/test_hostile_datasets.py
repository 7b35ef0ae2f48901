"""Datasets of unknown origin: manifests that lie, and other things in place of files. Always an error of ours, soon."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from support.command import run_packer
from support.datasets import fixed, manifest_document, picture, ragged, text, values_for, write_dataset

import readers
from readers import CenterCrop, Whole, open_dataset
from readers.formats import shards as shards_module
from readers.formats.mapping import mappings_held
from shardspec.errors import CodecError, DatasetError, ManifestError, ShardspecError
from shardspec.formats import FORMATS
from shardspec.layout import Layout
from shardspec.manifest import MANIFEST_BYTES_MAX
from shardspec.schema import Schema

SCHEMA = Schema(
    (
        text("key"),
        fixed("image", "|u1", 16, 16, 3),
        picture("photo", "png"),
        fixed("label", "<i8"),
        ragged("points", "<f4", 2),
    )
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small dataset of two LMDB shards."""
    write_dataset(tmp_path / "d", "lmdb", SCHEMA, values_for(SCHEMA, 6), shard_rows=3)
    return tmp_path / "d"


def change(root: Path, *changes: tuple[tuple[Any, ...], Any]) -> None:
    """Put values at places of the manifest."""
    path = root / "manifest.json"
    document = manifest_document(path.parent)
    for place, value in changes:
        target = document
        for key in place[:-1]:
            target = target[key]
        target[place[-1]] = value
    path.write_text(json.dumps(document))


def read_everything(root: Path) -> None:
    """What a user may do with a dataset."""
    dataset = open_dataset(root)
    next(iter(dataset.sampler(shuffle="full")))
    next(iter(dataset.sampler(shuffle="blocks")))
    for row in (0, len(dataset) - 1):
        dataset[row]
    dataset.column("label")


COUNTS, FIRST = ("generations", 0, "counts"), ("generations", 0, "shards", 0)


@pytest.mark.parametrize("format", sorted(FORMATS))
@pytest.mark.parametrize("count", [2**62, 2**63, 10**30, 10**9])
@pytest.mark.parametrize("bytes_too", [False, True])
def test_more_samples_than_the_files_can_hold(tmp_path: Path, format: str, count: int, bytes_too: bool) -> None:
    write_dataset(tmp_path / "d", format, SCHEMA, values_for(SCHEMA, 6), shard_rows=3)
    changes: list[tuple[tuple[Any, ...], Any]] = [((*FIRST, "samples"), count), ((*COUNTS, "samples"), count + 3)]
    if bytes_too:
        changes.append(((*FIRST, "files", 0, "bytes"), min(2**63 - 1, count * 1000)))
    change(tmp_path / "d", *changes)
    with pytest.raises(DatasetError):
        read_everything(tmp_path / "d")
    run_packer("verify", tmp_path / "d", expect=1)


@pytest.mark.parametrize("field", range(len(SCHEMA)))
@pytest.mark.parametrize("shape", [[10**9, 10**9], [10**9, 10**9, 3], [None, 10**9, 10**9], [10**5, 10**5, 3], [10**9]])
def test_shapes_that_no_memory_holds(root: Path, field: int, shape: list[int | None]) -> None:
    change(root, (("schema", "fields", field, "shape"), shape))
    try:
        dataset = open_dataset(root)
    except ManifestError:
        return
    assert SCHEMA.fields[field].kind == "ragged"  # whose values are as long as their bytes say
    for row in range(6):
        with suppress(ShardspecError):
            assert len(dataset[row]["points"]) == 0


@pytest.mark.parametrize("block_rows", [2**63 - 1, 2**62, 2**31])
def test_blocks_longer_than_the_shard_are_the_shard(root: Path, block_rows: int) -> None:
    change(root, ((*FIRST, "block_rows"), block_rows))
    dataset = open_dataset(root)
    assert sorted(dataset.sampler(shuffle="blocks")) == list(range(6))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ((*FIRST, "block_rows"), 2**63, "block_rows: expected an integer of 64 bits, found 9223372036854775808"),
        ((*FIRST, "files", 0, "bytes"), 10**30, "bytes: expected an integer of 64 bits"),
        (
            (*FIRST, "files", 0, "name"),
            "shard-00000." + "x" * 10_000,
            "name: expected at most 255 characters, found 10012",
        ),
        ((*FIRST, "name"), "x" * 10_000, "expected a file or folder called"),
        (("schema", "fields"), [{}] * 1_000_000, "schema.fields: expected at most 10000 fields, found 1000000"),
        (("schema", "fields"), [fixed(f"f{n}", "<i8").to_json() for n in range(10_001)], "at most 10000 fields"),
        (("files",), [{"name": n} for n in range(200_000)], "and 980 more at least"),
        (("format",), "x" * 10_000, "format: expected one of"),
    ],
)
def test_manifests_beyond_bounds_are_reported_within_a_screen(
    root: Path, place: tuple[Any, ...], value: Any, message: str
) -> None:
    change(root, (place, value))
    done = run_packer("inspect", root, expect=1)
    assert message in done.stderr
    assert len(done.stderr) < 8_000


def test_a_manifest_beyond_its_size_is_not_read(root: Path) -> None:
    os.truncate(root / "manifest.json", 1 << 40)  # sparse
    with pytest.raises(ManifestError, match=f"expected at most {MANIFEST_BYTES_MAX} bytes, found {1 << 40}"):
        open_dataset(root)


def put_pipe(path: Path) -> None:
    os.mkfifo(path)


def put_folder(path: Path) -> None:
    path.mkdir()


def put_socket(path: Path) -> None:
    where = Path.cwd()
    os.chdir(path.parent)  # a socket's address is short
    try:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(path.name)
    finally:
        os.chdir(where)


def put_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("put", [put_pipe, put_folder, put_socket, put_device])
@pytest.mark.parametrize("name", ["manifest.json", "shard-00000.lmdb", "index/label.npy"])
def test_pipes_and_devices_are_neither_waited_for_nor_read(root: Path, put: Callable[[Path], None], name: str) -> None:
    (root / name).unlink()
    put(root / name)
    if name != "index/label.npy":
        with pytest.raises(DatasetError, match=name):
            open_dataset(root)
    if name != "manifest.json":
        dataset = open_dataset(root, verify=name == "index/label.npy")
        with pytest.raises(DatasetError):
            dataset[0] if name.startswith("shard") else dataset.column("label")
    done = run_packer("verify", root, "--deep", expect=1)
    assert name in done.stdout + done.stderr


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_a_file_of_holes_is_refused_before_it_is_hashed(tmp_path: Path, format: str) -> None:
    """Of a size that no disk holds, and the manifest says the same."""
    write_dataset(tmp_path / "d", format, SCHEMA, values_for(SCHEMA, 6), shard_rows=3)
    entry = Layout(tmp_path / "d").load().shards[0].files[0]
    os.truncate(tmp_path / "d" / entry.name, size := 1 << 43)
    change(tmp_path / "d", ((*FIRST, "files", 0, "bytes"), size))
    done = run_packer("verify", tmp_path / "d", expect=1)
    assert f"expected a file of {size} bytes, found a sparse file with" in done.stdout + done.stderr
    with pytest.raises(DatasetError):
        open_dataset(tmp_path / "d", verify=True)[0]
    with suppress(DatasetError):  # what lies in front of the holes may be whole
        open_dataset(tmp_path / "d")[0]


def large(side: int = 65_500) -> bytes:
    """A small JPEG whose header says that it is large."""
    data = bytearray(simplejpeg.encode_jpeg(np.zeros((64, 64, 3), np.uint8)))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = side.to_bytes(2, "big") * 2
    return bytes(data)


_READ = r"""
import re, sys
from readers import CenterCrop, Whole, open_dataset
from shardspec.errors import CodecError
for decode in ({}, {"image": Whole()}, {"image": CenterCrop(32)}):
    try:
        open_dataset(sys.argv[1], decode=decode)[0]
    except CodecError as error:
        print(error)
# Not `ru_maxrss`: it begins with what the process that started this one took.
status = open("/proc/self/status").read()
print(int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) // 1024)
"""


@pytest.mark.parametrize("size", [None, 64])
def test_the_size_of_an_image_is_checked_before_decoding(tmp_path: Path, size: int | None) -> None:
    schema = Schema((text("key"), picture("image", "jpeg", size)))
    image = np.zeros((64, 64, 3), np.uint8)
    write_dataset(tmp_path / "d", "npy", schema, {"key": ["a"], "image": [image]})
    path = tmp_path / "d" / "shard-00000" / "image.bin"
    stored, data = path.read_bytes(), large()
    at, header = stored.index(b"\xff\xc0") + 5, data.index(b"\xff\xc0") + 5
    path.write_bytes(stored[:at] + data[header : header + 4] + stored[at + 4 :])
    done = subprocess.run(
        [sys.executable, "-c", _READ, str(tmp_path / "d")], capture_output=True, text=True, check=True
    )
    *errors, megabytes = done.stdout.splitlines()
    assert len(errors) == 3, done.stdout
    assert int(megabytes) < 2_000
    if size is None:
        assert "expected at most 178956970 pixels, found an image of 65500 x 65500" in errors[0]


def test_images_of_another_size_than_the_field_says(tmp_path: Path) -> None:
    for codec in ("png", "webp", "jpeg"):
        schema = Schema((text("key"), picture("image", codec)))
        write_dataset(tmp_path / codec, "npy", schema, {"key": ["a"], "image": [np.zeros((40, 30, 3), np.uint8)]})
        change(tmp_path / codec, (("schema", "fields", 1, "shape"), [None, 32, 3]))
        for decode in ({}, {"image": Whole()}, {"image": CenterCrop(8)}):
            with pytest.raises(CodecError, match="30 x 40"):
                open_dataset(tmp_path / codec, decode=decode)[0]


def test_files_mapped_at_once_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Schema((text("key"), *(fixed(f"f{number}", "<i8") for number in range(12))))
    rows, limit = 60, 100
    values = values_for(schema, rows)
    write_dataset(tmp_path / "d", "npy", schema, values, shard_rows=1)
    monkeypatch.setattr(shards_module, "MAX_MAPPINGS", limit + mappings_held())
    dataset = readers.NpyDataset(tmp_path / "d")
    most = 0
    for start in range(0, rows, 10):
        found = dataset.read_batch(range(start, start + 10))
        assert found["f3"].tolist() == values["f3"][start : start + 10].tolist()
        most = max(most, mappings_held())
    assert most <= shards_module.MAX_MAPPINGS + 14
    assert dataset.read_batch(range(rows))["key"] == values["key"]
    shards_module.open_shards.drop(dataset.pool.number)
    assert mappings_held() <= shards_module.MAX_MAPPINGS - limit
