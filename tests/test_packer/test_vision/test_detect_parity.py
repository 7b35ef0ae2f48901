"""The engine finds what facenet-pytorch's own code finds."""

import functools
import importlib.util

import cv2
import numpy as np
import pytest
import skimage.data

from benchmarks.agreement import compare
from packer import Detections, Detector
from packer.vision.geometry.align import align_matrix, likeness_matrix, warp

facenet_pytorch = pytest.importorskip("facenet_pytorch", reason="parity is measured against facenet-pytorch itself")


def _resized(image, factor):
    return cv2.resize(
        image, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC
    )


def _rotated(image, degrees):
    height, width = image.shape[:2]
    matrix = cv2.getRotationMatrix2D((width / 2, height / 2), degrees, 1)
    return cv2.warpAffine(image, matrix, (width, height))


PORTRAIT = skimage.data.astronaut()
IMAGES = {
    "portrait": PORTRAIT,
    "half": _resized(PORTRAIT, 0.5),
    "larger": _resized(PORTRAIT, 1.7),
    "tiled": np.tile(PORTRAIT[::2, ::2], (2, 3, 1)),
    "sizes": np.vstack([np.hstack([PORTRAIT, PORTRAIT]), np.tile(PORTRAIT[::4, ::4], (1, 8, 1))]),
    "mirrored": PORTRAIT[:, ::-1],
    "grey": np.repeat(cv2.cvtColor(PORTRAIT, cv2.COLOR_RGB2GRAY)[..., None], 3, axis=2),
    "dark": (PORTRAIT // 4),
    "left": _rotated(PORTRAIT, 12),
    "right": _rotated(PORTRAIT, -12),
    "black border": np.pad(PORTRAIT, ((37, 120), (200, 11), (0, 0))),
    "cut at the edge": PORTRAIT[60:, 200:],
    "close": PORTRAIT[70:200, 160:300],
    "odd size": PORTRAIT[:301, :333],
    "narrow": PORTRAIT[:, 190:260],
    "cat": skimage.data.cat(),
    "rocket": skimage.data.rocket(),
}


def _tight_crops():
    """Crops that a face fills, and crops aligned as face recognition datasets are; the face's edges are outside."""
    rng = np.random.default_rng(0)
    for image in (PORTRAIT, PORTRAIT[:, ::-1], _rotated(PORTRAIT, 12), PORTRAIT // 2):
        found = Detector().detect([image])
        left, top, right, bottom = found.boxes[0]
        for size in (96, 112, 160, 224) * 3:
            side = int(max(right - left, bottom - top) * rng.uniform(0.75, 1.1))
            x = int((left + right - side) / 2 + rng.uniform(-0.08, 0.08) * (right - left))
            y = int((top + bottom - side) / 2 + rng.uniform(-0.08, 0.08) * (bottom - top))
            yield cv2.resize(image[y : y + side, x : x + side], (size, size), interpolation=cv2.INTER_AREA)
        yield warp(image, likeness_matrix(found.points[0], "arcface", 112), 112)
        yield warp(image, align_matrix(found.points[0], 160), 160)


def _detect(mtcnn, image):
    boxes, scores, points = mtcnn.detect(np.ascontiguousarray(image), landmarks=True)
    if boxes is None:
        boxes, scores, points = np.zeros((0, 4)), np.zeros(0), np.zeros((0, 5, 2))
    arrays = [np.asarray(value, np.float32) for value in (boxes, scores, points)]
    return Detections(*arrays, np.array([0, len(boxes)]))


@pytest.fixture(scope="module")
def reference():
    mtcnn = facenet_pytorch.MTCNN(keep_all=True)
    return functools.cache(lambda name: _detect(mtcnn, IMAGES[name]))


@pytest.fixture(scope="module")
def tight():
    """Tight crops, and what the reference finds in each: with the whole pyramid, and as the dataset mode has it."""
    crops, found = list(_tight_crops()), {}
    coarse = 20 / 0.709 ** Detector.dataset(min_face=40).describe()["skip_levels"]
    for mode, size in (("whole pyramid", 20), ("dataset mode", coarse)):
        mtcnn = facenet_pytorch.MTCNN(keep_all=True, min_face_size=size)
        found[mode] = Detections.concatenate([_detect(mtcnn, crop) for crop in crops])
    return crops, found


@pytest.fixture(scope="module", params=["openvino", "torch"])
def detector(request):
    if not importlib.util.find_spec(request.param):
        pytest.skip(f"needs {request.param}")
    return Detector(runtime=request.param)


@pytest.mark.parametrize("name", IMAGES)
def test_finds_the_same_faces(name, detector, reference):
    expected = reference(name)
    found = detector.detect([IMAGES[name]])
    agreement = compare(expected, found, min_side=40)
    assert not len(agreement.missing)
    assert not len(agreement.extra)
    assert np.all(agreement.iou >= 0.97)
    assert np.all(agreement.point_errors <= 1.5)
    if len(agreement.iou):
        assert agreement.iou.mean() >= 0.999


def test_images_hold_faces(reference):
    counts = {name: len(reference(name).boxes) for name in IMAGES}
    assert sum(counts.values()) >= 20
    assert counts["cat"] == 0


@pytest.mark.parametrize("name", ["portrait", "larger", "sizes"])
def test_dataset_mode_keeps_the_boxes(name, detector, reference):
    found = Detector.dataset(min_face=40, runtime=detector.describe()["runtime"].split()[0]).detect([IMAGES[name]])
    expected = reference(name)
    agreement = compare(expected, found, min_side=60, min_score=0.95)
    assert len(agreement.iou)
    assert not len(agreement.missing)
    assert np.all(agreement.iou >= 0.9)


def _assert_equal(found, expected):
    assert found.offsets.tolist() == expected.offsets.tolist()
    np.testing.assert_allclose(found.boxes, expected.boxes, atol=0.05)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)
    np.testing.assert_allclose(found.points, expected.points, atol=0.05)


def test_order_and_scores_are_the_references(detector, reference):
    _assert_equal(detector.detect([IMAGES["sizes"]]), reference("sizes"))


@pytest.mark.parametrize("mode", ["whole pyramid", "dataset mode"])
def test_finds_the_same_boxes_of_faces_that_fill_the_image(mode, detector, tight):
    # Where boxes are cut at the image's edges, O-net scores several of them alike.
    crops, expected = tight
    if mode == "dataset mode":
        detector = Detector.dataset(min_face=40, runtime=detector.describe()["runtime"].split()[0])
    assert len(expected[mode].boxes) > 40
    _assert_equal(detector.detect(crops), expected[mode])
