"""Transforms that move things: what the image shows and what the fields say stay together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.faces import SIZE, assert_same, face_sample, in_frame

from readers.augment import CropJitter, HorizontalFlip
from readers.seeding import sample_rng
from shardspec.points import LAYOUTS, flip_permutation, hull_flip_permutation

EVERY = pytest.mark.parametrize("layout", list(LAYOUTS))
SEEDS = st.integers(0, 2**40 - 1)


def dotted(points, size=SIZE):
    """A black image with a grey dot of 5 pixels, of its own value, around each point."""
    image = np.zeros((size, size, 3), np.uint8)
    for value, (x, y) in enumerate(points, 1):
        image[int(y) - 2 : int(y) + 3, int(x) - 2 : int(x) + 3] = 40 * value
    return image


def with_dots(layout="5"):
    """A sample in which the image itself shows where five points are."""
    sample = face_sample(layout)
    sample["landmarks"] = np.array(
        [[80.5, 90.5], [140.5, 92.5], [110.5, 120.5], [90.5, 150.5], [130.5, 151.5]], np.float32
    )
    sample["image"] = dotted(sample["landmarks"])
    sample["mask"] = sample["image"][..., 0].copy()
    return sample


@EVERY
def test_a_flip_mirrors_and_swaps_left_and_right(layout):
    sample = face_sample(layout)
    flipped = HorizontalFlip(p=1)(sample, sample_rng(0, 0, 0))
    assert np.array_equal(flipped["image"], sample["image"][:, ::-1])
    assert np.array_equal(flipped["mask"], sample["mask"][:, ::-1])
    mirror = np.float32([-1, 1])
    expected = (sample["landmarks"] * mirror + (SIZE, 0))[flip_permutation(layout)]
    np.testing.assert_allclose(flipped["landmarks"], expected, atol=1e-4)
    hull = (sample["hull"] * mirror + (SIZE, 0))[hull_flip_permutation(layout)]
    np.testing.assert_allclose(flipped["hull"], hull, atol=1e-4)
    np.testing.assert_allclose(flipped["regions"][0], [SIZE - 100, 70, SIZE - 70, 85])  # was the right eye
    np.testing.assert_allclose(flipped["boxes"][0], [SIZE - 60, 20, SIZE - 10, 90])
    assert flipped["label"] == 1
    assert flipped["key"] == sample["key"]


@EVERY
@given(seed=SEEDS)
def test_points_stay_at_their_place_in_the_frame(layout, seed):
    """Whatever a jitter does, the matrix leads back to where the points were."""
    sample = face_sample(layout)
    moved = CropJitter(scale=(0.5, 1), size=160)(sample, sample_rng(seed, 0, 0))
    for name in ("landmarks", "hull"):
        np.testing.assert_allclose(in_frame(moved, moved[name]), in_frame(sample, sample[name]), atol=2e-3)
    flipped = HorizontalFlip(p=1)(moved, sample_rng(seed, 0, 1))
    np.testing.assert_allclose(
        in_frame(flipped, flipped["landmarks"])[flip_permutation(layout)],
        in_frame(sample, sample["landmarks"]),
        atol=2e-3,
    )


@given(seed=SEEDS, size=st.sampled_from([None, 112, 300]))
def test_a_jitter_puts_each_point_where_the_image_shows_it(seed, size):
    sample = with_dots()
    moved = CropJitter(scale=(0.7, 1), size=size)(sample, sample_rng(seed, 0, 0))
    side = SIZE if size is None else size
    assert moved["image"].shape == (side, side, 3)
    assert moved["mask"].shape == (side, side)
    for k, (x, y) in enumerate(moved["landmarks"], 1):
        if 0 <= x < side and 0 <= y < side:
            assert abs(int(moved["image"][int(y), int(x), 0]) - 40 * k) <= 2
            assert moved["mask"][int(y), int(x)] == 40 * k  # nearest pixels: no value is made up


def test_a_jitter_stays_inside_the_crop_and_reaches_all_of_it():
    sample = face_sample()
    corners = []
    for row in range(300):
        moved = CropJitter(scale=(0.75, 0.75))(sample, sample_rng(0, 0, row))
        left, top = np.round(-(moved["matrix"][:, 2] - sample["matrix"][:, 2] * SIZE / 168) / (SIZE / 168))
        corners.append((left, top))
    assert np.min(corners) == 0
    assert np.max(corners) == SIZE - 168
    still = CropJitter(scale=(0.75, 0.75), shift=0)(sample, sample_rng(0, 0, 0))
    assert np.array_equal(still["image"].shape, sample["image"].shape)
    np.testing.assert_allclose(still["landmarks"], (sample["landmarks"] - 28) * (SIZE / 168), atol=1e-3)


def test_a_jitter_that_does_nothing_keeps_every_pixel():
    sample = face_sample()
    same = CropJitter(scale=(1, 1))(sample, sample_rng(0, 0, 0))
    assert_same(same, sample)
    assert not np.shares_memory(same["image"], sample["image"])


def test_all_results_have_the_requested_size():
    transform = CropJitter(size=96, p=0.5)
    shapes = {transform(face_sample(), sample_rng(0, 0, row))["image"].shape for row in range(20)}
    assert shapes == {(96, 96, 3)}


def test_a_flip_has_its_probability():
    sample = face_sample()
    transform = HorizontalFlip(p=0.3)
    flipped = [transform(sample, sample_rng(0, 0, row)) is not sample for row in range(2000)]
    assert 0.26 < np.mean(flipped) < 0.34
