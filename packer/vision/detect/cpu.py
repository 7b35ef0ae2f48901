"""An image whose pyramid levels and crops are averaged on the CPU, in pieces that fit into its caches.

facenet-pytorch resizes by ``torch.nn.functional.interpolate(mode="area")``, which is adaptive average pooling: output
cell i of m averages the input pixels ``floor(i n / m)`` to ``ceil((i + 1) n / m)`` (exclusive), so cells may overlap,
and enlarging repeats pixels. OpenCV's INTER_AREA weights border pixels instead and would shift the boxes. With one
integral image (sums over all pixels above and to the left), every such average costs four look-ups for a window of any
size, and the sums are exact integers.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt

from packer.vision.detect.networks import CROP_SIZES, OUTPUTS

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

_MAX_INTEGRAL_PIXELS = 1 << 24  # largest image whose integral image is kept, 16 bytes a pixel: 256 MB
_BAND_PIXELS = 1 << 22  # pixels of a band: integral images of larger images are made band by band
_ROWS_FIRST_RATIO = 5.0  # below this ratio of shrinking, rows are subtracted whole before columns are picked (measured)


@lru_cache(maxsize=256)
def cell_edges(n: int, m: int) -> tuple[IntArray, IntArray]:
    """Return start and end (exclusive) of the m pooling cells over n pixels."""
    i = np.arange(m, dtype=np.int64)
    return (i * n) // m, -((-(i + 1) * n) // m)


class AreaSampler:
    """Resizes an image, (H, W, 3), as a whole or in windows, by area averaging.

    The image is not copied and must not change while the sampler is in use. Images of more than 16 Mpx get no integral
    image. Instead one is made for each requested band of rows or window, which bounds the memory beyond the image and
    takes more time.
    """

    def __init__(self, image: npt.NDArray[np.uint8]) -> None:
        self._image = image
        self.height, self.width = image.shape[:2]
        self._sums = _integral(image) if self.height * self.width <= _MAX_INTEGRAL_PIXELS else None

    def rows(self, height: int, width: int, start: int, end: int) -> FloatArray:
        """Return some rows of the image resized to (height, width): (3, end - start, width) in [0, 255]."""
        top, bottom = (edge[start:end] for edge in cell_edges(self.height, height))
        left, right = cell_edges(self.width, width)
        if self._sums is not None:
            return _average(_window_sums(self._sums, top, bottom, left, right), bottom - top, right - left)
        out = np.empty((3, end - start, width), np.float32)
        for first, last in _bands(top, bottom, self.width):
            offset = top[first]
            sums = _integral(self._image[offset : bottom[last - 1]])
            y0, y1 = top[first:last] - offset, bottom[first:last] - offset
            out[:, first:last] = _average(_window_sums(sums, y0, y1, left, right), y1 - y0, right - left)
        return out

    def crops(self, windows: IntArray, size: int) -> FloatArray:
        """Resize windows of the image to squares, (n, 3, size, size) in [0, 255].

        Parameters
        ----------
        windows : ndarray, (n, 4), int64
            Left, top, right, bottom (exclusive); inside the image and not empty.
        """
        if self._sums is None:
            parts = [AreaSampler(self._image[y0:y1, x0:x1]).rows(size, size, 0, size) for x0, y0, x1, y1 in windows]
            return np.stack(parts) if parts else np.empty((0, 3, size, size), np.float32)
        i = np.arange(size, dtype=np.int64)
        x, y = windows[:, 0:1], windows[:, 1:2]
        w, h = windows[:, 2:3] - x, windows[:, 3:4] - y
        left, right = x + (i * w) // size, x - ((-(i + 1) * w) // size)
        top, bottom = y + (i * h) // size, y - ((-(i + 1) * h) // size)
        stride = self._sums.shape[1]
        above, below = (top * stride)[:, :, None], (bottom * stride)[:, :, None]
        sums = _corners(self._sums.reshape(-1), above, below, left[:, None, :], right[:, None, :])
        areas = _inverse(bottom - top)[:, :, None] * _inverse(right - left)[:, None, :]
        out = np.empty((len(windows), 3, size, size), np.float32)
        for channel in range(3):
            out[:, channel] = sums[..., channel]
        out *= areas[:, None]
        return out


def _integral(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.complex128]:
    """Return the sums over all pixels above and to the left, (H + 1, W + 1), four int32 in the bits of one complex128.

    There is a fourth channel because numpy picks 16 bytes at a time faster than 12. Sums wrap around at 2**32, and
    their differences are right as long as one window has fewer than 2**31 / 255 pixels.
    """
    sums = cv2.integral(cv2.cvtColor(image, cv2.COLOR_RGB2RGBA), sdepth=cv2.CV_32S)
    packed: npt.NDArray[np.complex128] = sums.view(np.complex128)[..., 0]
    return packed


def _window_sums(
    sums: npt.NDArray[np.complex128], top: IntArray, bottom: IntArray, left: IntArray, right: IntArray
) -> npt.NDArray[np.int32]:
    """Return the sums over the grid of windows rows x columns, (rows, columns, 4)."""
    if sums.shape[1] <= _ROWS_FIRST_RATIO * len(left):
        numbers = sums.view(np.int32)
        lines = np.empty((len(top), numbers.shape[1]), np.int32)
        for line, y0, y1 in zip(lines, top.tolist(), bottom.tolist(), strict=True):
            np.subtract(numbers[y1], numbers[y0], out=line)
        packed = lines.view(np.complex128)
        out = _as_int(packed.take(right, axis=1))
        out -= _as_int(packed.take(left, axis=1))
        return out
    stride = sums.shape[1]
    return _corners(sums.reshape(-1), (top * stride)[:, None], (bottom * stride)[:, None], left[None], right[None])


def _corners(
    flat: npt.NDArray[np.complex128], above: IntArray, below: IntArray, left: IntArray, right: IntArray
) -> npt.NDArray[np.int32]:
    """Return the sums over windows from their four corners; the index arrays broadcast to the windows' shape."""
    out = _as_int(flat.take(below + right))
    out -= _as_int(flat.take(above + right))
    out -= _as_int(flat.take(below + left))
    out += _as_int(flat.take(above + left))
    return out


def _as_int(packed: npt.NDArray[np.complex128]) -> npt.NDArray[np.int32]:
    return packed[..., None].view(np.int32)


def _average(sums: npt.NDArray[np.int32], heights: IntArray, widths: IntArray) -> FloatArray:
    """Divide window sums (rows, columns, 4) by the windows' areas, and put colours first."""
    out = np.empty((3, *sums.shape[:2]), np.float32)
    for channel in range(3):
        out[channel] = sums[..., channel]
    out *= _inverse(heights)[:, None] * _inverse(widths)
    return out


def _inverse(sizes: IntArray) -> FloatArray:
    inverse: FloatArray = (1 / sizes).astype(np.float32)
    return inverse


def _bands(top: IntArray, bottom: IntArray, width: int) -> Iterator[tuple[int, int]]:
    """Cut output rows into runs whose input has at most ``_BAND_PIXELS`` (or that are one output row)."""
    first = 0
    for last in range(1, len(top) + 1):
        if last == len(top) or (bottom[last] - top[first]) * width > _BAND_PIXELS:
            yield first, last
            first = last


RunNetwork = Callable[[str, FloatArray], FloatArray]
"""(net, (n, 3, h, w) pixels) to P-net's (n, 5, rows, columns) or (n, OUTPUTS[net]); valid until the next call."""

_STRIP_PIXELS = 1 << 17  # input pixels of one P-net call
_CHUNKS = {"rnet": 64, "onet": 8}  # crops of one call; measured on a Zen 4 core with 1 MB of second-level cache
_FIELD, _STRIDE = 12, 2  # P-net's receptive field and stride, input pixels


class CpuFrame:
    """Samples an image and passes the pieces to a network library; fulfils ``packer.vision.detect.networks.PreparedFrame``.

    The strips and chunks depend on the image and its own boxes alone, so the results cannot depend on other frames.
    """

    def __init__(self, image: npt.NDArray[np.uint8], run: RunNetwork) -> None:
        self._area = AreaSampler(image)
        self._run = run

    def propose(self, height: int, width: int, min_logit: float) -> tuple[IntArray, IntArray, FloatArray]:
        cells = (height - _FIELD + 1) // _STRIDE + 1  # the ceil mode of P-net's pooling
        per_strip = max(1, (_STRIP_PIXELS // width - _FIELD) // _STRIDE)
        found: list[tuple[IntArray, IntArray, FloatArray]] = []
        for first in range(0, cells, per_strip):
            last = min(first + per_strip, cells)
            end = min(_STRIDE * (last - 1) + _FIELD, height)
            maps = self._run("pnet", self._area.rows(height, width, _STRIDE * first, end)[None])[0]
            y, x = np.divmod(np.flatnonzero(maps[-1] >= min_logit), maps.shape[2])
            found.append((y + first, x, maps[:, y, x].T))
        y, x, values = (np.concatenate(part) for part in zip(*found, strict=True))
        return y, x, values

    def refine(self, net: str, windows: IntArray) -> FloatArray:
        out = np.empty((len(windows), OUTPUTS[net]), np.float32)
        order = np.lexsort((windows[:, 0], windows[:, 1]))  # neighbours in the image are neighbours in the cache
        for start in range(0, len(windows), _CHUNKS[net]):
            rows = order[start : start + _CHUNKS[net]]
            out[rows] = self._run(net, self._area.crops(windows[rows], CROP_SIZES[net]))
        return out
