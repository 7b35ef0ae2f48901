"""The engine finds what facenet-pytorch's own code finds."""

import importlib.util

import cv2
import numpy as np
import pytest
import skimage.data

from benchmarks.agreement import compare
from packer import Detections, Detector

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
PICTURES = {
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


@pytest.fixture(scope="module")
def reference():
    found = {}
    mtcnn = facenet_pytorch.MTCNN(keep_all=True)

    def detect(name):
        if name not in found:
            boxes, scores, points = mtcnn.detect(np.ascontiguousarray(PICTURES[name]), landmarks=True)
            if boxes is None:
                boxes, scores, points = np.zeros((0, 4)), np.zeros(0), np.zeros((0, 5, 2))
            arrays = [np.asarray(value, np.float32) for value in (boxes, scores, points)]
            found[name] = Detections(*arrays, np.array([0, len(boxes)]))
        return found[name]

    return detect


@pytest.fixture(scope="module", params=["openvino", "torch"])
def detector(request):
    if not importlib.util.find_spec(request.param):
        pytest.skip(f"needs {request.param}")
    return Detector(runtime=request.param)


@pytest.mark.parametrize("name", PICTURES)
def test_finds_the_same_faces(name, detector, reference):
    expected = reference(name)
    found = detector.detect([PICTURES[name]])
    agreement = compare(expected, found, min_side=40)
    assert not len(agreement.missing)
    assert not len(agreement.extra)
    assert np.all(agreement.iou >= 0.97)
    assert np.all(agreement.point_errors <= 1.5)
    if len(agreement.iou):
        assert agreement.iou.mean() >= 0.999


def test_pictures_hold_faces(reference):
    counts = {name: len(reference(name).boxes) for name in PICTURES}
    assert sum(counts.values()) >= 20
    assert counts["cat"] == 0


@pytest.mark.parametrize("name", ["portrait", "larger", "sizes"])
def test_dataset_mode_keeps_the_boxes(name, detector, reference):
    found = Detector.dataset(min_face=40, runtime=detector.describe()["runtime"].split()[0]).detect([PICTURES[name]])
    expected = reference(name)
    agreement = compare(expected, found, min_side=60, min_score=0.95)
    assert len(agreement.iou)
    assert not len(agreement.missing)
    assert np.all(agreement.iou >= 0.9)


def test_order_and_scores_are_the_references(detector, reference):
    expected, found = reference("sizes"), detector.detect([PICTURES["sizes"]])
    np.testing.assert_allclose(found.boxes, expected.boxes, atol=0.05)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)
