"""Plain DistributedDataParallel on two processes (gloo), and torchdata's loader at other numbers of workers."""

import json

import pytest
import torch
from support.batches import keys_of, woven
from support.crops import write_crops
from support.ranks import run_ranks
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from readers import Loader, open_dataset

SAMPLES, BATCH_SIZE, STEPS = 59, 4, 3

_RANK = """
import json, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from readers import Loader, open_dataset

torch.set_num_threads(1)
path, out, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=2)
dataset = open_dataset(path, fields=["key", "image", "label"]).subset(range(59))
sampler = dataset.sampler(seed=5, rank=rank, world_size=2)
loaders = {
    "Loader": (Loader(dataset, 4, seed=5, workers=1), None),
    "DataLoader": (DataLoader(dataset, 4, sampler=sampler, num_workers=1, collate_fn=dataset.collate), sampler),
}
model = DistributedDataParallel(torch.nn.Linear(3, 3))
for name, (loader, sampler) in loaders.items():
    seen, steps = [], len(loader)
    for epoch in range(2):
        (sampler or loader).set_epoch(epoch)
        batches = []
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(model(batch["image"].float().mean((2, 3))), batch["label"])
            loss.backward()  # waits for the other rank: unequal steps would hang here
            batches.append(batch["key"])
            if (epoch, len(batches)) == (1, 3):
                state = loader.state_dict() if sampler is None else sampler.state_dict(consumed=3 * 4 * 2)
        seen.append(batches)
    with open(f"{out}/{name}-{rank}.json", "w") as file:
        json.dump({"seen": seen, "steps": steps, "state": state}, file)
dist.destroy_process_group()
"""


def flat(batches) -> list[str]:
    return [key for batch in batches for key in batch]


@pytest.fixture(scope="module")
def ddp(jpeg_path, tmp_path_factory):
    out = tmp_path_factory.mktemp("ddp")
    run_ranks(_RANK, jpeg_path, out)
    return out


@pytest.fixture
def dataset(jpeg_path):
    return open_dataset(jpeg_path, fields=["key"]).subset(range(SAMPLES))


def expected_keys(dataset, epoch: int) -> list[str]:
    sampler = dataset.sampler(seed=5)
    sampler.set_epoch(epoch)
    return [dataset[i]["key"] for i in sampler]


@pytest.mark.parametrize("name", ["Loader", "DataLoader"])
def test_two_ranks_share_every_epoch(ddp, dataset, name):
    found = [json.loads((ddp / f"{name}-{rank}.json").read_text()) for rank in range(2)]
    for epoch in range(2):
        assert [len(one["seen"][epoch]) for one in found] == [8, 8] == [one["steps"] for one in found]
        keys = woven([flat(one["seen"][epoch]) for one in found])
        expected = expected_keys(dataset, epoch)
        assert keys == [*expected, expected[0]], "one sample is repeated, so that both ranks have 30"
        assert len(set(expected)) == SAMPLES


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("name", ["Loader", "DataLoader"])
def test_other_numbers_of_ranks_take_over(ddp, dataset, name, world_size):
    states = [json.loads((ddp / f"{name}-{rank}.json").read_text())["state"] for rank in range(2)]
    assert states[0] == states[1], "the state is one for all ranks"
    ranks = []
    for rank in range(world_size):
        if name == "Loader":
            batches = Loader(dataset, BATCH_SIZE, seed=5, rank=rank, world_size=world_size)
            batches.load_state_dict(states[0])
        else:
            sampler = dataset.sampler(seed=5, rank=rank, world_size=world_size)
            sampler.load_state_dict(states[0])
            batches = DataLoader(dataset, BATCH_SIZE, sampler=sampler, collate_fn=dataset.collate)
        ranks.append(keys_of(batches))
    left = expected_keys(dataset, 1)[STEPS * BATCH_SIZE * 2 :]
    assert woven(ranks)[: len(left)] == left
    assert {len(keys) for keys in ranks} == {-(-len(left) // world_size)}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # called by torchdata
@pytest.mark.parametrize(("before", "after"), [(2, 0), (0, 2), (1, 2)])
def test_stateful_dataloader_resumes_at_other_numbers_of_workers(dataset, before, after):
    """Its own state is bound to its number of workers; that of our sampler, which it holds, is not."""

    def make(sampler, workers):
        return StatefulDataLoader(dataset, 4, sampler=sampler, num_workers=workers, collate_fn=dataset.collate)

    sampler = dataset.sampler(seed=5)
    batches = iter(make(sampler, before))
    taken = keys_of(next(batches) for _ in range(STEPS))
    state = json.loads(json.dumps(sampler.state_dict(consumed=STEPS * BATCH_SIZE)))
    del batches
    torch.manual_seed(99)
    resumed = dataset.sampler(seed=5)
    resumed.load_state_dict(state)
    loader = make(resumed, after)
    assert taken + keys_of(loader) == expected_keys(dataset, 0)
    assert keys_of(loader) == expected_keys(dataset, 1), "the next epoch is whole"


_DIFFERING = """
import json, sys
import numpy as np
import torch
import torch.distributed as dist
from readers import Loader, MixedDataset, open_dataset
from readers.lightning import PackedDataModule
from shardspec.errors import DatasetError

torch.set_num_threads(1)
path, out, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.manual_seed(rank)
dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=2)
dataset = open_dataset(path, fields=["key"])
rows = np.arange(60)
other = open_dataset(sys.argv[4], fields=["key"])  # as many rows of other contents
set_on = Loader(dataset, 4, shuffle="full", workers=1)
set_on.set_epoch(rank)
restored = [Loader(dataset, 4, workers=1) for _ in range(2)]
restored[rank].load_state_dict(Loader(dataset, 4, shuffle="full").state_dict())
learnt = {0: rows, 1: np.roll(rows, rank)}  # by the rank, after the first epoch
sizes = [[[0, 1, 2], [3]], [[0], [1, 2, 3]]]
FULL = {"shuffle": "full", "workers": 1}
loaders = {
    "auto": Loader(dataset, 4, seed=rank, workers=1),
    "parts": Loader(dataset.subset(rows[rank::2]), 4, workers=1),
    "seed": Loader(dataset, 4, shuffle="full", seed=rank, workers=1),
    "weights": Loader(dataset, 4, weights=rows + rank + 1.0, workers=1),
    "own": Loader(dataset, 4, order=lambda epoch: torch.randperm(60), workers=1),
    "learnt": Loader(dataset, 4, order=learnt.get, workers=1),
    "batches": Loader(dataset, order=lambda epoch: sizes[rank], workers=1),
    "divided": Loader(dataset.subset(rows[rank::2]), 4, shuffle="full", workers=1),
    "epoch": set_on,
    "contents": Loader(other, 4, workers=1),
    "contents, mixed": Loader(MixedDataset([dataset, other]), 4, shuffle="full", workers=1),
    "contents, module": PackedDataModule(other, batch_size=4, train_options=FULL).train_dataloader(),
    "restored on rank 0": restored[0],
    "restored on rank 1": restored[1],
    "module": PackedDataModule(
        dataset, batch_size=4, train_options={**FULL, "seed": rank}
    ).train_dataloader(),
    "processes": PackedDataModule(
        dataset, batch_size=4, loader="processes", train_options={**FULL, "seed": rank, "workers": 0}
    ),
    "numbered": Loader(dataset, 4, seed=rank, rank=rank, world_size=2, workers=1),
    "in order": Loader(dataset.subset(rows[rank::2]), 4, shuffle=False, workers=1),
    "same": Loader(dataset, 4, shuffle="full", seed=3, workers=1),
}
loaders["processes"] = loaders["processes"].train_dataloader()
found = {}
for name, loader in loaders.items():
    try:
        found[name] = [len(list(loader)) for _ in range(2 if name == "learnt" else 1)]
    except DatasetError as error:
        found[name] = str(error)
    dist.barrier()
print(json.dumps(found))
dist.destroy_process_group()
"""


def test_ranks_with_different_sequences_are_detected(jpeg_path, tmp_path):
    """They would lose samples: each takes its share of another sequence."""
    other = write_crops(tmp_path / "other", "lmdb", "png")
    outputs = run_ranks(_DIFFERING, jpeg_path, tmp_path, each=(jpeg_path, other))
    first, second = (json.loads(output) for output, _ in outputs)
    digests = [open_dataset(path).manifest.digest[:12] for path in (other, jpeg_path)]
    two_digests = f"{other} with the digest {digests[0]}, and {jpeg_path} with the digest {digests[1]}"
    right = ["numbered", "in order", "same"]
    refused = {name: text for name, text in second.items() if name not in right}
    assert [name for name, found in first.items() if isinstance(found, str)] == []
    assert {name: found for name, found in first.items() if name in right} == {
        name: found for name, found in second.items() if name in right
    }
    assert {name: text.partition(" on rank 0")[0].partition("found ")[2] for name, text in refused.items()} == {
        "auto": "other rows in epoch 0 after 0 of 60",
        "parts": "other rows in epoch 0 after 0 of 30",
        "seed": "other rows in epoch 0 after 0 of 60",
        "weights": "other rows in epoch 0 after 0 of 60",
        "own": "other rows in epoch 0 after 0 of 60",
        "learnt": "other rows in epoch 1 after 0 of 60",
        "batches": "other rows in epoch 0 after 0 of 2",
        "divided": "other rows in epoch 0 after 0 of 30",
        "epoch": "epoch 1 after 0 of 60, and epoch 0 after 0 of 60",
        "restored on rank 0": "other rows in epoch 0 after 0 of 60",
        "restored on rank 1": "other rows in epoch 0 after 0 of 60",
        "module": "other rows in epoch 0 after 0 of 60",
        "processes": "other rows in epoch 0 after 0 of 60",
        **dict.fromkeys(("contents", "contents, mixed", "contents, module"), two_digests),
    }
