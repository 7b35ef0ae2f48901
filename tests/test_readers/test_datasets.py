"""Packed datasets: samples, batches, worker processes, errors."""

import ast
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.crops import astronaut_crops, keys
from support.datasets import every_kind_schema, face_schema, fixed, picture, text, values_for, write_dataset
from torch.utils.data import DataLoader

import readers
from readers import open_dataset
from readers.shards import MAX_DESCRIPTORS, open_shards
from shardspec.errors import (
    CodecError,
    NotADatasetError,
    SchemaError,
    ShardCorruptError,
    ShardMissingError,
    UsageError,
    VersionError,
)
from shardspec.formats import FORMATS
from shardspec.layout import Layout
from shardspec.schema import Schema


def assert_equal(found, expected):
    if isinstance(expected, np.ndarray | np.generic):
        assert found.dtype == expected.dtype
        if expected.size == found.size == 0:  # rows of no bytes cannot be counted
            return
        assert np.array_equal(found, expected, equal_nan=expected.dtype.kind == "f")
    else:
        assert found == expected


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_every_kind_of_field_comes_back(tmp_path, format):
    schema = every_kind_schema()
    columns = values_for(schema, 40)
    write_dataset(tmp_path / "d", format, schema, columns, shard_rows=9)
    dataset = open_dataset(tmp_path / "d")
    assert len(dataset) == 40
    for row in (0, 8, 9, 39, -1, -40):
        sample = dataset[row]
        assert tuple(sample) == schema.names
        for name, value in sample.items():
            assert_equal(value, columns[name][row])
    indices = [39, 0, 17, 17, -2]
    batch = dataset.read_batch(indices)
    for field in schema:
        for place, row in enumerate(indices):
            assert_equal(batch[field.name][place], columns[field.name][row])


def test_values_may_be_changed_and_outlive_the_dataset(tmp_path):
    schema = every_kind_schema()
    write_dataset(tmp_path / "d", "npy", schema, values_for(schema, 5))
    dataset = open_dataset(tmp_path / "d")
    sample = dataset[1]
    del dataset
    for value in sample.values():
        if isinstance(value, np.ndarray):
            assert value.flags.writeable
            value[...] = 1


@pytest.mark.parametrize("index", [60, -61, 10**9])
def test_index_out_of_range(raw_path, index):
    dataset = open_dataset(raw_path)
    with pytest.raises(IndexError, match=f"index {index}: expected -60 to 59"):
        dataset[index]


def test_iterating_ends(raw_path):
    assert sum(1 for _ in open_dataset(raw_path, fields=["label"])) == 60


def test_fields_choose_what_is_read(raw_path):
    dataset = open_dataset(raw_path, fields=["label", "key"])
    assert list(dataset[3]) == ["label", "key"]
    assert dataset.schema.names == ("label", "key")
    with pytest.raises(SchemaError, match="there is no field 'labels'"):
        open_dataset(raw_path, fields=["labels"])


def test_read_into_fills_the_given_buffers(raw_path):
    dataset = open_dataset(raw_path, fields=["image", "label"])
    image = np.zeros((5, 48, 48, 3), np.uint8)
    label = np.zeros(5, np.int64)
    dataset.read_into([4, 50, -1], {"image": image, "label": label})
    for place, row in enumerate([4, 50, 59]):
        assert_equal(image[place], dataset[row]["image"])
    assert label.tolist() == [1, 2, 2, 0, 0]
    assert not image[3:].any()


def test_columns_come_from_the_index(tmp_path, raw_path):
    shutil.copytree(raw_path, tmp_path / "d")
    for folder in (tmp_path / "d").glob("shard-*"):
        shutil.rmtree(folder)
    dataset = open_dataset(tmp_path / "d", verify="off")
    assert dataset.column("label").tolist() == [i % 3 for i in range(60)]
    assert dataset.classes == ("a", "b", "c")
    with pytest.raises(ShardMissingError):
        dataset.column("landmarks")


def test_columns_without_an_index_are_read_through(raw_path):
    dataset = open_dataset(raw_path, fields=["label"])
    assert dataset.column("key") == keys(60)
    assert dataset.column("landmarks").shape == (60, 5, 2)
    assert_equal(dataset.column("landmarks")[7], open_dataset(raw_path)[7]["landmarks"])


def test_collate_gives_channels_last_pictures(raw_path):
    dataset = open_dataset(raw_path)
    for samples in (dataset.__getitems__([5, 6, 59]), [dataset[5], dataset[6], dataset[59]]):
        batch = dataset.collate(samples)
        assert batch["image"].shape == (3, 3, 48, 48)
        assert batch["image"].dtype == torch.uint8
        assert batch["image"].is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(batch["image"][2].permute(1, 2, 0), torch.from_numpy(dataset[59]["image"]))
        assert batch["label"].tolist() == [2, 0, 2]
        assert batch["key"] == [keys(60)[5], keys(60)[6], keys(60)[59]]


def test_pictures_of_varying_size_are_listed(tmp_path):
    pictures = [astronaut_crops(1, size)[0] for size in (20, 33, 20)]
    schema = Schema((text("key"), picture("image", "png")))
    write_dataset(tmp_path / "d", "lmdb", schema, {"key": keys(3), "image": pictures})
    dataset = open_dataset(tmp_path / "d")
    batch = dataset.collate(dataset.__getitems__([0, 1, 2]))
    assert [tuple(image.shape) for image in batch["image"]] == [(3, 20, 20), (3, 33, 33), (3, 20, 20)]

    def crop(sample):
        return {**sample, "image": sample["image"][:16, :16]}

    cropped = open_dataset(tmp_path / "d", transform=crop)
    assert cropped.collate([cropped[0], cropped[1]])["image"].shape == (2, 3, 16, 16)
    assert cropped.read_batch([0, 1, 2])["image"].shape == (3, 16, 16, 3)


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes:UserWarning")
@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("workers", [1, 4])
def test_worker_processes_read_every_sample_right(face_path, context, workers):
    dataset = open_dataset(face_path)
    expected = [dataset[i] for i in range(len(dataset))]  # so that a fork finds the shards open
    loader = DataLoader(
        dataset,
        batch_size=7,
        sampler=dataset.sampler(seed=1),
        collate_fn=list,
        num_workers=workers,
        multiprocessing_context=context,
    )
    samples = [sample for batch in loader for sample in batch]
    assert sorted(sample["key"] for sample in samples) == sorted(sample["key"] for sample in expected)
    by_key = {sample["key"]: sample for sample in expected}
    for sample in samples:
        for name, value in by_key[sample["key"]].items():
            assert_equal(sample[name], value)


@pytest.mark.parametrize("format", sorted(FORMATS))
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_worker_processes_read_every_format_right(tmp_path, format, context):
    schema = every_kind_schema()
    columns = values_for(schema, 25)
    write_dataset(tmp_path / "d", format, schema, columns, shard_rows=8)
    dataset = open_dataset(tmp_path / "d")
    dataset.read_batch(range(25))  # so that a fork finds the shards open
    loader = DataLoader(dataset, 4, collate_fn=list, num_workers=1, multiprocessing_context=context)
    samples = [sample for batch in loader for sample in batch]
    assert len(samples) == 25
    for row, sample in enumerate(samples):
        for name, value in sample.items():
            assert_equal(value, columns[name][row])


def test_no_workers_and_two_workers_give_the_same_batches(raw_path, jpeg_path):
    for path in (raw_path, jpeg_path):
        dataset = open_dataset(path)
        batches = [
            list(
                DataLoader(
                    dataset, 16, sampler=dataset.sampler(seed=3), collate_fn=dataset.collate, num_workers=workers
                )
            )
            for workers in (0, 2)
        ]
        assert len(batches[0]) == len(batches[1]) == 4
        for one, other in zip(*batches, strict=True):
            assert one["key"] == other["key"]
            assert torch.equal(one["image"], other["image"])
            assert other["image"].is_contiguous(memory_format=torch.channels_last)


def test_torchs_own_collate_and_shuffle_work(raw_path):
    dataset = open_dataset(raw_path, fields=["image", "label"])
    labels = [batch["label"] for batch in DataLoader(dataset, batch_size=8, shuffle=True)]
    assert sorted(torch.cat(labels).tolist()) == sorted(dataset.column("label").tolist())


def test_two_datasets_at_once(raw_path, jpeg_path):
    one, other = open_dataset(raw_path), open_dataset(jpeg_path)
    both = torch.utils.data.ConcatDataset([one, other])
    loader = DataLoader(both, batch_size=11, num_workers=2, collate_fn=list)
    labels = [int(sample["label"]) for batch in loader for sample in batch]
    assert labels == [*one.column("label"), *other.column("label")]


def test_pickling_carries_no_handles(face_path):
    dataset = open_dataset(face_path)
    before = dataset[0]
    other = pickle.loads(pickle.dumps(dataset))
    assert other.pool.number != dataset.pool.number
    assert_equal(other[0]["image"], before["image"])


def test_open_descriptors_are_limited_and_given_back(tmp_path):
    schema = Schema((fixed("label", "<i8"),))
    count = MAX_DESCRIPTORS + 40
    write_dataset(tmp_path / "d", "lmdb", schema, {"label": np.arange(count)}, shard_rows=1)
    before = open_shards.descriptors()
    datasets = [open_dataset(tmp_path / "d") for _ in range(2)]
    for dataset in datasets:
        assert dataset.read_batch(range(count))["label"].tolist() == list(range(count))
        assert open_shards.descriptors() <= MAX_DESCRIPTORS
    del dataset, datasets
    assert open_shards.descriptors() <= before


_MANY_SHARDS = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import torch
from torch.utils.data import DataLoader
from readers import open_dataset
dataset = open_dataset(sys.argv[1])
assert dataset.read_batch(range(300))["label"].tolist() == list(range(300))
for workers in (0, 2):
    loader = DataLoader(dataset, 50, sampler=dataset.sampler(), collate_fn=dataset.collate, num_workers=workers)
    assert sorted(int(label) for batch in loader for label in batch["label"]) == list(range(300))
print("read")
"""


def test_three_hundred_shards_with_256_descriptors(tmp_path):
    schema = Schema((fixed("label", "<i8"),))
    write_dataset(tmp_path / "d", "lmdb", schema, {"label": np.arange(300)}, shard_rows=1)
    run = subprocess.run([sys.executable, "-c", _MANY_SHARDS, str(tmp_path / "d")], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "read\n"), run.stderr


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


def test_a_damaged_picture_names_its_key_and_shard(tmp_path):
    crops = astronaut_crops(6, 24)
    schema = Schema((text("key"), picture("image", "jpeg", 24)))
    root = tmp_path / "d"
    write_dataset(root, "lmdb", schema, {"key": keys(6), "image": crops}, shard_rows=4)
    dataset = open_dataset(root)
    path = root / "shard-00001.lmdb"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"\xff\xd8\xff", b"\x00\x00\x00"))
    place = f"sample: key '00000005-000000', row 1 of {path} (row 5 of the dataset)"
    for read in (lambda: dataset[5], lambda: dataset.__getitems__([0, 5]), lambda: dataset.read_batch([0, 5])):
        with pytest.raises(CodecError, match="expected JPEG bytes") as caught:
            read()
        assert str(caught.value).endswith(place)


@pytest.mark.parametrize("collated", [False, True])
def test_a_damaged_picture_in_a_worker_process_names_its_key_and_shard(tmp_path, collated):
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
    with pytest.raises(CodecError, match="expected JPEG bytes") as caught:
        next(batches)
    assert "sample: key '00000005-000000', row 1 of" in str(caught.value)
    assert f"{path.parent} (row 5 of the dataset)" in str(caught.value)
    assert not hasattr(caught.value, "__notes__")


def test_an_error_in_a_transform_names_key_and_shard(raw_path):
    def fail(sample):
        raise RuntimeError("no")

    dataset = open_dataset(raw_path, transform=fail)
    with pytest.raises(RuntimeError, match="no") as caught:
        dataset[20]
    assert "key '00000020-000000', row 3 of" in caught.value.__notes__[0]


def test_newer_versions_and_other_formats_are_refused(tmp_path, raw_path):
    shutil.copytree(raw_path, tmp_path / "d")
    with pytest.raises(UsageError, match="expected a dataset of format 'lmdb', found 'npy': use NpyDataset"):
        readers.LMDBDataset(tmp_path / "d")
    assert isinstance(open_dataset(tmp_path / "d"), readers.NpyDataset)
    path = Layout(tmp_path / "d").manifest
    path.write_text(json.dumps({**json.loads(path.read_text()), "spec_version": 99}))
    with pytest.raises(VersionError, match="expected spec_version 1 or less, found 99"):
        open_dataset(tmp_path / "d")
    with pytest.raises(NotADatasetError, match="found no such folder"):
        open_dataset(tmp_path / "nowhere")


def test_opening_reads_no_shard(raw_path, monkeypatch):
    opened = []
    monkeypatch.setattr("readers.shards.ShardPool.open", lambda self, number: opened.append(number))
    dataset = open_dataset(raw_path)
    len(dataset), dataset.column("label"), dataset.classes, dataset.layout, repr(dataset)
    assert opened == []


_TEN_MILLION = """
import sys, tracemalloc
import numpy as np
import readers.datasets
tracemalloc.start()
dataset = readers.open_dataset(sys.argv[1])
sampler = iter(dataset.sampler())
first = [next(sampler) for _ in range(1000)]
assert len(dataset) == 10_000_000 and max(first) > 1_000_000
print(tracemalloc.get_traced_memory()[1])
"""


def test_ten_million_samples_open_in_little_memory(tmp_path):
    schema = Schema((fixed("flag", "|b1"),))
    write_dataset(tmp_path / "d", "npy", schema, {"flag": np.zeros(1000, bool)}, shard_rows=10)
    manifest = json.loads((tmp_path / "d" / "manifest.json").read_text())
    generation = manifest["generations"][0]
    for shard in generation["shards"]:
        shard["samples"] = 100_000
    generation["counts"].update(samples=10_000_000)
    (tmp_path / "d" / "manifest.json").write_text(json.dumps(manifest))
    run = subprocess.run([sys.executable, "-c", _TEN_MILLION, str(tmp_path / "d")], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 20_000_000


def test_importing_readers_loads_neither_torch_nor_formats():
    code = "import sys, readers; print([n for n in ('torch', 'lmdb', 'pyarrow', 'h5py', 'cv2', 'PIL') if n in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_every_public_name_resolves():
    for name in readers.__all__:
        assert getattr(readers, name) is not None
    assert set(readers.__all__) <= set(dir(readers))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = readers.nothing
    tree = ast.parse(Path(readers.__file__).read_text())
    for_type_checkers = [a.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for a in node.names]
    assert set(readers.__all__) <= set(for_type_checkers)


@pytest.mark.parametrize("index", [slice(0, 3), [0, 1], 1.5, "a", None])
def test_what_is_no_index_is_told(tmp_path: Path, index: Any) -> None:
    write_dataset(tmp_path / "d", "npy", face_schema(), values_for(face_schema(), 3))
    with pytest.raises(TypeError, match="expected one index, found"):
        open_dataset(tmp_path / "d")[index]


@pytest.mark.parametrize("fields", ["image", []])
def test_fields_are_a_list_of_names(tmp_path: Path, fields: Any) -> None:
    write_dataset(tmp_path / "d", "npy", face_schema(), values_for(face_schema(), 3))
    with pytest.raises(UsageError, match="fields: expected a list of names"):
        open_dataset(tmp_path / "d", fields=fields)
