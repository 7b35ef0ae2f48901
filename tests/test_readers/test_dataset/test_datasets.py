"""Packed datasets: samples, batches, columns, opening."""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.crops import astronaut_crops, keys
from support.datasets import (
    assert_equal,
    every_kind_schema,
    fixed,
    manifest_document,
    picture,
    text,
    values_for,
    write_dataset,
)

import readers
from readers import open_dataset
from shardspec.errors import (
    SchemaError,
    ShardMissingError,
)
from shardspec.formats import FORMATS
from shardspec.schema import Schema


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_every_kind_of_field_round_trips(tmp_path, format):
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


def test_fields_choose_what_is_read(raw_path):
    dataset = open_dataset(raw_path, fields=["label", "key"])
    assert list(dataset[3]) == ["label", "key"]
    assert dataset.schema.names == ("label", "key")
    with pytest.raises(SchemaError, match="there is no field 'labels'"):
        open_dataset(raw_path, fields=["labels"])


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


def test_images_of_varying_size_are_listed(tmp_path):
    images = [astronaut_crops(1, size)[0] for size in (20, 33, 20)]
    schema = Schema((text("key"), picture("image", "png")))
    write_dataset(tmp_path / "d", "lmdb", schema, {"key": keys(3), "image": images})
    dataset = open_dataset(tmp_path / "d")
    batch = dataset.collate(dataset.__getitems__([0, 1, 2]))
    assert [tuple(image.shape) for image in batch["image"]] == [(3, 20, 20), (3, 33, 33), (3, 20, 20)]

    def crop(sample):
        return {**sample, "image": sample["image"][:16, :16]}

    cropped = open_dataset(tmp_path / "d", transform=crop)
    assert cropped.collate([cropped[0], cropped[1]])["image"].shape == (2, 3, 16, 16)
    assert cropped.read_batch([0, 1, 2])["image"].shape == (3, 16, 16, 3)


def test_opening_reads_no_shard(raw_path, monkeypatch):
    opened = []
    monkeypatch.setattr("readers.formats.pool.ShardPool.open", lambda self, number: opened.append(number))
    dataset = open_dataset(raw_path)
    len(dataset), dataset.column("label"), dataset.classes, dataset.layout, repr(dataset)
    assert opened == []


_TEN_MILLION = """
import sys, tracemalloc
import numpy as np
import readers.dataset.packed
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
    manifest = manifest_document(tmp_path / "d")
    generation = manifest["generations"][0]
    for shard in generation["shards"]:
        shard["samples"] = 100_000
    generation["counts"].update(samples=10_000_000)
    (tmp_path / "d" / "manifest.json").write_text(json.dumps(manifest))
    run = subprocess.run([sys.executable, "-c", _TEN_MILLION, str(tmp_path / "d")], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 20_000_000


def test_every_public_name_resolves():
    for name in readers.__all__:
        assert getattr(readers, name) is not None
    assert set(readers.__all__) <= set(dir(readers))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = readers.nothing
    tree = ast.parse(Path(readers.__file__).read_text())
    for_type_checkers = [a.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for a in node.names]
    assert set(readers.__all__) <= set(for_type_checkers)
