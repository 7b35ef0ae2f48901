"""The table of point layouts."""

import numpy as np
import pytest

from shardspec.errors import UsageError
from shardspec.points import (
    LAYOUTS,
    REGION_FLIP,
    REGIONS,
    flip_permutation,
    get_layout,
    hull_flip_of,
    hull_flip_permutation,
    hull_size,
    layout_of,
)

EVERY = pytest.mark.parametrize("name", list(LAYOUTS))


def test_the_layouts_are_those_of_the_contract():
    assert {name: layout.count for name, layout in LAYOUTS.items()} == {"5": 5, "68": 68, "468": 468, "478": 478}
    assert REGIONS == ("left_eye", "right_eye", "nose", "mouth")


@EVERY
def test_points_are_named_once_and_paired_once(name):
    layout = LAYOUTS[name]
    assert len(set(layout.names)) == layout.count
    paired = [point for pair in layout.pairs for point in pair]
    assert len(set(paired)) == len(paired)
    assert set(paired) <= set(range(layout.count))


@EVERY
def test_a_mirror_twice_changes_nothing(name):
    for order in (flip_permutation(name), hull_flip_permutation(name), REGION_FLIP):
        assert np.array_equal(order[order], np.arange(len(order)))
        assert not order.flags.writeable
    assert len(hull_flip_permutation(name)) == hull_size(name)


@EVERY
def test_a_mirror_swaps_the_eyes_and_keeps_nose_and_mouth(name):
    order, regions = flip_permutation(name), LAYOUTS[name].regions
    mirrored = {region: {int(order[point]) for point in points} for region, points in regions.items()}
    assert mirrored["left_eye"] == set(regions["right_eye"])
    assert mirrored["nose"] == set(regions["nose"])
    assert mirrored["mouth"] == set(regions["mouth"])
    assert [REGIONS[row] for row in REGION_FLIP] == ["right_eye", "left_eye", "nose", "mouth"]


@EVERY
def test_a_mirror_only_swaps_the_side_in_names(name):
    layout, order = LAYOUTS[name], flip_permutation(name)
    for right, left in layout.pairs:
        if "right" in layout.names[right] and "image" not in layout.names[right]:
            # iBUG counts both sides in the image's direction, so the numbers may differ
            assert layout.names[right].replace("right", "left").rstrip("0123456789") == layout.names[left].rstrip(
                "0123456789"
            )
        assert order[right] == left


@pytest.mark.parametrize("name", ["68", "468", "478"])
def test_the_outline_is_its_own_mirror_image_in_reverse(name):
    layout = LAYOUTS[name]
    assert layout.hull_layout == name
    outline = list(layout.outline)
    mirrored = flip_permutation(name)[outline].tolist()
    at = mirrored.index(outline[0])
    backwards = [mirrored[(at - k) % len(mirrored)] for k in range(len(mirrored))]
    assert backwards == outline
    assert [outline[k] for k in hull_flip_permutation(name)] == mirrored


def test_the_hull_of_five_points_is_numbered_as_that_of_68():
    assert hull_size("5") == hull_size("68") == 27
    assert np.array_equal(hull_flip_permutation("5"), hull_flip_permutation("68"))
    assert hull_size("468") == hull_size("478") == 36


@pytest.mark.parametrize(
    ("name", "right", "left"),
    [
        ("5", 0, 1),
        ("5", 3, 4),
        ("68", 0, 16),
        ("68", 36, 45),
        ("68", 41, 46),
        ("68", 17, 26),
        ("68", 31, 35),
        ("68", 48, 54),
        ("68", 67, 65),
        ("468", 33, 263),
        ("468", 133, 362),
        ("468", 61, 291),
        ("468", 234, 454),
        ("468", 3, 248),
        ("478", 468, 473),
        ("478", 469, 476),
        ("478", 470, 475),
    ],
)
def test_known_pairs(name, right, left):
    assert (right, left) in LAYOUTS[name].pairs


@pytest.mark.parametrize(
    ("name", "point"), [("5", 2), ("68", 8), ("68", 30), ("68", 62), ("468", 1), ("468", 152), ("478", 10)]
)
def test_known_points_of_the_midline(name, point):
    assert flip_permutation(name)[point] == point


def test_layouts_are_found_by_name_and_by_number_of_points():
    assert get_layout("68") is layout_of(68)
    assert np.array_equal(hull_flip_of(36), hull_flip_permutation("468"))
    with pytest.raises(UsageError, match="unknown point layout '81': expected one of 5, 68, 468, 478"):
        get_layout("81")
    with pytest.raises(UsageError, match="no point layout has 81 points"):
        layout_of(81)
    with pytest.raises(UsageError, match="hull of 5 points: expected 27 or 36"):
        hull_flip_of(5)
