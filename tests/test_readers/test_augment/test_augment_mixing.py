"""MixUp and CutMix on given shares are torchvision's, with a draw of its own for each row."""

import threading

import numpy as np
import pytest
import torch
from support.datasets import fixed, write_dataset
from torchvision.transforms import v2

from readers import Loader, open_dataset
from readers.augment import BatchCompose, BatchCutMix, BatchFlip, BatchMixUp, BatchNormalize, Normalize
from shardspec.schema import Schema


def batch(rows=6, dtype=torch.float32, size=(20, 30)):
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (rows, *size, 3), generator=generator).to(dtype).movedim(-1, 1)
    return {"image": image, "label": torch.arange(rows) % 4, "mask": image[:, 0].clone(), "key": list("abcdef")[:rows]}


def test_mixing_up_is_torchvisions_row_by_row():
    given, mix = batch(), BatchMixUp(4, alpha=0.8)
    found = mix(given, torch.arange(6))
    kept = found["label"][torch.arange(6), given["label"]]  # neighbours have other labels
    assert len(set(kept.tolist())) == 6
    for row, share in enumerate(kept.tolist()):
        params = {"labels": given["label"], "batch_size": 6, "lam": share}
        torch.testing.assert_close(
            found["image"][row], v2.MixUp(num_classes=4).transform(given["image"], params)[row], atol=1e-3, rtol=0
        )
        labels = v2.MixUp(num_classes=4).transform(given["label"], params)
        torch.testing.assert_close(found["label"][row], labels[row])
    assert found["mask"] is given["mask"]
    assert found["key"] is given["key"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bfloat16])
def test_cutting_is_torchvisions_row_by_row(dtype):
    given, mix = batch(dtype=dtype), BatchCutMix(4)
    found = mix(given, torch.arange(6))
    assert found["image"].dtype == dtype
    before = given["image"].roll(1, 0)
    boxes = set()
    for row in range(6):
        pasted = ((found["image"][row] == before[row]) & (given["image"][row] != before[row])).any(0)
        y, x = torch.nonzero(pasted, as_tuple=True)
        box = (int(x.min()), int(y.min()), int(x.max()) + 1, int(y.max()) + 1)
        boxes.add(box)
        share = 1 - (box[2] - box[0]) * (box[3] - box[1]) / 600
        params = {"labels": given["label"], "batch_size": 6, "box": box, "lam_adjusted": share}
        assert torch.equal(found["image"][row], v2.CutMix(num_classes=4).transform(given["image"], params)[row])
        labels = v2.CutMix(num_classes=4).transform(given["label"], params)
        torch.testing.assert_close(found["label"][row], labels[row])
        assert torch.equal(found["mask"][row], found["image"][row, 0])
    assert len(boxes) == 6


@pytest.mark.parametrize("module", [BatchMixUp, BatchCutMix])
def test_shares_are_of_the_beta_distribution(module):
    given = {"image": torch.zeros(4000, 1, 64, 64), "label": torch.arange(4000) % 2}
    for alpha in (0.3, 1.0):
        label = module(2, alpha=alpha, p=0.5)(given, torch.arange(4000))["label"]
        kept = label[torch.arange(4000), given["label"]].numpy()
        assert 0.45 < np.mean(kept < 1) < 0.55 or module is BatchCutMix  # a rectangle may be empty
        mixed = kept[kept < 1]
        if module is BatchMixUp:
            assert abs(mixed.mean() - 0.5) < 0.03
            assert abs(mixed.var() - 1 / (4 * (2 * alpha + 1))) < 0.01
    torch.testing.assert_close(label.sum(1), torch.ones(4000))
    untouched = module(2, p=0)(given, torch.arange(4000))
    assert torch.equal(untouched["label"], torch.nn.functional.one_hot(given["label"], 2).float())


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    root = tmp_path_factory.mktemp("mixing") / "npy"
    schema = Schema((fixed("image", "|u1", 24, 24, 3), fixed("label", "<i8")))
    pixels = np.random.default_rng(0).integers(0, 256, (20, 24, 24, 3), np.uint8)
    write_dataset(root, "npy", schema, {"image": pixels, "label": np.arange(20) % 5}, shard_rows=8)
    return root


@pytest.mark.parametrize("mix", [BatchMixUp(5), BatchCutMix(5)], ids=["mixup", "cutmix"])
def test_a_loader_repeats_them(images, mix):
    chain = BatchCompose([BatchFlip(), BatchNormalize(), mix])
    runs = []
    for workers in (1, 3):
        loader = Loader(open_dataset(images), 8, shuffle="full", seed=1, workers=workers, batch_transform=chain)
        runs.append(list(loader))
        assert [b["label"].shape for b in runs[-1]] == [(8, 5), (8, 5), (4, 5)]
    for one, two in zip(*runs, strict=True):
        assert torch.equal(one["image"], two["image"])
        assert torch.equal(one["label"], two["label"])
        assert one["image"].is_contiguous(memory_format=torch.channels_last)
    torch.manual_seed(0)
    alone = mix(batch(rows=4))
    torch.manual_seed(0)
    assert torch.equal(alone["image"], mix(batch(rows=4))["image"])
    assert mix({"image": torch.zeros(0, 3, 4, 4), "label": torch.zeros(0, dtype=torch.int64)})["label"].shape == (0, 5)


@pytest.mark.parametrize("module", [BatchMixUp(4, 0.5, p=0.8), BatchCutMix(4)], ids=["mixup", "cutmix"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8])
def test_all_ways_of_mixing_agree(module, dtype, monkeypatch):
    """Row by row as on the CPU, in the batch's own memory as in the Loader's threads, and at once as on a GPU."""
    seeds = torch.arange(6)
    one, own = module(batch(dtype=dtype), seeds), module.forward_(batch(dtype=dtype), seeds)
    monkeypatch.setattr("readers.augment.pixels.mixing._by_rows", lambda image: False)
    together = module(batch(dtype=dtype), seeds)
    for name in ("image", "mask", "label"):
        assert torch.equal(one[name], own[name])
        torch.testing.assert_close(one[name], together[name], rtol=2e-3, atol=1e-3)
        assert one[name].stride() == together[name].stride()


class Threads(BatchMixUp):
    """Notes which threads it runs in."""

    def forward_(self, batch, seeds=None):
        self.names = {*getattr(self, "names", ()), threading.current_thread().name}
        return super().forward_(batch, seeds)


def test_mixing_in_the_threads_of_a_loader_repeats_after_a_resume(images):
    mix = Threads(5)
    chain, later = BatchCompose([BatchFlip(), mix]), BatchCompose([mix, torch.nn.Identity()])
    dataset = open_dataset(images, transform=Normalize())
    loader = Loader(dataset, 4, seed=2, workers=2, batch_transform=chain)
    whole = list(loader)
    assert all(name.startswith("readers-loader-") for name in mix.names)
    resumed = Loader(dataset, 4, seed=2, workers=1, batch_transform=chain)
    batches = iter(resumed)
    next(batches), next(batches)
    state = resumed.state_dict()
    batches.close()
    other = Loader(dataset, 4, seed=2, workers=3, device="cpu", batch_transform=chain)
    other.load_state_dict(state)
    for found, expected in zip(other, whole[2:], strict=True):
        assert torch.equal(found["image"], expected["image"])
        assert torch.equal(found["label"], expected["label"])
    mix.names.clear()
    # a module of another library may not be called by several threads
    assert len(list(Loader(dataset, 4, batch_transform=later))) == 5
    assert not mix.names


def test_labels_that_are_mixed_may_be_mixed_again():
    chain = BatchCompose([BatchMixUp(4), BatchCutMix(4)])
    torch.testing.assert_close(chain(batch(), torch.arange(6))["label"].sum(1), torch.ones(6))


def test_normalising_may_follow():
    found = BatchCompose([BatchMixUp(4), BatchNormalize()])(batch(dtype=torch.uint8), torch.arange(6))["image"]
    assert found.std() < 2
