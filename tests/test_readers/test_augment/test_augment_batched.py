"""Augmentation of whole batches in torch."""

import numpy as np
import pytest
import torch
from support.errors import raises
from support.faces import SIZE, face_sample, in_frame
from torchvision.transforms import v2

from readers import Loader, open_dataset
from readers.augment import (
    BatchCompose,
    BatchCrop,
    BatchDropRegion,
    BatchFlip,
    BatchNormalize,
    DropRegion,
    HorizontalFlip,
)
from readers.augment.row_random import RowDraws
from readers.seeding import sample_rng
from shardspec.errors import UsageError

GEOMETRY = ("landmarks", "hull", "regions", "boxes", "matrix")
ROWS = np.array([5, 17, 2**39, 0, 999, 123456])
SEEDS = torch.from_numpy(ROWS * 31)


def batch_of(layout="5", rows=ROWS):
    """A batch of as many portraits, each a little darker than the one before, as the readers give it."""
    samples = [face_sample(layout, seed=int(row) % 1000) for row in rows]
    images = np.stack([sample["image"] // (at + 1) for at, sample in enumerate(samples)])
    batch = {
        "image": torch.from_numpy(images).permute(0, 3, 1, 2),
        "mask": torch.from_numpy(np.stack([sample["mask"] for sample in samples])),
        "landmarks_valid": torch.ones(len(rows), dtype=torch.bool),
        "label": torch.arange(len(rows)),
        "key": [f"{row:08d}-000000" for row in rows],
    }
    return batch | {name: torch.from_numpy(np.stack([sample[name] for sample in samples])) for name in GEOMETRY}


def sample_of(batch, at):
    """One row of a batch as a sample of numpy values."""
    values = {name: value[at].numpy() for name, value in batch.items() if isinstance(value, torch.Tensor)}
    return values | {"image": np.ascontiguousarray(batch["image"][at].permute(1, 2, 0).numpy())}


def everything(size=180):
    return BatchCompose([BatchFlip(), BatchCrop(size, (0.7, 1.0)), BatchDropRegion(p=0.6), BatchNormalize()])


@pytest.mark.parametrize("layout", ["5", "68", "468", "478"])
def test_a_flip_is_that_of_single_samples(layout):
    batch = batch_of(layout)
    flipped = BatchFlip(p=1)(batch, SEEDS)
    for at in range(len(ROWS)):
        expected = HorizontalFlip(p=1)(sample_of(batch, at), sample_rng(0, 0, 0))
        found = sample_of(flipped, at)
        for name in ("image", "mask"):
            assert np.array_equal(found[name], expected[name])
        for name in GEOMETRY:
            np.testing.assert_allclose(found[name], expected[name], atol=1e-4)
    assert flipped["key"] == batch["key"]


def test_rows_are_flipped_one_by_one():
    batch = batch_of(rows=range(64))
    flipped = BatchFlip(p=0.5)(batch, torch.arange(64))
    changed = [not torch.equal(a, b) for a, b in zip(flipped["image"], batch["image"], strict=True)]
    assert 20 < sum(changed) < 44
    for at, hit in enumerate(changed):
        mirror = flipped["matrix"][at, 0, 0] < 0
        assert mirror == hit
        assert torch.equal(flipped["landmarks"][at], batch["landmarks"][at]) != hit


def test_a_row_does_not_depend_on_its_batch():
    batch, transform = batch_of(), everything()
    whole = transform(batch, SEEDS)
    order = [4, 0, 2]
    part = {n: v[order] if isinstance(v, torch.Tensor) else [v[k] for k in order] for n, v in batch.items()}
    found = transform(part, SEEDS[order])
    for name in ("image", "mask", *GEOMETRY):
        assert torch.equal(found[name], whole[name][order]), name
    another = transform(batch, SEEDS + 1)
    assert not any(torch.equal(a, b) for a, b in zip(another["image"], whole["image"], strict=True))


def test_the_input_is_not_written_to():
    batch = batch_of()
    before = {name: value.clone() for name, value in batch.items() if isinstance(value, torch.Tensor)}
    everything()(batch, SEEDS)
    BatchCrop(100)(batch)
    for name, value in before.items():
        assert torch.equal(batch[name], value), name


def test_images_stay_in_channels_last_memory():
    batch = batch_of()
    for module in (BatchFlip(p=0.5), BatchCrop(100), BatchCrop(100, (0.5, 1)), BatchDropRegion(p=1), BatchNormalize()):
        found = module(batch, SEEDS)["image"]
        assert found.is_contiguous(memory_format=torch.channels_last), module


def test_a_crop_copies_its_window():
    batch = batch_of(rows=range(40))
    cropped = BatchCrop(150)(batch, torch.arange(40))
    assert cropped["image"].shape == (40, 3, 150, 150)
    assert cropped["image"].dtype == torch.uint8
    shift = (cropped["landmarks"] - batch["landmarks"])[:, 0].round().long()
    assert shift.min() < -60
    assert shift.max() > -15
    for at, (x, y) in enumerate((-shift).tolist()):
        assert torch.equal(cropped["image"][at], batch["image"][at, :, y : y + 150, x : x + 150])
        assert torch.equal(cropped["mask"][at], batch["mask"][at, y : y + 150, x : x + 150])


def test_every_place_of_a_crop_is_possible_and_the_whole_image_too():
    batch = batch_of()
    assert torch.equal(BatchCrop(SIZE)(batch)["image"], batch["image"])
    draws = RowDraws(ROWS)
    draws.uniform = lambda count: np.full((len(ROWS), count), 1 - 2**-24, np.float32)
    last = BatchCrop(SIZE - 1)(batch, draws)["image"]
    assert torch.equal(last, batch["image"][:, :, 1:, 1:])


@pytest.mark.parametrize("scale", [(1.0, 1.0), (0.6, 0.9)])
def test_a_scaled_crop_keeps_everything_together(scale):
    batch = batch_of("68")
    cropped = BatchCrop(SIZE, scale)(batch, SEEDS)
    assert cropped["image"].dtype == torch.float32
    assert cropped["mask"].dtype == torch.uint8
    for at in range(len(ROWS)):
        old, new = sample_of(batch, at), sample_of(cropped, at)
        for name in ("landmarks", "hull"):
            np.testing.assert_allclose(in_frame(new, new[name]), in_frame(old, old[name]), atol=2e-3)
    if scale == (1.0, 1.0):
        assert (cropped["image"] - batch["image"]).abs().max() < 0.05
        assert torch.equal(cropped["mask"], batch["mask"])


def test_a_dropped_region_is_that_of_single_samples():
    batch = batch_of()
    for name in ("eyes", "left_eye", "right_eye", "nose", "mouth"):
        found = BatchDropRegion([name], p=1, fill=9)(batch, SEEDS)
        for at in range(len(ROWS)):
            expected = DropRegion([name], p=1, fill=9)(sample_of(batch, at), sample_rng(0, 0, 0))
            assert np.array_equal(sample_of(found, at)["image"], expected["image"])


def test_rows_without_valid_landmarks_keep_their_image():
    batch = batch_of()
    batch["landmarks_valid"] = torch.tensor([True, False] * 3)
    found = BatchDropRegion(p=1)(batch, SEEDS)["image"]
    assert [torch.equal(a, b) for a, b in zip(found, batch["image"], strict=True)] == [False, True] * 3


def test_normalising_is_what_torchvision_does():
    batch = batch_of()
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = (batch["image"].float() / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    found = BatchNormalize()(batch)["image"]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert BatchNormalize(dtype=torch.float16)(batch)["image"].dtype == torch.float16


def test_modules_of_torchvision_work_in_a_loader(raw_path):
    dataset = open_dataset(raw_path)
    (plain,) = Loader(dataset, len(dataset), shuffle=False)
    chain = BatchCompose([v2.RandomHorizontalFlip(1.0), v2.ToDtype(torch.float32, scale=True)])
    (found,) = Loader(dataset, len(dataset), shuffle=False, batch_transform=chain)
    torch.testing.assert_close(found["image"], plain["image"].flip(-1).float() / 255)
    assert found["key"] == plain["key"]
    assert torch.equal(found["label"], plain["label"])


def test_draws_are_uniform_apart_and_pinned():
    """The golden values hold the stream itself: a change here changes everybody's augmentation."""
    numbers = RowDraws(np.arange(50_000)).uniform(4)
    assert numbers.dtype == np.float32
    assert numbers.min() >= 0
    assert numbers.max() < 1
    np.testing.assert_allclose(numbers.mean(axis=0), 0.5, atol=0.006)
    np.testing.assert_allclose(numbers.var(axis=0), 1 / 12, atol=0.002)
    correlation = np.corrcoef(np.vstack([numbers.T, numbers[::-1].T, np.roll(numbers, 1, 0).T]))
    assert np.abs(correlation - np.eye(12)).max() < 0.02
    whole, parts = RowDraws(ROWS), RowDraws(ROWS)
    np.testing.assert_array_equal(whole.uniform(5), np.hstack([parts.uniform(2), parts.uniform(3)]))
    golden = RowDraws(np.array([0, -(2**63), 2**63 - 1])).uniform(2) * 2**24
    np.testing.assert_array_equal(golden.astype(int), GOLDEN)


GOLDEN = [[10946269, 11764387], [8838034, 6036108], [6932953, 8356977]]


def test_boxes_of_different_numbers_are_refused_in_a_batch():
    batch = batch_of() | {"boxes": [np.zeros((at, 4), np.float32) for at in range(len(ROWS))]}
    with raises(UsageError, place="field 'boxes'", found="different numbers"):
        BatchFlip(p=1)(batch, SEEDS)
    names = [["cat"]] * len(ROWS)
    assert BatchFlip(p=1)(batch | {"boxes": names}, SEEDS)["boxes"] is names
