"""Accelerate's `prepare` on two processes (gloo): what `docs/howto/trainers.md` says about a Loader and about a sampler."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.batches import woven
from support.ranks import run_ranks

from readers import open_dataset

SAMPLES = 56  # a multiple of ranks times batch size: `prepare` fills incomplete batches with samples from the beginning

_RANK = """
import json, os, sys
path, out, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # asked for, and not used: the group exists already
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader
from readers import Loader, open_dataset
from shardspec.errors import UsageError

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=2)
accelerator = Accelerator(cpu=True)
assert (accelerator.num_processes, accelerator.process_index) == (2, rank)
dataset = open_dataset(path, fields=["key", "image", "label"]).subset(range(56))
model = torch.nn.Linear(3, 3)
own = Loader(dataset, 4, seed=5, workers=1)
whole, ranked = dataset.sampler(seed=5), dataset.sampler(seed=5, rank=rank, world_size=2)
model, loader, sharded = accelerator.prepare(
    model, own, DataLoader(dataset, 4, sampler=whole, collate_fn=dataset.collate)
)


def epoch_of(batches):
    keys = []
    for batch in batches:
        accelerator.backward(model(batch["image"].float().mean((2, 3))).sum())  # waits for the other rank
        keys.append(batch["key"])
    return keys


found = {"left alone": loader is own, "Loader": [], "DataLoader": []}
for epoch in range(2):
    loader.set_epoch(epoch)
    found["Loader"].append(epoch_of(loader))
    found["DataLoader"].append(epoch_of(sharded))
sharded.set_epoch(7)
found["chosen"] = epoch_of(sharded)
twice = DataLoader(dataset, 4, sampler=ranked, collate_fn=dataset.collate)
found["refused"] = []
for options in ({}, {"use_seedable_sampler": True}, {"dispatch_batches": True, "put_on_device": True}):
    try:
        prepared = prepare_data_loader(twice, **options)
        if rank == 0:  # with dispatch_batches the others wait for what rank 0 reads
            next(iter(prepared))
    except UsageError as error:
        found["refused"].append(str(error))
found["unprepared"] = epoch_of(twice)
with open(f"{out}/{rank}.json", "w") as file:
    json.dump(found, file)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def ranks(jpeg_path: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("accelerate")
    run_ranks(_RANK, jpeg_path, out)
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]


def keys(batches: list[list[str]]) -> list[str]:
    return [key for batch in batches for key in batch]


def ordered(path: Path, epoch: int) -> list[str]:
    """The keys of an epoch in the order of all ranks together."""
    dataset = open_dataset(path, fields=["key"]).subset(range(SAMPLES))
    sampler = dataset.sampler(seed=5)
    sampler.set_epoch(epoch)
    return [dataset[index]["key"] for index in sampler]


def test_a_prepared_loader_is_unchanged_and_yields_each_rank_its_share(ranks, jpeg_path):
    for found in ranks:
        assert found["left alone"]
        assert [len(batch) for batch in found["Loader"][0]] == [4] * 7
    for epoch in range(2):
        assert woven([keys(found["Loader"][epoch]) for found in ranks]) == ordered(jpeg_path, epoch)


def test_a_sampler_that_is_not_sharded_gives_every_sample_once(ranks, jpeg_path):
    for epoch in range(2):
        seen = keys(ranks[0]["DataLoader"][epoch]) + keys(ranks[1]["DataLoader"][epoch])
        assert sorted(seen) == sorted(ordered(jpeg_path, 0))


def in_turn(first: list[list[str]], second: list[list[str]]) -> list[str]:
    """Batches of two ranks, as `prepare` deals them out."""
    return [key for pair in zip(first, second, strict=True) for batch in pair for key in batch]


def test_the_prepared_loader_counts_the_epochs_and_takes_one_by_its_set_epoch(ranks, jpeg_path):
    for epoch in range(2):
        assert in_turn(*(found["DataLoader"][epoch] for found in ranks)) == ordered(jpeg_path, epoch)
    assert in_turn(*(found["chosen"] for found in ranks)) == ordered(jpeg_path, 7)


def test_a_sampler_of_one_ranks_share_is_not_divided_again(ranks, jpeg_path):
    assert [len(found["refused"]) for found in ranks] == [3, 1], "at once, or when its indices are about to be divided"
    for message in (text for found in ranks for text in found["refused"]):
        assert "Leave out rank= and world_size=" in message
    assert woven([keys(found["unprepared"]) for found in ranks]) == ordered(jpeg_path, 0)
