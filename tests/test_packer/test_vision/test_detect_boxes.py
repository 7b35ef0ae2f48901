"""Box arithmetic against torchvision's and facenet-pytorch's own."""

import numpy as np
import pytest

from packer.vision.detect import detector as ours


def _random_boxes(rng, count, whole):
    corners = rng.uniform(0, 60, (count, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(1, 40, (count, 2))], axis=1)
    scores = rng.uniform(0, 1, count)
    if whole:  # whole pixels and few scores: many ties
        boxes, scores = np.floor(boxes), np.round(scores, 1)
    return boxes.astype(np.float32), scores.astype(np.float32)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7])
@pytest.mark.parametrize("count", [0, 1, 30, 400])
def test_nms_is_torchvisions(count, threshold, whole):
    torch = pytest.importorskip("torch")
    torchvision = pytest.importorskip("torchvision")
    for seed in range(5):
        boxes, scores = _random_boxes(np.random.default_rng(seed), count, whole)
        expected = torchvision.ops.nms(torch.from_numpy(boxes), torch.from_numpy(scores), threshold).numpy()
        assert np.array_equal(ours.nms(boxes, scores, threshold), expected)


def test_nms_of_many_boxes_is_that_of_few(monkeypatch):
    boxes, scores = _random_boxes(np.random.default_rng(1), 300, True)
    at_once = ours.nms(boxes, scores, 0.5), ours.min_nms(boxes, scores, 0.5)
    monkeypatch.setattr(ours, "_MAX_MATRIX", 10)
    assert np.array_equal(ours.nms(boxes, scores, 0.5), at_once[0])
    assert np.array_equal(ours.min_nms(boxes, scores, 0.5), at_once[1])


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("count", [1, 30, 300])
def test_min_nms_is_the_references(count, whole):
    reference = pytest.importorskip("facenet_pytorch.models.utils.detect_face").nms_numpy
    boxes, scores = _random_boxes(np.random.default_rng(count), count, whole)
    assert np.array_equal(ours.min_nms(boxes, scores, 0.7), reference(boxes, scores, 0.7, "Min"))


def test_crop_windows_count_pixels_from_one():
    boxes = np.array(
        [[1, 1, 20, 20], [-5.5, -3, 4.9, 6], [0, 0, 1, 1], [90, 40, 130, 70], [101, 1, 120, 20], [-20, -20, 0, 0]],
        np.float32,
    )
    windows, valid = ours.crop_windows(boxes, width=100, height=50)
    assert valid.tolist() == [True, True, True, True, False, False]
    assert windows[:4].tolist() == [[0, 0, 20, 20], [0, 0, 4, 6], [0, 0, 1, 1], [89, 39, 100, 50]]


def test_crop_windows_survive_absurd_boxes():
    boxes = np.array([[-1e30, -1e30, 1e30, 1e30], [1e30, 1e30, 2e30, 2e30]], np.float32)
    windows, valid = ours.crop_windows(boxes, width=100, height=50)
    assert windows[0].tolist() == [0, 0, 100, 50]
    assert valid.tolist() == [True, False]


def test_square_keeps_the_centre():
    squared = ours.square(np.array([[0, 10, 20, 20], [0, 0, 4, 10]], np.float32))
    assert squared.tolist() == [[0, 5, 20, 25], [-3, 0, 7, 10]]


def test_regress_counts_inclusive_ends():
    box, move = np.array([[10, 20, 19, 39]], np.float32), np.array([[0.1, 0.1, -0.1, 0.2]], np.float32)
    np.testing.assert_allclose(ours.regress(box, move, inclusive=1), [[11, 22, 18, 43]], rtol=1e-6)
    np.testing.assert_allclose(ours.regress(box, move, inclusive=0), [[10.9, 21.9, 18.1, 42.8]], rtol=1e-6)
