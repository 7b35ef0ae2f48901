"""Packed datasets that are damaged, or asked for what there is not."""

import json
import shutil

import numpy as np
import pytest
from support.batches import error_of
from support.crops import astronaut_crops, keys
from support.datasets import manifest_document, picture, text, write_dataset
from support.errors import raises
from torch.utils.data import DataLoader

import readers
from readers import open_dataset
from shardspec.errors import (
    CodecError,
    NotADatasetError,
    ShardCorruptError,
    ShardMissingError,
    UsageError,
    VersionError,
)
from shardspec.layout import Layout
from shardspec.schema import Schema


def test_a_missing_shard(tmp_path, jpeg_path):
    shutil.copytree(jpeg_path, tmp_path / "d")
    (tmp_path / "d" / "shard-00001.lmdb").unlink()
    with pytest.raises(ShardMissingError, match=r"shard-00001\.lmdb: expected a file of [0-9]+ bytes, found none"):
        open_dataset(tmp_path / "d")
    dataset = open_dataset(tmp_path / "d", verify=False)
    assert dataset[0]["label"] == 0
    with pytest.raises(ShardMissingError, match=r"shard-00001\.lmdb"):
        dataset[20]


def test_a_shard_of_another_size(tmp_path, jpeg_path):
    shutil.copytree(jpeg_path, tmp_path / "d")
    path = tmp_path / "d" / "shard-00002.lmdb"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-4096])
    with pytest.raises(ShardCorruptError, match=rf"shard-00002\.lmdb: expected {size} bytes, found {size - 4096}"):
        open_dataset(tmp_path / "d")
    dataset = open_dataset(tmp_path / "d", verify="off")
    with pytest.raises(ShardCorruptError, match=r"shard-00002\.lmdb"):
        dataset[40]


def test_a_changed_byte_is_found_by_digest_before_the_shard_opens(tmp_path, jpeg_path):
    shutil.copytree(jpeg_path, tmp_path / "d")
    path = tmp_path / "d" / "shard-00000.lmdb"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    dataset = open_dataset(tmp_path / "d", verify=True)
    assert dataset[20]["label"] == 2
    with pytest.raises(ShardCorruptError, match=r"shard-00000\.lmdb: expected SHA-256"):
        dataset[0]


def test_a_changed_byte_of_the_index_is_found_by_digest_before_it_decides(tmp_path, jpeg_path):
    shutil.copytree(jpeg_path, tmp_path / "d")
    path = tmp_path / "d" / "index" / "label.npy"
    data = bytearray(path.read_bytes())
    data[-8] ^= 1
    path.write_bytes(data)
    dataset = open_dataset(tmp_path / "d", verify="digest")
    for read in (lambda: dataset.column("label"), lambda: dataset.where("label == 1")):
        with pytest.raises(ShardCorruptError, match=r"label\.npy: expected SHA-256"):
            read()
    assert dataset[0]["label"] == 0


def test_a_damaged_image_names_its_key_and_shard(tmp_path):
    crops = astronaut_crops(6, 24)
    schema = Schema((text("key"), picture("image", "jpeg", 24)))
    root = tmp_path / "d"
    write_dataset(root, "lmdb", schema, {"key": keys(6), "image": crops}, shard_rows=4)
    path = root / "shard-00001.lmdb"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"\xff\xd8\xff", b"\x00\x00\x00"))
    dataset = open_dataset(root)
    place = f"sample: key '00000005-000000', row 1 of {path} (row 5 of the dataset)"
    for read in (lambda: dataset[5], lambda: dataset.__getitems__([0, 5]), lambda: dataset.read_batch([0, 5])):
        with pytest.raises(CodecError, match="expected JPEG bytes") as caught:
            read()
        assert str(caught.value).endswith(place)


@pytest.mark.parametrize("collated", [False, True])
def test_a_damaged_image_in_a_worker_process_names_its_key_and_shard(tmp_path, collated):
    schema = Schema((text("key"), picture("image", "jpeg", 24)))
    root = tmp_path / "d"
    write_dataset(root, "npy", schema, {"key": keys(6), "image": astronaut_crops(6, 24)}, shard_rows=4)
    path = root / "shard-00001" / "image.bin"
    data, starts = bytearray(path.read_bytes()), np.load(root / "shard-00001" / "image.offsets.npy")
    data[starts[1] : starts[1] + 3] = bytes(3)
    path.write_bytes(data)
    dataset = open_dataset(root)
    collate = dataset.collate if collated else list
    batches = iter(DataLoader(dataset, 2, num_workers=1, collate_fn=collate))
    seen = [next(batches), next(batches)]
    assert [len(batch["key"] if collated else batch) for batch in seen] == [2, 2]
    error = error_of(batches)
    assert isinstance(error, CodecError)
    assert "expected JPEG bytes" in str(error)
    assert "sample: key '00000005-000000', row 1 of" in str(error)
    assert f"{path.parent} (row 5 of the dataset)" in str(error)
    assert not hasattr(error, "__notes__")


def test_an_error_in_a_transform_names_key_and_shard(raw_path):
    def fail(sample):
        raise RuntimeError("no")

    dataset = open_dataset(raw_path, transform=fail)
    with pytest.raises(RuntimeError, match="no") as caught:
        dataset[20]
    assert "key '00000020-000000', row 3 of" in caught.value.__notes__[0]


def test_a_transform_that_raises_stop_iteration_names_key_and_shard(raw_path):
    dataset = open_dataset(raw_path, transform=lambda sample: next(iter(())))
    with pytest.raises(RuntimeError, match="the transform raised StopIteration") as caught:
        dataset[20]
    assert "key '00000020-000000', row 3 of" in caught.value.__notes__[0]


def test_newer_versions_and_other_formats_are_refused(tmp_path, raw_path):
    shutil.copytree(raw_path, tmp_path / "d")
    with pytest.raises(UsageError, match="expected a dataset of format 'lmdb', found 'npy': use NpyDataset"):
        readers.LMDBDataset(tmp_path / "d")
    assert isinstance(open_dataset(tmp_path / "d"), readers.NpyDataset)
    path = Layout(tmp_path / "d").manifest
    path.write_text(json.dumps({**manifest_document(path.parent), "spec_version": 99}))
    with raises(VersionError, expected="spec_version 1 or less", found=99):
        open_dataset(tmp_path / "d")
    with raises(NotADatasetError, expected="a packed dataset with a manifest.json", found="no such folder"):
        open_dataset(tmp_path / "nowhere")
