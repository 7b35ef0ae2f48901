"""RandAugment and TrivialAugment are torchvision's, change by change, and carry masks and geometry along."""

import math

import cv2
import numpy as np
import pytest
import skimage.data
import torch
from support.faces import face_sample, in_frame
from torchvision.transforms import v2

from readers.augment import RandAugment, TrivialAugment
from readers.augment.pixels.policies import _CHANGES
from readers.seeding import sample_rng

MAGNITUDES = {
    "Posterize": (8.0, 6.0, 4.0, 2.0),
    "Solarize": (1.0, 0.7, 0.03, 0.0),
    "Rotate": (-135.0, -9.0, 9.0, 61.0),
    "TranslateX": (-30.5, 12.2, 70.0, 500.0),
    "TranslateY": (-30.5, 12.2, 70.0),
}
MOVING = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")


def photo(width=100, height=80):
    return cv2.resize(skimage.data.astronaut(), (width, height), interpolation=cv2.INTER_AREA)


def theirs(picture, name, magnitude, fill=None):
    policy = v2.RandAugment(fill=fill)
    image = torch.from_numpy(picture.copy()).permute(2, 0, 1)
    out = policy._apply_image_or_video_transform(image, name, magnitude, policy.interpolation, policy._fill)
    return out.permute(1, 2, 0).numpy().astype(int)


@pytest.mark.parametrize("name", _CHANGES)
def test_each_change_is_torchvisions(name):
    narrow = (photo() // 3 + 40).astype(np.uint8)
    for picture in (photo(), narrow, narrow[..., :1].copy(), np.full((9, 9, 3), 77, np.uint8)):
        for magnitude in MAGNITUDES.get(name, (-0.9, -0.3, 0.0, 0.05, 0.27, 0.9)):
            found = RandAugment().apply({"image": picture}, ((name, magnitude),))["image"]
            off = np.abs(found - theirs(picture, name, magnitude))
            assert found.shape == picture.shape
            if name in MOVING:
                assert (off > 0).any(-1).mean() < 0.003, magnitude
            else:
                assert off.max() <= (name in ("Color", "Contrast", "Sharpness")), magnitude


def test_areas_from_outside_the_image_get_the_fill():
    found = RandAugment(fill=(1, 2, 3)).apply({"image": photo()}, (("Rotate", 30.0),))["image"]
    assert (np.abs(found - theirs(photo(), "Rotate", 30.0, fill=[1, 2, 3])) > 0).any(-1).mean() < 0.003
    assert found[0, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("policy", [RandAugment, TrivialAugment])
def test_magnitudes_are_torchvisions(policy):
    """Every change comes about as often, at the magnitudes of torchvision's table, with both signs."""
    other = (v2.RandAugment if policy is RandAugment else v2.TrivialAugmentWide)._AUGMENTATION_SPACE
    sample = {"image": photo()}
    found = {name: [] for name in _CHANGES}
    for row in range(3000):
        ours = policy(magnitude=row % 31) if policy is RandAugment else policy()
        for name, magnitude in ours.draw(sample, sample_rng(0, 0, row)):
            found[name].append(magnitude)
    assert set(found) == set(other)
    total = sum(map(len, found.values()))
    for name, (table, signed) in other.items():
        assert abs(len(found[name]) / total - 1 / 14) < 0.02
        wanted = table(31, *sample["image"].shape[:2])
        wanted = np.zeros(1) if wanted is None else wanted.double().numpy()
        distance = np.abs(np.abs(found[name])[:, None] - wanted).min(1)
        assert distance.max() < 1e-4 * max(1, wanted.max())
        assert np.abs(np.abs(found[name]) - wanted.max()).min() < 1e-4 * max(1, wanted.max())
        assert {math.copysign(1, value) for value in found[name] if value} >= ({-1, 1} if signed else set())
        assert signed or min(found[name]) >= 0


def dots():
    """A face sample whose image and mask show a dot of its own at each landmark."""
    sample = dict(face_sample())
    sample["landmarks"] = np.float32([[80, 90], [140, 90], [110, 120], [90, 150], [130, 150]])
    image = np.zeros((224, 224, 3), np.uint8)
    for k, (x, y) in enumerate(sample["landmarks"].astype(int)):
        image[y - 4 : y + 4, x - 4 : x + 4] = 40 * (k + 1)
    return {**sample, "image": image, "mask": image[..., 0].copy(), "ids_image": image[..., 0].astype(np.int64) << 33}


@pytest.mark.parametrize("name", MOVING)
@pytest.mark.parametrize("sign", [-1, 1])
def test_geometry_and_masks_go_where_the_image_goes(name, sign):
    sample = dots()
    magnitude = sign * {"Rotate": 25.0, "TranslateX": 30.0, "TranslateY": 30.0}.get(name, 0.25)
    found = RandAugment(fill_mask=255).apply(sample, ((name, magnitude),))
    for k, (x, y) in enumerate(found["landmarks"]):
        assert found["image"][int(y), int(x), 0] == 40 * (k + 1)
    inner = found["mask"] != 255
    assert not inner.all()
    assert np.mean(found["image"][inner][:, 0] != found["mask"][inner]) < 0.002
    assert np.array_equal(found["ids_image"][inner], found["mask"][inner].astype(np.int64) << 33)
    np.testing.assert_allclose(in_frame(found, found["landmarks"]), in_frame(sample, sample["landmarks"]), atol=2e-3)
    assert found["landmarks"].dtype == np.float32
    assert sample["mask"].max() == 200


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint16, np.float16, np.int32, np.int64, np.float64])
@pytest.mark.parametrize("tail", [(), (1,), (3,), (5,)])
def test_masks_of_any_dtype_are_picked_as_they_are(dtype, tail):
    mask = np.random.default_rng(0).integers(-3, 120, (80, 100, *tail)).astype(dtype)
    sample = {"image": photo(), "mask": mask}
    found = RandAugment(fill_mask=1).apply(sample, (("TranslateX", 10.0),))["mask"]
    wanted = np.ones_like(mask)
    wanted[:, 10:] = mask[:, :-10]
    assert found.dtype == dtype
    assert np.array_equal(found, wanted)
    turned = RandAugment().apply(sample, (("Rotate", 33.0),))["mask"]
    assert set(turned.ravel().tolist()) <= {0, *mask.ravel().tolist()}
