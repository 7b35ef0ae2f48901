import tracemalloc

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skimage import data
from support.fuzz import examples

from packer.vision.geometry.affine import apply, invert
from packer.vision.geometry.align import align_matrix, warp
from packer.vision.geometry.crop import crop_matrix, cut

ASTRONAUT = data.astronaut()
FACE = (170.3, 62.7, 281.9, 205.4)

coordinate = st.floats(-100, 700, allow_nan=False)
length = st.floats(0.5, 400)


@st.composite
def boxes(draw, low=-60.0, high=160.0, longest=150.0):
    left, top = draw(st.floats(low, high)), draw(st.floats(low, high))
    return left, top, left + draw(st.floats(0.6, longest)), top + draw(st.floats(0.6, longest))


def brute_force(frame, matrix, size):
    """The crop by its definition, in float64: overlaps of cells and pixels, or weights of the two nearest centres."""
    scale = matrix[0, 0]

    def weights(offset, count):
        cells = np.arange(size)[:, None]
        pixels = np.arange(count)[None]
        if scale <= 1:
            low, high = offset + cells / scale, offset + (cells + 1) / scale
            return np.clip(np.minimum(high, pixels + 1) - np.maximum(low, pixels), 0, None) * scale
        return np.clip(1 - np.abs(offset + (cells + 0.5) / scale - 0.5 - pixels), 0, None)

    columns = weights(-matrix[0, 2] / scale, frame.shape[1])
    rows = weights(-matrix[1, 2] / scale, frame.shape[0])
    return np.einsum("ij,jkc,lk->ilc", rows, frame.astype(float), columns, optimize=True)


def test_the_crop_in_one_sentence():
    left, top, right, bottom = FACE
    matrix = crop_matrix(FACE, 0.3, 224)
    side = max(right - left, bottom - top) * 1.6
    corners = apply(invert(matrix), [[0, 0], [224, 224], [112, 112]])
    np.testing.assert_allclose(corners[1] - corners[0], side, atol=0.5)
    np.testing.assert_allclose(corners[2], [(left + right) / 2, (top + bottom) / 2], atol=0.5)


@given(box=boxes(-500, 4000, 3000), margin=st.floats(0, 1), size=st.integers(1, 600))
def test_the_box_maps_to_the_middle_of_the_crop(box, margin, size):
    matrix = crop_matrix(box, margin, size)
    side = max(box[2] - box[0], box[3] - box[1]) * (1 + 2 * margin)
    half = (0.75 * size / side if side >= size else 0) + 1e-3 * max(1, size / side)  # whole pixels; float32
    points = apply(matrix, [box[:2], box[2:]])
    np.testing.assert_allclose(points.mean(axis=0), size / 2, atol=half)
    np.testing.assert_allclose((points[1] - points[0]).max(), size / (1 + 2 * margin), atol=2 * half)


@given(
    box=boxes(-500, 4000, 3000),
    margin=st.floats(0, 1),
    size=st.integers(1, 600),
    point=st.tuples(coordinate, coordinate),
)
def test_round_trip_and_float32(box, margin, size, point):
    matrix = crop_matrix(box, margin, size)
    np.testing.assert_array_equal(matrix, matrix.astype(np.float32))
    np.testing.assert_allclose(apply(invert(matrix), apply(matrix, point)), point, atol=1e-6)


@examples(200)
@given(box=boxes(), margin=st.floats(0, 0.6), size=st.integers(1, 60), seed=st.integers(0, 9), shift=st.floats(0, 1))
def test_pixels_are_those_of_the_definition(box, margin, size, seed, shift):
    rng = np.random.default_rng(seed)
    frame = rng.integers(0, 256, (*rng.integers(1, 120, 2), 3), dtype=np.uint8)
    matrix = crop_matrix(box, margin, size)
    assert np.abs(cut(frame, matrix, size) - brute_force(frame, matrix, size)).max() <= 1
    matrix[:, 2] += shift  # any other square, too, between whole pixels
    assert np.abs(cut(frame, matrix, size) - brute_force(frame, matrix, size)).max() <= 1


def test_an_unscaled_crop_keeps_its_pixels():
    np.testing.assert_array_equal(
        cut(ASTRONAUT, crop_matrix((100, 50, 324, 274), 0, 224), 224), ASTRONAUT[50:274, 100:324]
    )


def test_outside_the_frame_is_black():
    white = np.full((80, 90, 3), 255, np.uint8)
    for size in (20, 200):
        crop = cut(white, crop_matrix((-50, -50, 50, 50), 0, size), size)
        assert (crop[: size // 2 - 2] == 0).all()
        assert (crop[:, : size // 2 - 2] == 0).all()
        assert (crop[size // 2 + 2 :, size // 2 + 2 :] == 255).all()
    assert not cut(white, crop_matrix((500, 500, 700, 700), 0.3, 32), 32).any()
    assert not cut(white, crop_matrix((500, 500, 505, 505), 0.3, 32), 32).any()


def test_a_square_far_larger_than_the_frame_needs_no_memory_of_its_size():
    white = np.full((50, 60, 3), 255, np.uint8)
    crop = cut(white, crop_matrix((-1e6, -1e6, 1e6, 1e6), 0, 9), 9)
    assert not crop.any()


def test_a_marked_pixel_lands_where_the_matrix_says():
    frame = np.zeros((200, 300, 3), np.uint8)
    frame[120, 210] = 255
    for box in ((150.2, 60.7, 250.1, 170.9), (195.3, 105.1, 225.4, 130.2)):
        matrix = crop_matrix(box, 0.3, 96)
        crop = cut(frame, matrix, 96).astype(float)[..., 0]
        ys, xs = np.mgrid[:96, :96] + 0.5
        found = [(crop * xs).sum() / crop.sum(), (crop * ys).sum() / crop.sum()]
        np.testing.assert_allclose(found, apply(matrix, [210.5, 120.5]), atol=0.3)


@pytest.mark.parametrize(
    ("box", "margin", "size"),
    [
        ((0, 0, 0, 5), 0.3, 10),
        ((5, 0, 1, 5), 0.3, 10),
        ((0, 0, np.nan, 5), 0.3, 10),
        ((0, 0, np.inf, 5), 0.3, 10),
        ((0, 0, 1e300, 5), 0.3, 10),
        ((0, 0, 1e-9, 1e-9), 0.3, 10),
        ((0, 0, 5, 5), -0.5, 10),
        ((0, 0, 5, 5), np.nan, 10),
        ((0, 0, 5, 5), 0.3, 0),
    ],
)
def test_impossible_crops_are_refused(box, margin, size):
    with pytest.raises(ValueError, match="expected"):
        crop_matrix(box, margin, size)


def test_cut_refuses_rotation_and_frames_of_another_size():
    with pytest.raises(ValueError, match="no rotation"):
        cut(ASTRONAUT, [[1, 0.1, 0], [-0.1, 1, 0]], 10)
    with pytest.raises(ValueError, match="uint8"):
        cut(ASTRONAUT[..., 0], np.eye(2, 3), 10)
    with pytest.raises(ValueError, match="uint8"):
        cut(ASTRONAUT.astype(np.float32), np.eye(2, 3), 10)
    with pytest.raises(ValueError, match="inverted"):
        invert([[1, 1, 0], [1, 1, 0]])


# --- aligned crops ----------------------------------------------------------------------------------------------------

TEMPLATE = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]]
)


def umeyama(source, target):
    """The 2x3 similarity by scikit-image's implementation of the paper."""
    from skimage.transform import SimilarityTransform

    return SimilarityTransform.from_estimate(source, target).params[:2]


@given(
    noise=st.lists(st.floats(-20, 20), min_size=10, max_size=10),
    angle=st.floats(-3.1, 3.1),
    scale=st.floats(0.3, 8),
    size=st.sampled_from([112, 224, 90]),
)
def test_alignment_is_umeyamas(noise, angle, scale, size):
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    points = (TEMPLATE + np.reshape(noise, (5, 2))) @ turn.T + [300, 200]
    expected = umeyama(points, (TEMPLATE + 0.5) * size / 112)
    np.testing.assert_allclose(align_matrix(points, size), expected, rtol=1e-4, atol=1e-3)


def test_alignment_with_a_margin_is_the_same_view_from_farther_away():
    points = (TEMPLATE + 0.5) * 2
    np.testing.assert_allclose(align_matrix(points, 224), np.eye(2, 3), atol=1e-4)
    wide = align_matrix(points, 224, margin=0.5)
    np.testing.assert_allclose(apply(wide, [[0, 0], [224, 224]]), [[56, 56], [168, 168]], atol=1e-3)


def test_alignment_refuses_points_that_fix_nothing():
    with pytest.raises(ValueError, match="differ"):
        align_matrix(np.ones((5, 2)), 112)
    with pytest.raises(ValueError, match="finite"):
        align_matrix(np.full((5, 2), np.nan), 112)
    with pytest.raises(ValueError, match="five"):
        align_matrix(np.ones((4, 2)), 112)


@pytest.mark.parametrize("side", [60, 112, 300])
def test_warp_agrees_with_cut_where_nothing_is_rotated(side):
    matrix = crop_matrix((150, 40, 150 + side, 40 + side), 0, 112)
    difference = np.abs(warp(ASTRONAUT, matrix, 112).astype(int) - cut(ASTRONAUT, matrix, 112))
    assert difference.mean() < 1.0
    assert np.percentile(difference, 99) <= 6


def test_warp_shrinks_without_aliasing():
    stripes = np.zeros((600, 600, 3), np.uint8)
    stripes[:, ::2] = 255
    angle = 0.1
    turn = 0.2 * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = np.column_stack([turn, [20.0, 5.0]])
    inner = warp(stripes, matrix, 112)[40:70, 50:90].astype(int)
    assert np.abs(inner - 127).max() < 40  # nearest or plain bilinear sampling gives the full contrast
    plain = cv2.warpAffine(stripes, matrix, (112, 112), flags=cv2.INTER_LINEAR)[40:70, 50:90].astype(int)
    assert np.abs(plain - 127).max() > 100


def test_warped_points_land_where_the_matrix_says():
    frame = np.zeros((200, 300, 3), np.uint8)
    frame[118:121, 208:211] = 255
    for scale in (0.4, 2.0):
        turn = scale * np.array([[np.cos(0.5), -np.sin(0.5)], [np.sin(0.5), np.cos(0.5)]])
        matrix = np.column_stack([turn, 60 - turn @ [209.5, 119.5]])
        crop = warp(frame, matrix, 120).astype(float)[..., 0]
        ys, xs = np.mgrid[:120, :120] + 0.5
        found = [(crop * xs).sum() / crop.sum(), (crop * ys).sum() / crop.sum()]
        np.testing.assert_allclose(found, [60, 60], atol=0.15)


def test_a_square_that_is_mostly_outside_the_frame_is_not_made_as_a_whole():
    frame = np.full((40, 60, 3), 200, np.uint8)
    matrix = crop_matrix((-30_000, -30_000, 30, 20), 0, 112)
    tracemalloc.start()
    try:
        crop = cut(frame, matrix, 112)
        assert tracemalloc.get_traced_memory()[1] < 10**7  # all of it has 2.7 GB
    finally:
        tracemalloc.stop()
    assert not crop[:-1, :-1].any()


@pytest.mark.parametrize("visible", [20, 60, 100])
def test_a_square_beyond_the_frame_is_always_cut_alike(visible):
    corner = ASTRONAUT[-visible:, -visible:]
    matrix = crop_matrix((0, 0, 300, 300), 0, 112)
    whole = np.zeros((300, 300, 3), np.uint8)
    whole[:visible, :visible] = corner
    difference = np.abs(cut(np.ascontiguousarray(corner), matrix, 112).astype(int) - cut(whole, matrix, 112))
    assert difference.max() <= 1
