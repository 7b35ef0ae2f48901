"""Crops that equal other projects': against those projects' published definitions, written out here."""

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from skimage.transform import SimilarityTransform
from support.media import Picture, photograph

from packer.vision.geometry.affine import apply
from packer.vision.geometry.align import align_matrix, likeness_matrix
from packer.vision.geometry.crop import bilinear

Points = npt.NDArray[np.float32]

EYES = np.array([[210, 110], [248, 112], [229, 133], [213, 152], [244, 153]], np.float32)
"""The five points of the astronaut's face, roughly."""


def fitted(points: Points, target: Points) -> npt.NDArray[np.float64]:
    """``SimilarityTransform.estimate(points, target).params[0:2]``, as both projects have it."""
    found = SimilarityTransform.from_estimate(points, target)
    return np.asarray(found.params[0:2], np.float64)


def norm_crop_matrix(points: Points, size: int) -> npt.NDArray[np.float64]:
    """``estimate_norm`` of deepinsight/insightface, python-package/insightface/utils/face_align.py."""
    target = np.array(
        [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]],
        dtype=np.float32,
    )
    assert size % 112 == 0 or size % 128 == 0
    if size % 112 == 0:
        ratio, shift = float(size) / 112.0, 0.0
    else:
        ratio = float(size) / 128.0
        shift = 8.0 * ratio
    target = target * ratio
    target[:, 0] += shift
    return fitted(points, target)


def img_align_crop_matrix(points: Points, size: int) -> npt.NDArray[np.float64]:
    """``img_align_crop`` of SCLBD/DeepfakeBench, preprocessing/preprocess.py, with ``scale=1.3``."""
    target = np.array(
        [[30.2946, 51.6963], [65.5318, 51.5014], [48.0252, 71.7366], [33.5493, 92.3655], [62.7299, 92.2041]],
        dtype=np.float32,
    )
    target[:, 0] += 8.0
    target *= size / 112
    margin = size * (1.3 - 1) / 2.0
    target += margin
    target *= size / (size + 2 * margin)
    return fitted(points, target)


DEFINITIONS = {"arcface": norm_crop_matrix, "deepfakebench": img_align_crop_matrix}
CASES = [
    ("arcface", 112),
    ("arcface", 128),
    ("arcface", 224),
    ("arcface", 256),
    ("deepfakebench", 256),
    ("deepfakebench", 200),
]

coordinates = st.floats(-2000, 4000, width=32)
five_points = st.lists(st.tuples(coordinates, coordinates), min_size=5, max_size=5)


@given(five_points, st.sampled_from(CASES))
def test_the_matrix_is_the_published_one(points: list[tuple[float, float]], case: tuple[str, int]) -> None:
    name, size = case
    source = np.array(points, np.float32)
    spread = np.linalg.svd(source.astype(np.float64) - source.mean(axis=0, dtype=np.float64), compute_uv=False)
    assume(spread[-1] > 1)  # skimage finds no similarity for points on a line
    expected = DEFINITIONS[name](source, size)
    assume(np.hypot(*expected[:, 0]) > 1e-3)
    matrix = likeness_matrix(source, name, size)
    # In OpenCV the centre of a pixel is a whole number; here it is half a pixel further.
    found = apply(matrix, source.astype(np.float64) + 0.5) - 0.5
    assert found == pytest.approx(source @ expected[:, :2].T + expected[:, 2], abs=0.02)
    assert np.array_equal(matrix, matrix.astype(np.float32))


@pytest.mark.parametrize(("name", "size"), CASES)
@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_the_pixels_are_those_of_warp_affine(name: str, size: int, scale: float) -> None:
    """Enlarged, and shrunk without averaging, with its aliasing."""
    side = round(512 * scale)
    frame: Picture = np.asarray(cv2.resize(photograph("astronaut"), (side, side)), np.uint8)
    points = EYES * np.float32(scale)
    expected = cv2.warpAffine(frame, DEFINITIONS[name](points, size), (size, size), borderValue=0.0)
    found = bilinear(frame, likeness_matrix(points, name, size), size)
    assert found.shape == (size, size, 3)
    assert np.abs(found.astype(int) - expected).max() <= 1
    assert expected.std() > 30


def test_at_112_pixels_arcface_is_the_aligned_crop_without_margin_half_a_pixel_away() -> None:
    """`align_matrix` takes the centre of a frame's pixel as half a pixel, everywhere; InsightFace takes it as none."""
    shifted = align_matrix(EYES + np.float32(0.5), 112)
    assert likeness_matrix(EYES, "arcface", 112) == pytest.approx(shifted, abs=1e-4)


def test_points_that_cannot_be_aligned() -> None:
    with pytest.raises(ValueError, match="multiple of 112 or 128 pixels for arcface, found 100"):
        likeness_matrix(EYES, "arcface", 100)
    with pytest.raises(ValueError, match="expected points that differ"):
        likeness_matrix(np.ones((5, 2)), "deepfakebench", 256)
    with pytest.raises(ValueError, match="expected five finite points"):
        likeness_matrix(EYES * np.nan, "deepfakebench", 256)
