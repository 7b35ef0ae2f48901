"""The layout: where things lie, and whether they are what the manifest says."""

from pathlib import Path

import pytest
from support.datasets import face_schema, values_for, write_dataset
from support.errors import raises

from shardspec.errors import DatasetError, ManifestError, NotADatasetError, ShardCorruptError, ShardMissingError
from shardspec.formats import FORMATS
from shardspec.layout import Layout, describe_file, sha256_file
from shardspec.manifest import Manifest


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A small dataset of two shards."""
    schema = face_schema(8)
    write_dataset(tmp_path / "out", "npy", schema, values_for(schema, 5), shard_rows=3)
    return tmp_path / "out"


@pytest.mark.parametrize("format", ["lmdb", "npy"])
def test_a_shard_is_opened_by_its_name_and_suffix(tmp_path: Path, format: str) -> None:
    schema = face_schema(8)
    manifest = write_dataset(tmp_path, format, schema, values_for(schema, 2))
    path = Layout(tmp_path).shard(manifest.shards[0], format)
    assert path.name == "shard-00000" + FORMATS[format].suffix
    assert path.exists()


def test_every_location_lies_inside_the_root(dataset: Path) -> None:
    layout = Layout(dataset)
    manifest = layout.load()
    entries = [*manifest.files, *(entry for shard in manifest.shards for entry in shard.files)]
    for path in (
        layout.manifest,
        layout.build,
        layout.card,
        *map(layout.file, entries),
    ):
        assert path.resolve().is_relative_to(dataset.resolve())


def test_a_whole_dataset_passes(dataset: Path) -> None:
    layout = Layout(dataset)
    manifest = layout.load()
    assert isinstance(manifest, Manifest)
    for shard in manifest.shards:
        layout.check_sizes(shard.files)
        for entry in shard.files:
            layout.check_digest(entry)
            assert describe_file(dataset, layout.file(entry)) == entry
            assert sha256_file(layout.file(entry)) == entry.sha256


def test_a_missing_file_is_named_with_what_was_expected(dataset: Path) -> None:
    layout = Layout(dataset)
    shard = layout.load().shards[1]
    entry = shard.files[0]
    layout.file(entry).unlink()
    with pytest.raises(ShardMissingError, match=f"{entry.name}: expected a file of {entry.bytes} bytes, found none"):
        layout.check_sizes(shard.files)


def test_a_file_instead_of_a_folder_is_a_missing_shard(dataset: Path) -> None:
    layout = Layout(dataset)
    shard = layout.load().shards[0]
    for entry in shard.files:
        layout.file(entry).unlink()
    (dataset / shard.name).rmdir()
    (dataset / shard.name).write_bytes(b"")
    with pytest.raises(ShardMissingError):
        layout.check_sizes(shard.files)


def test_a_file_that_was_cut_off_is_named_with_both_sizes(dataset: Path) -> None:
    layout = Layout(dataset)
    shard = layout.load().shards[0]
    entry = max(shard.files, key=lambda e: e.bytes)
    path = layout.file(entry)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ShardCorruptError, match=f"{entry.name}: expected {entry.bytes} bytes, found {entry.bytes - 1}"):
        layout.check_sizes(shard.files)


def test_a_flipped_bit_is_found_by_the_digest_alone(dataset: Path) -> None:
    layout = Layout(dataset)
    shard = layout.load().shards[0]
    entry = max(shard.files, key=lambda e: e.bytes)
    data = bytearray(layout.file(entry).read_bytes())
    data[-1] ^= 1
    layout.file(entry).write_bytes(bytes(data))
    layout.check_sizes(shard.files)
    with pytest.raises(ShardCorruptError, match=f"expected SHA-256 {entry.sha256}, found "):
        layout.check_digest(entry)


def test_the_error_describes_a_folder_that_is_not_a_dataset(tmp_path: Path) -> None:
    with raises(NotADatasetError, expected="a packed dataset with a manifest.json", found="no such folder"):
        Layout(tmp_path / "missing").load()
    with raises(
        NotADatasetError,
        expected="a packed dataset with a manifest.json",
        found="a folder without one: pack it first ('packer build')",
    ):
        Layout(tmp_path).load()
    (tmp_path / "file").write_text("x")
    with raises(NotADatasetError, expected="the folder of a packed dataset", found="a file"):
        Layout(tmp_path / "file").load()
    (tmp_path / ".build").mkdir()
    with pytest.raises(NotADatasetError, match="an interrupted writer that cannot be resumed"):
        Layout(tmp_path).load()
    (tmp_path / ".build" / "plan.json").write_text("{}")
    with raises(
        NotADatasetError, expected="a packed dataset", found="an unfinished build: repeat its command to resume it"
    ):
        Layout(tmp_path).load()
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(DatasetError, match="cannot be read"):
        Layout(tmp_path).load()


def test_a_damaged_manifest_is_named(dataset: Path) -> None:
    path = dataset / "manifest.json"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ManifestError, match=str(path)):
        Layout(dataset).load()
