"""Packed datasets in several processes, and what they hold open."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
from support.datasets import assert_equal, fixed, write_dataset
from torch.utils.data import DataLoader

from readers import open_dataset
from shardspec.schema import Schema


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_worker_processes_read_every_sample_right(face_path, context):
    dataset = open_dataset(face_path)
    expected = [dataset[i] for i in range(len(dataset))]  # so that a fork finds the shards open
    loader = DataLoader(
        dataset,
        batch_size=7,
        sampler=dataset.sampler(seed=1),
        collate_fn=list,
        num_workers=2,
        multiprocessing_context=context,
    )
    samples = [sample for batch in loader for sample in batch]
    assert sorted(sample["key"] for sample in samples) == sorted(sample["key"] for sample in expected)
    by_key = {sample["key"]: sample for sample in expected}
    for sample in samples:
        for name, value in by_key[sample["key"]].items():
            assert_equal(sample[name], value)


def test_pickling_carries_no_handles(face_path):
    dataset = open_dataset(face_path)
    before = dataset[0]
    other = pickle.loads(pickle.dumps(dataset))
    assert other.pool.number != dataset.pool.number
    assert_equal(other[0]["image"], before["image"])


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
