"""Colours, blur, erasing and floating numbers are torchvision's, and chains of them are what the single ones give."""

import pickle

import cv2
import numpy as np
import pytest
import skimage.data
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.datasets import fixed, write_dataset
from support.faces import face_sample
from torch.utils.data import DataLoader
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from readers import Loader, open_dataset
from readers.augment import (
    ColorJitter,
    Compose,
    DropRegion,
    GaussianBlur,
    HorizontalFlip,
    Normalize,
    RandAugment,
    RandomErasing,
    ToFloat,
    TrivialAugment,
    VerticalFlip,
)
from readers.augment.pixels import colors
from readers.augment.pixels.canvas import Pixels
from readers.augment.pixels.floats import encoded
from readers.decode.values import BFLOAT16
from readers.seeding import sample_rng
from shardspec.schema import Schema

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def photo(size=96):
    return cv2.resize(skimage.data.astronaut(), (size, size), interpolation=cv2.INTER_AREA)


IMAGES = {
    "photo": photo(),
    "noise": np.random.default_rng(0).integers(0, 256, (40, 56, 3), np.uint8),
    "greys": np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, 2),
    "dark": np.zeros((8, 9, 3), np.uint8),
    "grey": photo()[..., :1].copy(),
}


def as_torch(picture):
    return torch.from_numpy(picture).permute(2, 0, 1)


def as_bits(array):
    """A tensor in the memory order of a sample's image."""
    return (
        torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        if array.dtype == BFLOAT16
        else torch.from_numpy(array)
    )


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("change", ["brightness", "contrast", "saturation", "hue"])
def test_colours_are_torchvisions_within_one_level(name, change):
    picture = IMAGES[name]
    factors = (-0.5, -0.3, -0.01, 0.0, 0.1, 0.37, 0.5) if change == "hue" else (0.0, 0.3, 0.6, 1.0, 1.4, 1.7, 2.0)
    for factor in factors:
        pixels = Pixels(picture)
        getattr(colors, f"adjust_{change}")(pixels, factor)
        wanted = getattr(functional, f"adjust_{change}")(as_torch(picture), factor).permute(1, 2, 0).numpy()
        found = pixels.values()
        assert found.dtype == np.uint8
        assert found.shape == picture.shape
        limit = 0 if change == "brightness" or factor == (0 if change == "hue" else 1) else 1
        assert np.abs(found.astype(int) - wanted).max() <= limit, factor


@pytest.mark.parametrize("seed", range(6))
def test_jitter_is_its_changes_in_the_drawn_order(seed):
    jitter = ColorJitter(0.4, (0.5, 1.5), 0.4, 0.1)
    params = jitter.draw({}, sample_rng(0, 0, seed))
    found = jitter.apply({"image": photo()}, params)["image"]
    wanted = as_torch(photo())
    names = ("brightness", "contrast", "saturation", "hue")
    for number in params.order:
        wanted = getattr(functional, f"adjust_{names[number]}")(wanted, params.factors[number])
    # a level of one change is up to two after a stretch of 1.5 by the next
    assert np.abs(found.astype(int) - wanted.permute(1, 2, 0).numpy()).max() <= 4
    assert np.abs(found.astype(int) - wanted.permute(1, 2, 0).numpy()).mean() < 0.7


def test_jitter_draws_as_torchvision_does():
    jitter = ColorJitter(0.4, (0.2, 0.9), None, 0.1)
    draws = [jitter.draw({}, sample_rng(0, 0, row)) for row in range(2000)]
    assert {draw.factors[2] for draw in draws} == {None}
    for at, (least, most) in {0: (0.6, 1.4), 1: (0.2, 0.9), 3: (-0.1, 0.1)}.items():
        values = np.array([draw.factors[at] for draw in draws])
        assert least <= values.min() < least + 0.01 * (most - least)
        assert most - 0.01 * (most - least) < values.max() <= most
    orders = {draw.order for draw in draws}
    assert len(orders) == 24
    assert v2.ColorJitter(0.4).brightness == ColorJitter(0.4).brightness
    assert ColorJitter(2.0).brightness == (0.0, 3.0)


def test_levels_are_torchvisions_numbers_to_the_last_bit():
    for picture in (photo(), IMAGES["noise"]):
        unit = functional.to_dtype(as_torch(picture), torch.float32, scale=True)
        normal = functional.normalize(unit, MEAN, STD)
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for transform, wanted in ((ToFloat(dtype), unit), (Normalize(MEAN, STD, dtype), normal)):
                found = transform({"image": picture}, sample_rng(0, 0, 0))["image"]
                assert torch.equal(as_bits(found), wanted.permute(1, 2, 0).to(dtype))
    assert Normalize(0.5, 0.25, "float16").mean == (0.5,)
    grey = Normalize(0.5, 0.25)({"image": IMAGES["grey"]}, sample_rng(0, 0, 0))["image"]
    assert np.array_equal(grey, (IMAGES["grey"] * np.float32(1 / 255) - np.float32(0.5)) / np.float32(0.25))


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=30))
@settings(deadline=None)
def test_bfloat16_is_rounded_as_torch_rounds(numbers):
    found = as_bits(encoded(numbers, BFLOAT16))
    assert torch.equal(found, torch.tensor(numbers, dtype=torch.float32).to(torch.bfloat16))


@pytest.mark.parametrize(("kernel", "sigma"), [(3, 0.1), (5, 1.0), ((7, 3), 2.0), (23, 4.5)])
def test_blur_is_torchvisions_within_one_level(kernel, sigma):
    for picture in (photo(), IMAGES["noise"], IMAGES["grey"]):
        blur = GaussianBlur(kernel, sigma)
        found = blur({"image": picture}, sample_rng(0, 0, 0))["image"]
        size = list(blur.kernel_size)
        wanted = functional.gaussian_blur(as_torch(picture), size, [sigma, sigma]).permute(1, 2, 0).numpy()
        assert found.shape == picture.shape
        assert np.abs(found.astype(int) - wanted).max() <= 1
    drawn = [GaussianBlur(5, (0.5, 1.5)).draw({}, sample_rng(0, 0, row)) for row in range(200)]
    assert 0.5 <= min(drawn) < 0.55
    assert 1.45 < max(drawn) <= 1.5


@pytest.mark.parametrize("value", [0, 7.5, (1, 2, 3)])
def test_erasing_is_torchvisions(value):
    erase = RandomErasing(p=1, value=value)
    picture = photo()
    for row in range(20):
        box = erase.draw({"image": picture}, sample_rng(0, 0, row))
        fill = torch.tensor(value, dtype=torch.float32).reshape(-1, 1, 1)
        for image in (as_torch(picture), functional.to_dtype(as_torch(picture), torch.float32, scale=True)):
            wanted = functional.erase(image, box.top, box.left, box.height, box.width, fill.to(image.dtype))
            given_image = image.permute(1, 2, 0).numpy().copy()
            found = erase.apply({"image": given_image}, box)["image"]
            assert np.array_equal(found, wanted.permute(1, 2, 0).numpy())
            assert np.array_equal(given_image, image.permute(1, 2, 0).numpy())


def test_erased_boxes_have_torchvisions_sizes():
    torch.manual_seed(0)
    sample = {"image": np.zeros((100, 80, 3), np.uint8)}
    own = [RandomErasing().draw(sample, sample_rng(0, 0, row)) for row in range(3000)]
    theirs = [v2.RandomErasing().make_params([as_torch(sample["image"])]) for _ in range(3000)]
    for name, their in (("height", "h"), ("width", "w"), ("top", "i"), ("left", "j")):
        ours = np.array([getattr(box, name) for box in own])
        other = np.array([box[their] for box in theirs])
        assert abs(np.mean(ours) - np.mean(other)) < 0.05 * np.mean(other) + 0.5
        assert abs(np.std(ours) - np.std(other)) < 0.06 * np.std(other)
    assert RandomErasing(scale=(1, 1)).draw(sample, sample_rng(0, 0, 0)) is None
    assert RandomErasing(p=1, scale=(1, 1))(sample, sample_rng(0, 0, 0))["image"].max() == 0


@pytest.mark.parametrize("before", [[], [Normalize()], [Normalize(dtype="bfloat16")]])
def test_erasing_by_noise(before):
    chain = Compose([*before, RandomErasing(p=1, scale=(0.3, 0.33), ratio=(1, 1), value="random")])
    found = as_bits(chain({"image": np.full((200, 200, 3), 128, np.uint8)}, sample_rng(0, 0, 0))["image"]).float()
    plain = found[0, 0]
    noise = found[(found != plain).any(-1)]
    assert 0.25 < len(noise) / 200**2 < 0.34
    mean, std = (127.5, 73.9) if not before else (0, 1)
    assert abs(noise.mean() - mean) < 0.02 * std
    assert abs(noise.std() - std) < 0.02 * std


def test_masks_are_erased_only_if_they_have_a_fill():
    mask = np.full((60, 60), 9, np.uint8)
    sample = {"image": np.maximum(photo(60), 1), "mask": mask}
    box = (erase := RandomErasing(p=1, fill_mask=3)).draw(sample, sample_rng(0, 0, 1))
    found = erase.apply(sample, box)
    assert np.array_equal(found["mask"] == 3, (found["image"] == 0).all(-1))
    assert (mask == 9).all()
    assert RandomErasing(p=1).apply(sample, box)["mask"] is mask
    clip = {"image": np.stack([sample["image"]] * 2), "mask": np.stack([mask] * 2)}
    both = erase.apply(clip, box)
    for frame in range(2):
        assert np.array_equal(both["mask"][frame], found["mask"])
        assert np.array_equal(both["image"][frame], found["image"])


def recipe(dtype="float32"):
    return [
        VerticalFlip(),
        HorizontalFlip(),
        ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        GaussianBlur(5, p=0.3),
        RandAugment(),
        DropRegion(),
        TrivialAugment(p=0.3),
        ColorJitter(0.4),
        Normalize(dtype=dtype),
        RandomErasing(),
    ]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_chain_equals_its_transforms_one_by_one(dtype):
    sample = face_sample()
    before = pickle.dumps(sample)
    chain = pickle.loads(pickle.dumps(Compose(recipe(dtype))))
    for row in range(12):
        one, rng = sample, sample_rng(0, 0, row)
        for transform in recipe(dtype):
            one = transform(one, rng)
        together = chain(sample, sample_rng(0, 0, row))
        assert together.keys() == one.keys()
        for name, value in one.items():
            assert np.asarray(together[name]).tobytes() == np.asarray(value).tobytes(), name
    assert pickle.dumps(sample) == before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_chain_writes_its_result_into_the_memory_of_the_batch(dtype):
    sample = face_sample()
    chain = Compose(recipe(dtype))
    for row in range(8):
        out = np.empty_like(chain(sample, sample_rng(0, 0, row))["image"])
        found = chain.write_image(sample, sample_rng(0, 0, row), out)["image"]
        assert found is out
        assert found.tobytes() == chain(sample, sample_rng(0, 0, row))["image"].tobytes()
    for other in (np.empty(out.shape, np.float64), np.empty((9, 9, 3), np.float32), None):
        found = chain.write_image(sample, sample_rng(0, 0, row), other)["image"]
        assert found is not other
        assert found.tobytes() == out.tobytes()


@given(st.floats(0, 3), st.floats(-400, 300))
@settings(deadline=None)
def test_vector_code_gives_what_the_table_does(factor, shift):
    picture = IMAGES["noise"]
    quick, slow = Pixels(picture), Pixels(picture)
    colors._scale(quick, factor, shift)
    slow.look_up(np.arange(256, dtype=np.uint8))  # two tables, which nothing but a table can be
    colors._scale(slow, factor, shift)
    assert np.array_equal(quick.values(), slow.values())


@given(st.floats(-10, 300) | st.integers(-1, 257))
@settings(deadline=None)
def test_values_from_a_threshold_on_are_turned(threshold):
    pixels, levels = Pixels(IMAGES["noise"]), np.arange(256)
    colors.solarize(pixels, threshold)
    wanted = np.where(levels >= threshold, 255 - levels, levels).astype(np.uint8)[IMAGES["noise"]]
    assert np.array_equal(pixels.values(), wanted)


def test_a_vertical_flip_is_a_half_turn_and_a_mirror():
    sample = face_sample()
    flipped = VerticalFlip(p=1)(sample, sample_rng(0, 0, 0))
    assert np.array_equal(flipped["image"], sample["image"][::-1])
    mirrored = HorizontalFlip(p=1)(sample, sample_rng(0, 0, 0))
    height, width = sample["image"].shape[:2]
    for name in ("landmarks", "hull"):
        assert np.allclose(flipped[name], (width, height) - mirrored[name], atol=1e-3)
    corners = (width, height, width, height) - mirrored["regions"]
    assert np.allclose(flipped["regions"], corners[..., [2, 3, 0, 1]], atol=1e-3)
    back = VerticalFlip(p=1)(flipped, sample_rng(0, 0, 0))
    for name, value in sample.items():
        assert np.allclose(back[name], value, atol=1e-3) if isinstance(value, np.ndarray) else back[name] == value


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    root = tmp_path_factory.mktemp("pixels") / "npy"
    schema = Schema((fixed("image", "|u1", 32, 32, 3), fixed("label", "<i8")))
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 32, 3), np.uint8)
    values = {"image": pixels, "label": np.arange(24)}
    write_dataset(root, "npy", schema, values, shard_rows=10)
    return root


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_batches_have_the_dtype_and_are_channels_last(images, dtype):
    chain = Compose([HorizontalFlip(), ColorJitter(0.4, 0.4, 0.4), Normalize(dtype=dtype), RandomErasing()])
    ds = open_dataset(images, transform=chain)
    batches = list(Loader(ds, 8, shuffle="full", seed=3, workers=2))
    assert len(batches) == 3
    for batch in batches:
        assert batch["image"].dtype == dtype
        assert batch["image"].shape == (8, 3, 32, 32)
        assert batch["image"].is_contiguous(memory_format=torch.channels_last)
    again = list(Loader(ds, 8, shuffle="full", seed=3, workers=1))
    sampler = ds.sampler(shuffle="full", seed=3)
    others = list(DataLoader(ds, 8, sampler=sampler, collate_fn=ds.collate, num_workers=2))
    for one, two, three in zip(batches, again, others, strict=True):
        assert torch.equal(one["image"], two["image"])
        assert torch.equal(one["image"], three["image"])
        assert three["image"].dtype == dtype
        assert three["image"].is_contiguous(memory_format=torch.channels_last)
