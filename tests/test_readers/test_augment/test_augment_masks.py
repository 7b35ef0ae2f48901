"""Masks go where the image goes: those of a dataset with ``--also``, those that are named, and no others."""

import numpy as np
import pytest
import torch
from support.datasets import fixed, text, write_dataset
from support.errors import raises
from support.faces import face_sample

from readers import Loader, open_dataset
from readers.augment import (
    Albumentations,
    BatchCompose,
    BatchCrop,
    BatchFlip,
    BatchNormalize,
    Compose,
    CropJitter,
    DropRegion,
    HorizontalFlip,
)
from readers.augment.libraries.albumentations import load_albumentations
from readers.seeding import sample_rng
from shardspec.errors import UsageError
from shardspec.schema import Schema

A = load_albumentations()
_INNER = 200  # the coordinates of an image of this size stay below 256


def places(size: int = _INNER, frames: int | None = None) -> dict[str, np.ndarray | str]:
    """An image whose pixels say where they lie, with masks that say the same."""
    y, x = np.mgrid[:size, :size].astype(np.uint8)
    image = np.stack([x, y, np.full_like(x, 7)], -1)
    if frames:
        image = np.stack([image] * frames)
    return {
        "image": image,
        "mask_image": image.copy(),
        "fake_mask": np.ascontiguousarray(image[..., 0]),
        "mask": "masks/00012.png",
        "mask_image_valid": np.True_,
        "small_image": np.zeros((8, 8, 3), np.uint8),
    }


def assert_aligned(found, within, channel=-1):
    """Where the image shows a place, the masks show the same one."""
    image = found["image"].astype(int)
    assert np.abs(found["mask_image"].astype(int) - image).max() <= within
    assert np.abs(found["fake_mask"].astype(int) - image.take(0, channel)).max() <= within


EVERY = [
    (HorizontalFlip(p=1), 0),
    (CropJitter((0.6, 0.9)), 1),
    (CropJitter((0.8, 0.8), size=160), 0),  # a copy of the window
    (Compose([HorizontalFlip(p=1), CropJitter((0.8, 0.8), size=100)]), 1),
    (Albumentations([A.HorizontalFlip(p=1)]), 0),
    (Albumentations([A.HorizontalFlip(), A.RandomCrop(120, 120), A.Affine(scale=(1.1, 1.5), p=1)]), 1),
]


@pytest.mark.parametrize(("transform", "within"), EVERY, ids=repr)
@pytest.mark.parametrize("frames", [None, 2])
def test_masks_stay_on_the_image(transform, within, frames):
    sample = places(frames=frames)
    for row in range(12):
        found = transform(sample, sample_rng(0, 0, row))
        assert not np.array_equal(found["image"], sample["image"])
        assert_aligned(found, within)
        for name in ("mask", "mask_image_valid", "small_image"):
            assert found[name] is sample[name]


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint16, np.int32, np.uint32, np.int64, np.uint64, np.float64])
@pytest.mark.parametrize("size", [None, 90, 260])
def test_labels_of_any_dtype_are_picked_as_they_are(dtype, size):
    info = np.iinfo(dtype) if np.issubdtype(dtype, np.integer) else None
    labels = np.array([0, 1] if info is None else [info.min, 0, 1, info.max - 1, info.max], dtype)
    sample = {"image": places()["image"], "mask": np.random.default_rng(0).choice(labels, (_INNER, _INNER))}
    for row in range(6):
        found = CropJitter((0.5, 1.0), size=size)(sample, sample_rng(0, 0, row))["mask"]
        assert found.dtype == dtype
        assert set(found.ravel().tolist()) == set(labels.tolist())
    batch = {"image": torch.zeros(2, 3, _INNER, _INNER), "mask": torch.from_numpy(np.stack([sample["mask"]] * 2))}
    found = BatchCrop(size or 100, (0.9, 1.0))(batch, torch.arange(2))["mask"]
    assert found.dtype == batch["mask"].dtype
    assert set(found.numpy().ravel().tolist()) == set(labels.tolist())


@pytest.mark.parametrize("dtype", [np.uint32, np.int64, np.uint64])
def test_a_pipeline_keeps_the_dtype_of_labels(dtype):
    rotate = Albumentations([A.Affine(rotate=(20, 40), p=1)])
    sample = {"image": places()["image"], "mask": np.arange(_INNER**2, dtype=dtype).reshape(_INNER, _INNER)}
    found = rotate(sample, sample_rng(0, 0, 0))["mask"]
    assert found.dtype == dtype
    assert set(found.ravel().tolist()) <= set(range(_INNER**2))
    assert found.max() > 30_000
    with raises(UsageError, place="Albumentations", found="0 to 2147483648 in 'mask'"):
        rotate({**sample, "mask": np.where(sample["mask"] == 7, 2**31, 0).astype(dtype)}, sample_rng(0, 0, 0))


@pytest.mark.parametrize("dtype", [np.bool_, np.float16])
def test_a_pipeline_turns_masks_that_opencv_does_not_take(dtype):
    mask = np.zeros((_INNER, _INNER), dtype)
    mask[50:150, 50:150] = 1
    rotate = Albumentations([A.Affine(rotate=(20, 40), p=1)])
    found = rotate({"image": places()["image"], "mask": mask}, sample_rng(0, 0, 0))["mask"]
    assert found.dtype == dtype
    assert set(found.ravel().tolist()) == {0, 1}


def test_masks_of_wide_items_are_cropped():
    mask = np.random.default_rng(0).random((_INNER, _INNER)) * (1 + 2j)
    found = CropJitter((0.5, 0.6), size=64)({"image": places()["image"], "mask": mask}, sample_rng(0, 0, 0))["mask"]
    assert found.shape == (64, 64)
    assert np.isin(found, mask).all()


@pytest.mark.parametrize("module", [BatchFlip(p=1), BatchCrop(20, (0.5, 0.9))], ids=repr)
def test_autocast_rounds_no_geometry(module):
    batch = {
        "image": torch.zeros(4, 3, 224, 224),
        "landmarks": torch.rand(4, 5, 2) * 224,
        "regions": torch.rand(4, 4, 4).sort(-1).values * 224,
        "matrix": torch.rand(4, 2, 3) * 900,
    }
    plain = module(dict(batch), torch.arange(4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = module(dict(batch), torch.arange(4))
    for name in ("landmarks", "regions", "matrix"):
        assert torch.equal(cast[name], plain[name])
        assert cast[name].dtype == torch.float32


@pytest.mark.parametrize("module", [BatchFlip(p=0.5), BatchCrop(150), BatchCrop(90, (0.5, 0.9))], ids=repr)
def test_masks_of_batches_stay_on_the_images(module):
    one = places()
    batch = {
        "image": torch.from_numpy(np.stack([one["image"]] * 16)).permute(0, 3, 1, 2),
        "mask_image": torch.from_numpy(np.stack([one["mask_image"]] * 16)).permute(0, 3, 1, 2),
        "fake_mask": torch.from_numpy(np.stack([one["fake_mask"]] * 16)),
        "mask": ["masks/00012.png"] * 16,
    }
    found = module(batch, torch.arange(16))
    assert not torch.equal(found["image"], batch["image"])
    assert_aligned({n: v.numpy() for n, v in found.items() if n != "mask"}, 1, channel=1)
    assert found["mask"] == batch["mask"]
    normal = BatchNormalize()(batch)
    assert normal["mask_image"] is batch["mask_image"]


@pytest.mark.parametrize("make", [HorizontalFlip, CropJitter, lambda **k: Albumentations([A.HorizontalFlip(p=1)], **k)])
def test_named_masks_are_those_that_move(make):
    sample = places() | {"depth": np.ones((_INNER, _INNER, 1), np.float32).cumsum(1)}
    arguments = {} if make is not CropJitter and make is not HorizontalFlip else {"p": 1}
    found = make(masks=["depth", "fake_mask"], **arguments)(sample, sample_rng(0, 0, 0))
    assert found["mask_image"] is sample["mask_image"]
    assert not np.array_equal(found["depth"], sample["depth"])
    assert found["depth"].shape == (_INNER, _INNER, 1)
    found = make(masks=(), **arguments)(sample, sample_rng(0, 0, 0))
    assert all(found[name] is sample[name] for name in ("depth", "fake_mask", "mask_image"))


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (["nope"], r"expected 'nope' to be .*\(200, 200\).*found none of that name; .*: mask_image, fake_mask"),
        (["mask"], "expected 'mask' to be an array .*found str"),
        (["small_image"], r"expected 'small_image' .*found uint8 \(8, 8, 3\)"),
    ],
)
def test_a_named_mask_that_is_not_a_mask_is_refused(masks, message):
    rng, sample = sample_rng(0, 0, 0), places()
    batch = {"image": torch.zeros(2, 3, 200, 200), "mask_image": torch.zeros(2, 3, 200, 200)}
    chain = (HorizontalFlip(1, masks), CropJitter(masks=masks), Albumentations([A.HorizontalFlip()], masks))
    for transform in chain:
        with pytest.raises(UsageError, match=message):
            transform(sample, rng)
    with pytest.raises(UsageError, match=f"DropRegion: masks: {message}"):
        DropRegion(p=1, fill_mask=0, masks=masks)(sample | {"regions": face_sample()["regions"]}, rng)
    for module in (BatchFlip(1, masks), BatchCrop(9, masks=masks)):
        with pytest.raises(UsageError, match=f"masks: expected '{masks[0]}' to be a tensor .*: mask_image$"):
            module(batch)


@pytest.mark.parametrize("masks", ["mask", 5, [5]])
def test_masks_that_are_not_a_list_of_names_are_refused(masks):
    makes = (HorizontalFlip, DropRegion, BatchFlip, lambda masks: BatchCrop(9, masks=masks))
    for make in (*makes, lambda masks: Albumentations([A.HorizontalFlip()], masks)):
        with pytest.raises(UsageError, match="expected masks to be a list of names, or None"):
            make(masks=masks)


@pytest.fixture
def packed(tmp_path):
    """What ``packer build --also mask`` leaves: the mask's image, and its path under the column's name."""
    schema = Schema(
        (
            text("key"),
            fixed("image", "|u1", _INNER, _INNER, 3),
            text("mask"),
            fixed("mask_image", "|u1", _INNER, _INNER, 3),
            fixed("mask_image_valid", "|b1"),
        )
    )
    images = [places()["image"]] * 12
    columns = {
        "key": [f"{i:08d}-000000" for i in range(12)],
        "image": np.stack(images),
        "mask": [f"{i}.png" for i in range(12)],
        "mask_image": np.stack(images),
        "mask_image_valid": np.ones(12, np.bool_),
    }
    write_dataset(tmp_path / "d", "npy", schema, columns, shard_rows=5)
    return tmp_path / "d"


def test_a_loaders_batches_have_masks_that_lie_on_their_images(packed):
    dataset = open_dataset(packed, transform=Compose([HorizontalFlip(), CropJitter((0.7, 0.9), size=128)]))
    whole = BatchCompose([BatchFlip(), BatchCrop(96)])
    for batch in Loader(dataset, 6, batch_transform=whole, seed=1):
        assert batch["image"].shape == batch["mask_image"].shape == (6, 3, 96, 96)
        assert (batch["image"].int() - batch["mask_image"].int()).abs().max() <= 1
        assert batch["mask"][0].endswith(".png")
