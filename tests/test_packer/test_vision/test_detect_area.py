"""Area averaging against torch's adaptive pooling, which facenet-pytorch resizes by."""

import numpy as np
import pytest
import skimage.data

from packer.vision.detect import cpu
from packer.vision.detect.cpu import AreaSampler

torch = pytest.importorskip("torch")

PORTRAIT = skimage.data.astronaut()[:301, 40:400]
WINDOWS = np.array([[0, 0, 360, 301], [100, 20, 101, 21], [3, 5, 20, 40], [100, 50, 148, 98], [10, 10, 300, 17]])


def _expected(image, height, width):
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None].to(torch.float64)
    return torch.nn.functional.interpolate(pixels, size=(height, width), mode="area")[0].numpy()


@pytest.fixture(params=["whole", "bands"])
def limit(request, monkeypatch):
    if request.param == "bands":
        monkeypatch.setattr(cpu, "_MAX_INTEGRAL_PIXELS", 3000)
        monkeypatch.setattr(cpu, "_BAND_PIXELS", 3000)


@pytest.mark.parametrize("size", [(301, 360), (181, 217), (128, 153), (40, 47), (12, 15), (1, 1), (700, 400)])
def test_rows_are_adaptive_average_pooling(size, limit):
    sampler, expected = AreaSampler(PORTRAIT), _expected(PORTRAIT, *size)
    np.testing.assert_allclose(sampler.rows(*size, 0, size[0]), expected, rtol=1e-6)
    start, end = size[0] // 3, size[0] // 3 + max(1, size[0] // 2)
    np.testing.assert_allclose(sampler.rows(*size, start, end), expected[:, start:end], rtol=1e-6)


@pytest.mark.parametrize("size", [24, 48])
def test_crops_are_adaptive_average_pooling(size, limit):
    crops = AreaSampler(PORTRAIT).crops(WINDOWS, size)
    for crop, (left, top, right, bottom) in zip(crops, WINDOWS, strict=True):
        np.testing.assert_allclose(crop, _expected(PORTRAIT[top:bottom, left:right], size, size), rtol=1e-6)


def test_no_crops(limit):
    assert AreaSampler(PORTRAIT).crops(np.zeros((0, 4), np.int64), 24).shape == (0, 3, 24, 24)


def test_sums_may_wrap_around():
    white = np.full((3000, 3000, 3), 255, np.uint8)  # sums to 2.3e9, over 2**31
    sampler = AreaSampler(white)
    assert np.all(np.abs(sampler.rows(13, 13, 0, 13) - 255) < 1e-3)
    assert np.all(np.abs(sampler.crops(np.array([[1500, 1400, 3000, 3000]]), 24) - 255) < 1e-3)
