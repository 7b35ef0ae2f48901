"""Hull and regions of a face from its points, whatever the layout."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.errors import raises

from packer.vision.landmarks.shape import (
    MARGIN,
    MEAN_FIVE,
    five_points,
    hull,
    place_mean_face,
    regions,
    unit,
    upright_matrix,
)
from shardspec.errors import UsageError
from shardspec.points import LAYOUTS, REGION_FLIP, flip_permutation, hull_flip_permutation, hull_size

MESH = np.load(Path(__file__).parent / "data" / "astronaut_mesh.npy")[0].astype(np.float64)
"""The mesh of skimage's astronaut, in pixels of the image, found by MediaPipe's face_landmark.tflite."""


def points_of(layout: str) -> np.ndarray:
    """Points of a real face in any layout."""
    if layout == "468":
        return MESH
    if layout == "478":
        irises = [MESH[list(LAYOUTS["468"].regions[eye])].mean(axis=0) for eye in ("right_eye", "left_eye")]
        around = np.array([[0, 0], [3, 0], [0, -3], [-3, 0], [0, 3]])
        return np.concatenate([MESH, *(centre + around for centre in irises)])
    if layout == "5":
        return five_points(MESH, "468")
    rng = np.random.default_rng(
        0
    )  # no 68 points of this face: a mean face's geometry does not matter to what is tested
    return MESH[rng.choice(468, 68, replace=False)]


EVERY = pytest.mark.parametrize("layout", list(LAYOUTS))


@EVERY
def test_shapes(layout):
    points = points_of(layout)
    assert hull(points, layout).shape == (hull_size(layout), 2)
    assert hull(points, layout).dtype == np.float32
    assert regions(points, layout).shape == (4, 4)
    assert regions(points, layout).dtype == np.float32


@EVERY
def test_a_mirrored_face_has_the_mirrored_hull_and_regions(layout):
    points = points_of(layout)
    mirrored = (points * (-1, 1) + (512, 0))[flip_permutation(layout)]
    expected = (hull(points, layout) * (-1, 1) + (512, 0))[hull_flip_permutation(layout)]
    np.testing.assert_allclose(hull(mirrored, layout), expected, atol=1e-3)
    left, top, right, bottom = regions(points, layout)[REGION_FLIP].T
    np.testing.assert_allclose(
        regions(mirrored, layout), np.stack([512 - right, top, 512 - left, bottom], 1), atol=1e-3
    )


@EVERY
@given(st.floats(0.1, 10), st.floats(-300, 300), st.floats(-300, 300))
def test_hull_and_regions_move_and_scale_with_the_face(layout, scale, x, y):
    points = points_of(layout)
    moved = points * scale + (x, y)
    np.testing.assert_allclose(hull(moved, layout), hull(points, layout) * scale + (x, y), atol=0.01 * scale + 0.01)
    expected = regions(points, layout) * scale + (x, y, x, y)
    np.testing.assert_allclose(regions(moved, layout), expected, atol=0.01 * scale + 0.01)


@EVERY
@given(st.floats(-3, 3))
def test_the_hull_turns_with_the_face(layout, angle):
    points = points_of(layout)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    np.testing.assert_allclose(hull(points @ turn.T, layout), hull(points, layout) @ turn.T, atol=0.01)


def test_the_hull_of_five_points_is_like_the_jaw_and_brows_of_the_mesh():
    jaw = (127, 234, 93, 58, 172, 136, 149, 148, 152, 377, 378, 365, 397, 288, 323, 454, 356)
    brows = (300, 293, 334, 296, 336, 107, 66, 105, 63, 70)
    masks = []
    for polygon in (hull(points_of("5"), "5"), MESH[[*jaw, *brows]].astype(np.float32)):
        mask = np.zeros((512, 512), np.uint8)
        cv2.fillConvexPoly(mask, cv2.convexHull(polygon).round().astype(np.int32), 1)
        masks.append(mask > 0)
    assert (masks[0] & masks[1]).sum() / (masks[0] | masks[1]).sum() > 0.88


@pytest.mark.parametrize("layout", ["5", "68", "468", "478"])
def test_regions_lie_where_their_points_are(layout):
    points, boxes = points_of(layout), regions(points_of(layout), layout)
    for (left, top, right, bottom), own in zip(boxes, LAYOUTS[layout].regions.values(), strict=True):
        assert (points[list(own)] > (left, top)).all()
        assert (points[list(own)] < (right, bottom)).all()


def test_the_margin_of_a_region_is_as_stated():
    boxes = regions(MESH, "468")
    mouth = MESH[list(LAYOUTS["468"].regions["mouth"])]
    reach = MARGIN * unit(place_mean_face(five_points(MESH, "468")))
    np.testing.assert_allclose(boxes[3], [*(mouth.min(axis=0) - reach), *(mouth.max(axis=0) + reach)], atol=1e-4)


def test_the_left_eye_comes_first_and_is_the_persons():
    boxes = regions(points_of("5"), "5")
    assert boxes[0, 0] > boxes[1, 0]  # a face seen from the front: its left eye is on the right of the image


def test_five_points_of_the_mesh_are_where_the_mean_face_is_placed():
    placed = place_mean_face(points_of("5"))
    expected = MEAN_FIVE @ placed[:, :2].T + placed[:, 2]
    assert np.linalg.norm(expected - points_of("5"), axis=1).max() < 0.2 * unit(placed)


@pytest.mark.parametrize("points", [np.full((5, 2), 7.0), np.zeros((5, 2))])
def test_points_that_are_all_the_same_give_a_hull_of_that_point(points):
    assert np.array_equal(hull(points, "5"), np.broadcast_to(np.float32(points[0]), (27, 2)))
    assert np.array_equal(regions(points, "5"), np.broadcast_to(np.tile(np.float32(points[0]), 2), (4, 4)))
    with pytest.raises(UsageError, match="expected five points that differ"):
        upright_matrix(points, (0, 0), 3, 100)


@given(st.lists(st.floats(-1e4, 1e4), min_size=10, max_size=10))
def test_any_five_points_give_finite_geometry(values):
    points = np.array(values).reshape(5, 2)
    assert np.isfinite(hull(points, "5")).all()
    boxes = regions(points, "5")
    assert np.isfinite(boxes).all()
    assert (boxes[:, :2] <= boxes[:, 2:]).all()


def test_wrong_points_are_refused():
    with raises(UsageError, place="landmarks of layout '5'", found="(4, 2)"):
        hull(np.zeros((4, 2)), "5")
    with raises(UsageError, place="landmarks of layout '5'", found="nan"):
        regions(np.full((5, 2), np.nan), "5")
    with pytest.raises(UsageError, match="unknown point layout '81'"):
        hull(np.zeros((81, 2)), "81")


def test_the_upright_square_is_upright_and_of_its_size():
    matrix = upright_matrix(points_of("5") @ [[0, 1], [-1, 0]], (0.0, 0.0), 4.0, 200)
    turned = points_of("5") @ [[0, 1], [-1, 0]] @ matrix[:, :2].T + matrix[:, 2]
    placed = place_mean_face(turned)
    assert abs(placed[1, 0]) < 1e-6
    assert unit(placed) == pytest.approx(50)
    assert placed[:, 2] == pytest.approx([100, 100])
