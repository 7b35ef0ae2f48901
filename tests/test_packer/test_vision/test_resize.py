import cv2
import numpy as np
import pytest
import skimage.data
from hypothesis import given
from hypothesis import strategies as st
from support.fuzz import examples

from packer.vision.geometry.resize import resize_exact, resize_shorter

ROCKET = skimage.data.rocket()  # (427, 640, 3)


def test_shorter_side():
    assert resize_shorter(ROCKET, 256).shape == (256, 384, 3)
    assert resize_shorter(np.ascontiguousarray(ROCKET.transpose(1, 0, 2)), 256).shape == (384, 256, 3)
    assert resize_shorter(ROCKET, 854).shape == (854, 1280, 3)


@given(height=st.integers(1, 3000), width=st.integers(1, 3000), size=st.integers(1, 64))
@examples(60)
def test_proportions_are_kept_to_the_nearest_pixel(height, width, size):
    longer = max(height, width) * size / min(height, width)
    if longer > 4096:
        return
    image = np.broadcast_to(np.zeros((1, 1, 3), np.uint8), (height, width, 3))
    small = resize_shorter(image, size)
    assert min(small.shape[:2]) == size
    assert abs(max(small.shape[:2]) - longer) <= 0.5


def test_resizing_to_the_same_size_returns_the_same_object():
    assert resize_shorter(ROCKET, 427) is ROCKET
    assert resize_exact(ROCKET, (427, 640)) is ROCKET


def test_shrinking_averages_areas():
    small = resize_exact(ROCKET[:400, :600], (100, 150))
    means = ROCKET[:400, :600].reshape(100, 4, 150, 4, 3).mean(axis=(1, 3))
    assert np.abs(small - means).max() <= 0.51


@given(data=st.data())
@examples(150)
def test_averages_are_those_of_opencv(data):
    height, width = data.draw(st.integers(1, 427)), data.draw(st.integers(1, 640))
    size = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    if data.draw(st.booleans()):  # by whole factors
        height, width = size[0] * max(1, height // size[0]), size[1] * max(1, width // size[1])
    image = ROCKET[:height, :width]
    expected = image if size == (height, width) else cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA)
    assert np.array_equal(resize_exact(image, size), expected)


def test_averages_of_large_images_are_those_of_opencv():
    image = np.random.default_rng(0).integers(0, 256, (1201, 1801, 3), np.uint8)
    expected = cv2.resize(image, (640, 427), interpolation=cv2.INTER_AREA)
    assert np.array_equal(resize_exact(image, (427, 640)), expected)


@pytest.mark.parametrize("size", [(100, 1280), (854, 160), 300])
def test_each_axis_by_itself(size):
    height, width = (size, size) if isinstance(size, int) else size
    image = resize_exact(ROCKET, size)
    assert image.shape == (height, width, 3)
    stripes = np.zeros((427, 640, 3), np.uint8)
    stripes[::2] = 255  # an axis that shrinks is averaged even while the other one grows
    if height < 427:
        assert np.abs(resize_exact(stripes, size)[2:-2].astype(int) - 127).max() <= 60  # nearest or bilinear: 127


def test_a_size_below_one_pixel_is_refused():
    with pytest.raises(ValueError, match="at least 1 pixel"):
        resize_shorter(ROCKET, 0)
    with pytest.raises(ValueError, match="at least 1 pixel"):
        resize_exact(ROCKET, (10, 0))
