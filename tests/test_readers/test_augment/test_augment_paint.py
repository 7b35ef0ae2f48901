"""Transforms that paint over parts of the face."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.faces import SIZE, face_sample

from readers.augment import BlackoutHull, DropRegion, KeepHull, LandmarkCutout
from readers.seeding import sample_rng

FILL = (7, 11, 13)


def painted(sample, result):
    """Which pixels have the fill; all others are as they were."""
    hits = (result["image"] == FILL).all(axis=-1)
    assert np.array_equal(result["image"][~hits], sample["image"][~hits])
    return hits


def rectangle(left, top, right, bottom):
    inside = np.zeros((SIZE, SIZE), bool)
    inside[top:bottom, left:right] = True
    return inside


@pytest.mark.parametrize(
    ("name", "rows"), [("left_eye", [0]), ("right_eye", [1]), ("eyes", [0, 1]), ("nose", [2]), ("mouth", [3])]
)
def test_a_dropped_region_is_its_box(name, rows):
    sample = face_sample()
    result = DropRegion([name], p=1, fill=FILL)(sample, sample_rng(0, 0, 0))
    expected = np.zeros((SIZE, SIZE), bool)
    for row in rows:
        expected |= rectangle(*sample["regions"][row].astype(int))
    assert np.array_equal(painted(sample, result), expected)
    assert result["mask"] is sample["mask"]


def test_each_region_is_drawn_as_often():
    sample = face_sample()
    transform = DropRegion(p=1)
    found = [transform.draw(sample, sample_rng(0, 0, row)) for row in range(1500)]
    for name in ("eyes", "nose", "mouth"):
        assert 430 < found.count(name) < 570


@given(st.lists(st.floats(-500, 800), min_size=4, max_size=4))
def test_boxes_that_reach_outside_are_clipped(box):
    sample = face_sample()
    box = [*np.minimum(box[:2], box[2:]), *np.maximum(box[:2], box[2:])]
    sample["regions"] = np.tile(np.float32(box), (4, 1))
    hits = painted(sample, DropRegion(["nose"], p=1, fill=FILL)(sample, sample_rng(0, 0, 0)))
    centres = np.arange(SIZE) + 0.5
    left, top, right, bottom = np.float32(box)
    expected = np.outer((centres >= top) & (centres < bottom), (centres >= left) & (centres < right))
    assert np.array_equal(hits, expected)


def inside_hull(sample):
    """Pixels well inside the hull of the test sample, an ellipse, and those well outside."""
    y, x = np.mgrid[:SIZE, :SIZE] + 0.5
    radius = np.hypot((x - 110) / 50, (y - 110) / 70)
    return radius < 0.96, radius > 1.04


@pytest.mark.parametrize("layout", ["5", "468"])
@pytest.mark.parametrize("half", ["left", "right", "top", "bottom"])
def test_half_a_hull_is_what_lies_on_one_side_of_its_centroid(layout, half):
    sample = face_sample(layout)
    hits = painted(sample, BlackoutHull([half], p=1, fill=FILL)(sample, sample_rng(0, 0, 0)))
    inside, outside = inside_hull(sample)
    side = np.zeros((SIZE, SIZE), bool)
    side[{"left": np.s_[:, :110], "right": np.s_[:, 110:], "top": np.s_[:110], "bottom": np.s_[110:]}[half]] = True
    assert hits[inside & side].all()
    assert not hits[outside].any()
    assert not hits[~side].any()


def test_only_the_hull_is_kept():
    sample = face_sample()
    inside, outside = inside_hull(sample)
    for fill in (0, FILL):
        kept = KeepHull(p=1, fill=fill)(sample, sample_rng(0, 0, 0))
        assert (kept["image"][outside] == fill).all()
        assert np.array_equal(kept["image"][inside], sample["image"][inside])


def test_a_hull_that_is_not_convex_is_painted_as_its_convex_hull():
    sample = face_sample()
    hull = sample["hull"].copy()
    hull[3] = (110, 110)  # a dent to the middle
    dented = KeepHull(p=1)({**sample, "hull": hull}, sample_rng(0, 0, 0))
    hull[3] = hull[4]
    whole = KeepHull(p=1)({**sample, "hull": hull}, sample_rng(0, 0, 0))
    assert np.array_equal(dented["image"], whole["image"])


def test_a_hull_far_outside_or_without_area_is_harmless():
    sample = face_sample()
    for hull in (np.full((27, 2), 5e8), np.zeros((27, 2)), sample["hull"] + np.float32([400, 0])):
        changed = {**sample, "hull": hull.astype(np.float32)}
        for half in ("left", "right", "top", "bottom"):
            result = BlackoutHull([half], p=1, fill=FILL)(changed, sample_rng(0, 0, 0))
            assert painted(sample, result).sum() <= 1


@given(st.integers(0, 2**40 - 1))
@example(7339)  # reaches beyond the upper edge
def test_a_cutout_covers_its_landmark(seed):
    sample = face_sample("68")
    transform = LandmarkCutout(side=(0.1, 0.3), p=1, fill=FILL)
    rng = sample_rng(seed, 0, 0)
    params = transform.draw(sample, rng)
    hits = painted(sample, transform.apply(sample, params))
    rows, columns = np.flatnonzero(hits.any(1)), np.flatnonzero(hits.any(0))
    assert np.array_equal(hits, np.outer(hits.any(1), hits.any(0)))  # a rectangle
    assert max(len(rows), len(columns)) <= 0.3 * SIZE + 1
    if not {rows[0], columns[0]} & {0} and not {rows[-1], columns[-1]} & {SIZE - 1}:  # nothing of it lies outside
        assert min(len(rows), len(columns)) >= 0.1 * SIZE - 1
        assert abs(len(rows) - len(columns)) <= 1
    x, y = sample["landmarks"][params.point]
    assert columns[0] - 1 <= x <= columns[-1] + 2
    assert rows[0] - 1 <= y <= rows[-1] + 2


EVERY = [DropRegion(p=1), BlackoutHull(p=1), KeepHull(p=1), LandmarkCutout(p=1)]


@pytest.mark.parametrize("transform", EVERY, ids=repr)
def test_points_that_are_not_valid_are_left_alone(transform):
    sample = face_sample() | {"landmarks_valid": np.False_}
    assert transform(sample, sample_rng(0, 0, 0)) is sample
    clip = face_sample(frames=3) | {"landmarks_valid": np.array([True, False, True])}
    result = transform(clip, sample_rng(0, 0, 0))
    changed = [not np.array_equal(a, b) for a, b in zip(result["image"], clip["image"], strict=True)]
    assert changed == [True, False, True]


@pytest.mark.parametrize("make", [DropRegion, BlackoutHull, KeepHull, LandmarkCutout])
def test_masks_are_painted_like_the_image_on_request(make):
    sample = face_sample() | {"weight": np.ones((SIZE, SIZE), np.float32)}
    transform = make(p=1, fill=FILL, fill_mask=9, masks=["mask", "weight"])
    result = transform(sample, sample_rng(1, 2, 3))
    hits = painted(sample, result)
    assert hits.any()
    for name in ("mask", "weight"):
        assert np.array_equal(result[name] == 9, hits), name
