"""The order "auto": what decides it, that all ranks follow, and that a resume keeps it."""

import json
import logging

import numpy as np
import pytest
from support.batches import keys_of
from support.crops import astronaut_crops, write_crops
from support.datasets import fixed, text, write_dataset
from support.errors import raises
from support.ranks import run_ranks
from torch.utils.data import DataLoader

from readers import Loader, MixedDataset, Subset, open_dataset
from readers.order import shuffle_choice
from readers.order.shuffle_choice import StoredData, find_residence
from shardspec.errors import UsageError
from shardspec.schema import Schema

TINY = 10_000
PLENTY = 10**12


def memory_is(monkeypatch, size: int) -> None:
    monkeypatch.setattr(shuffle_choice, "usable_memory", lambda: size)


# What decides.


@pytest.mark.parametrize(
    ("mounts", "network"),
    [
        ("/dev/vda / ext4 rw 0 0\nserver:/x {root} nfs4 rw 0 0\n", True),
        ("/dev/vda / ext4 rw 0 0\nsshfs {root} fuse.sshfs rw 0 0\n", True),
        ("server:/x / nfs rw 0 0\n/dev/vdb {root} xfs rw 0 0\n", False),
        ("server:/x {root} nfs rw 0 0\n/dev/vdb {root} ext4 rw 0 0\n", False),
        ("/dev/vda / ext4 rw 0 0\nserver:/x {root}/in nfs rw 0 0\n", False),
        ("/dev/vda / ext4 rw 0 0\nserver:/x {root}/data nfs rw 0 0\n", False),
        ("/dev/sdb {root} fuseblk rw 0 0\n", False),
        ("", False),
    ],
)
def test_network_file_systems_are_known_by_their_mounts(system, tmp_path, mounts, network):
    root = tmp_path / "my data"
    root.mkdir()
    system(mounts=mounts.format(root=str(root).replace(" ", "\\040")))
    residence = find_residence([StoredData(root, 5, "")])
    assert bool(residence.network) == network
    assert residence.in_memory == (not network)


# The Loader, the sampler.


@pytest.mark.parametrize(("size", "order"), [(TINY, "blocks"), (PLENTY, "full")])
def test_the_loader_says_what_it_took_and_why(raw_path, monkeypatch, caplog, size, order):
    memory_is(monkeypatch, size)
    caplog.set_level(logging.INFO, "readers")
    dataset = open_dataset(raw_path)
    loader = Loader(dataset, 8, seed=1)
    assert loader.order == loader.state_dict()["shuffle"] == "auto"
    found = [keys_of(loader) for _ in range(2)]
    explicit = Loader(dataset, 8, seed=1, shuffle=order)
    assert found == [keys_of(explicit) for _ in range(2)]
    assert loader.order == loader.state_dict()["shuffle"] == order
    assert ("are more than" if order == "blocks" else "fit into") in loader.order_reason
    assert [record.levelno for record in caplog.records] == [logging.WARNING if order == "blocks" else logging.INFO]
    assert loader.read_ahead == (1 if order == "blocks" else 0)
    assert (explicit.order, explicit.order_reason) == (order, "as asked for")
    sampler = dataset.sampler(seed=1)
    assert sampler.order == order
    batches = DataLoader(dataset, 8, sampler=sampler, collate_fn=dataset.collate)
    assert keys_of(batches) == found[0]


def test_reading_ahead_takes_no_more_than_an_eighth_of_memory(raw_path, monkeypatch):
    dataset = open_dataset(raw_path)
    size = dataset.stored[0].bytes
    for memory, depth in ((size, 4), (size // 2, 2), (size // 10, 1)):
        memory_is(monkeypatch, memory)
        assert Loader(dataset, 1).read_ahead == depth
        assert Loader(dataset, 1, read_ahead=9).read_ahead == 9


def test_reading_ahead_counts_frames_of_clips_and_shares_of_mixtures(tmp_path, raw_path, monkeypatch):
    schema = Schema((text("key"), fixed("image", "|u1", 32, 32, 3), fixed("frame", "<i8")))
    columns = {"key": [f"00000000-{i:06d}" for i in range(64)], "frame": np.arange(64)}
    write_dataset(tmp_path / "d", "npy", schema, {**columns, "image": np.stack(astronaut_crops(64, 32))})
    dataset = open_dataset(tmp_path / "d")
    frame_bytes = dataset.stored[0].bytes / 64
    assert dataset.sample_bytes == dataset.subset([1, 5]).sample_bytes == frame_bytes
    clips = dataset.clips(8, by=None)
    assert clips.sample_bytes == Subset(clips, [3]).sample_bytes == 8 * frame_bytes
    other = open_dataset(raw_path)
    mixed = MixedDataset([d.with_transform(lambda s: {"key": s["key"]}) for d in (dataset, other)], [1, 3], length=8)
    assert mixed.sample_bytes == (frame_bytes + 3 * other.sample_bytes) / 4
    memory_is(
        monkeypatch, int(64 * frame_bytes / shuffle_choice.MEMORY_SHARE) - 1
    )  # eight frames fit into an eighth, almost
    assert Loader(dataset, 2).read_ahead == 3
    assert Loader(clips, 2).read_ahead == 1
    assert Loader(dataset, 1).read_ahead == 4


def test_without_blocks_the_order_is_full(raw_path, monkeypatch):
    memory_is(monkeypatch, TINY)
    dataset = open_dataset(raw_path)
    weights = [1.0] * len(dataset)
    for view in (dataset.subset([9, 4, 30]), MixedDataset([dataset, dataset])):
        loader = Loader(view, 2)
        list(loader)
        assert (loader.order, loader.order_reason) == ("full", "the dataset has no blocks")
    ascending, drawn = Loader(dataset.subset(range(40)), 2), Loader(dataset, 2, weights=weights)
    list(ascending), list(drawn)
    assert (ascending.order, drawn.order) == ("blocks", "weighted")
    assert dataset.sampler(weights=weights).order == "weighted"


@pytest.mark.parametrize(("before", "after"), [(TINY, PLENTY), (PLENTY, TINY)])
@pytest.mark.parametrize("with_sampler", [False, True])
def test_a_resume_on_another_machine_keeps_the_order(raw_path, monkeypatch, before, after, with_sampler):
    dataset = open_dataset(raw_path)
    memory_is(monkeypatch, before)
    loader = Loader(dataset, 8, seed=1, workers=1)
    whole = keys_of(loader)
    iterator = iter(loader)
    first = [key for _ in range(3) for key in next(iterator)["key"]]
    state = json.loads(json.dumps(loader.state_dict()))
    memory_is(monkeypatch, after)
    resumed = dataset.sampler(seed=1) if with_sampler else Loader(dataset, 8, seed=1)
    resumed.load_state_dict(state)
    assert resumed.order == loader.order
    batches = DataLoader(dataset, 8, sampler=resumed, collate_fn=dataset.collate) if with_sampler else resumed
    assert sorted(first + keys_of(batches)) == sorted(whole)
    other = {"full": "blocks", "blocks": "full"}[loader.order]
    with raises(UsageError, option="state", found="another; they differ in shuffle, window, rows"):
        Loader(dataset, 8, seed=1, shuffle=other).load_state_dict(state)


def test_a_state_from_before_the_first_epoch_decides_nothing(raw_path, monkeypatch):
    memory_is(monkeypatch, TINY)
    state = Loader(open_dataset(raw_path), 8).state_dict()
    loader = Loader(open_dataset(raw_path), 8)
    loader.load_state_dict(state)
    assert loader.order == "auto"
    next(iter(loader))
    assert loader.order == "blocks"
    with raises(UsageError, option="state", found="another; they differ in shuffle, window, rows"):
        Loader(open_dataset(raw_path), 8, shuffle=False).load_state_dict(loader.state_dict())


# Several ranks.


def test_ranks_given_by_number_stay_with_the_same_order(raw_path, monkeypatch):
    memory_is(monkeypatch, TINY)
    dataset = open_dataset(raw_path)
    loader, alone = Loader(dataset, 4, rank=1, world_size=2), Loader(dataset, 4, rank=0, world_size=1)
    list(loader), list(alone)
    assert (loader.order, alone.order) == ("full", "blocks")
    assert "shuffle='blocks'" in loader.order_reason
    assert dataset.sampler(rank=1, world_size=2).order == "full"


_RANK = """
import json, sys
import torch
import torch.distributed as dist
from readers import Loader, open_dataset
from readers.order import shuffle_choice

torch.set_num_threads(1)
path, out, rank, memory = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
shuffle_choice.usable_memory = lambda: memory
loader = Loader(open_dataset(path, fields=["key"]), 4, seed=5, workers=1)
dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=2)
seen = [[key for batch in loader for key in batch["key"]] for epoch in range(2)]
alone = open_dataset(path).sampler().order
with open(f"{out}/{rank}.json", "w") as file:
    json.dump({"seen": seen, "order": loader.order, "alone": alone, "state": loader.state_dict()}, file)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("memory", [(TINY, PLENTY), (PLENTY, TINY)])
def test_all_ranks_take_the_order_of_rank_0(tmp_path, memory):
    path = write_crops(tmp_path / "d", "npy", None, count=200, size=8, shard_rows=100)
    errors = [error for _, error in run_ranks(_RANK, path, tmp_path, each=memory)]
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    order = "blocks" if memory[0] == TINY else "full"
    assert [one["order"] for one in found] == [order, order]
    assert found[0]["state"] == found[1]["state"]
    assert [one["alone"] for one in found] == ["full", "full"], "a sampler cannot ask the other rank"
    for epoch in range(2):
        assert len({key for one in found for key in one["seen"][epoch]}) == 200
    warned = ["shuffle='auto' is 'blocks'" in text for text in errors]
    assert warned == [order == "blocks", False], "said once"
