"""The face crop: a square around the detector's box, and the 2x3 matrix that maps the frame onto it.

The side of the square is the longer side of the box times (1 + 2 * margin). The square is centred on the box, black
outside the frame, and resized to ``size``. A square that will shrink is first moved to whole pixels of the frame, by at
most half a pixel in corner and side. An exact area average is then ten times cheaper, and a crop that is not scaled
keeps its pixels. A square that is enlarged is not moved, since half a pixel of the frame would be visible. The matrix
always describes the square that was cut.

Crops by any matrix, including rotation, sample a frame at the pixel centres of the crop: `bilinear` for images, the
nearest pixel for label maps (`pick`).
"""

import math

import cv2
import numpy as np
import numpy.typing as npt

from packer.vision.geometry.affine import apply, check_frame, check_matrix, invert

MAX_SIDE = 32766
"""Largest side of a crop, in pixels: OpenCV's warps index their destination with 16 bits."""


def bilinear(frame: npt.NDArray[np.uint8], matrix: npt.NDArray[np.float64], size: int) -> npt.NDArray[np.uint8]:
    """Sample the area that a matrix, frame to crop, maps onto (0, 0, size, size); black outside the frame.

    With OpenCV 5 the values are within one level of the exact ones. Older versions round coordinates to 1/32 pixel.
    """
    centred = matrix.copy()
    # OpenCV counts pixel centres as whole numbers: half a pixel is added before the mapping and subtracted after it.
    centred[:, 2] += matrix[:, :2].sum(axis=1) / 2 - 0.5
    sampled = cv2.warpAffine(frame, centred, (size, size), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT)
    return np.asarray(sampled, np.uint8)


def pick(frame: npt.NDArray[np.uint8], matrix: npt.ArrayLike, size: int) -> npt.NDArray[np.uint8]:
    """Cut the area that a matrix maps onto (0, 0, size, size), including rotation; black outside the frame.

    Each crop pixel is the frame's pixel that contains its centre.
    """
    check_frame(frame)
    if not 1 <= size <= MAX_SIDE:
        raise ValueError(f"expected a crop size from 1 to {MAX_SIDE} pixels, found {size}")
    centres = np.arange(size) + 0.5
    places = apply(invert(matrix), np.stack(np.meshgrid(centres, centres), axis=-1))
    x, y = np.floor(places[..., 0]), np.floor(places[..., 1])
    height, width = frame.shape[:2]
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    out = np.zeros((size, size, 3), np.uint8)
    out[inside] = frame[y[inside].astype(np.intp), x[inside].astype(np.intp)]
    return out


_MAX_INT32_PIXELS = (2**31 - 1) // 255  # a patch of more pixels could overflow an int32 integral image
# How far from a whole pixel a corner may lie to count as one. Corners come back from a matrix in float32: with crops up
# to 1024 pixels and frames up to 32768 they move by less than 1/256 pixel.
_WHOLE = 1 / 256
_MOST_BLACK = 4  # pixels of a square for each that is inside the frame; above this ratio not all of them are made
_FARTHEST = 2.0**31  # pixels; no frame reaches beyond it, and float32 keeps nothing of such a position


def crop_matrix(box: npt.ArrayLike, margin: float, size: int) -> npt.NDArray[np.float64]:
    """Return the matrix, (2, 3), that maps the frame onto the square crop around a box.

    Every value is exact in float32, so the matrix stored as float32 is the one by which the crop was cut.

    Parameters
    ----------
    box : array_like, (4,)
        Left, top, right, bottom in frame pixels; it may reach beyond the frame.
    margin : float, > -0.5
        Share of the box's longer side that is added on each side (0.3: the crop is 1.6 times as wide).

    Raises
    ------
    ValueError
        If the box is not finite or has no area, if the margin leaves nothing, or if the size is below 1.
    """
    left, top, right, bottom = (float(edge) for edge in np.asarray(box, np.float64).reshape(4))
    if not max(abs(left), abs(top), abs(right), abs(bottom)) <= _FARTHEST or right <= left or bottom <= top:
        raise ValueError(f"expected a box (left, top, right, bottom) with an area, found {(left, top, right, bottom)}")
    if not (math.isfinite(margin) and margin > -0.5):
        raise ValueError(f"expected a margin above -0.5, found {margin}")
    _check_size(size)
    side = max(right - left, bottom - top) * (1 + 2 * margin)
    if not _WHOLE < side < _FARTHEST:
        raise ValueError(f"expected a square between {_WHOLE} and {_FARTHEST} pixels wide, found {side}")
    corner_x: float
    corner_y: float
    if side >= size:
        side = float(math.floor(side + 0.5))
        corner_x, corner_y = math.floor((left + right - side + 1) / 2), math.floor((top + bottom - side + 1) / 2)
    else:
        corner_x, corner_y = (left + right - side) / 2, (top + bottom - side) / 2
    scale = size / side
    matrix = np.array([[scale, 0, -scale * corner_x], [0, scale, -scale * corner_y]], np.float32)
    return matrix.astype(np.float64)


def cut(frame: npt.NDArray[np.uint8], matrix: npt.ArrayLike, size: int) -> npt.NDArray[np.uint8]:
    """Cut the square that an upright matrix, (2, 3), maps onto (0, 0, size, size).

    If it shrinks, a crop pixel is the mean of the area that it covers, including fractions of pixels. If it enlarges, a
    crop pixel is the bilinear value at its centre. Both are within one level of the exact value. Anything outside the
    frame is black. Squares other than those of `crop_matrix` are cut just as exactly, only more slowly when they
    shrink.

    Raises
    ------
    ValueError
        If the frame is not an image, or the matrix has a rotation or two scales.
    """
    check_frame(frame)
    affine = check_matrix(matrix)
    (scale, skew, shift_x), (skew_y, scale_y, shift_y) = affine.tolist()
    if skew != 0 or skew_y != 0 or scale != scale_y or scale <= 0:
        raise ValueError(
            f"expected a matrix with one positive scale and no rotation (see warp), found {affine.tolist()}"
        )
    _check_size(size)
    if scale > 1:
        return bilinear(frame, affine, size)
    left, top, side = -shift_x / scale, -shift_y / scale, size / scale
    whole = [round(value) for value in (left, top, side)]
    if max(abs(left - whole[0]), abs(top - whole[1]), abs(side - whole[2])) < _WHOLE:
        across, down = _visible(whole[0], whole[2], frame.shape[1]), _visible(whole[1], whole[2], frame.shape[0])
        if whole[2] ** 2 <= _MOST_BLACK * across * down:
            return _cut_whole(frame, whole[0], whole[1], whole[2], size)
    return _cut_fractional(frame, left, top, side, size)


def _visible(start: int, side: int, end: int) -> int:
    """Return how many of `side` pixels from `start` on are in [0, end)."""
    return max(0, min(start + side, end) - max(start, 0))


def _cut_whole(frame: npt.NDArray[np.uint8], left: int, top: int, side: int, size: int) -> npt.NDArray[np.uint8]:
    """Average areas of a square of whole pixels with OpenCV."""
    height, width = frame.shape[:2]
    x0, y0 = min(max(left, 0), width), min(max(top, 0), height)
    x1, y1 = min(max(left + side, x0), width), min(max(top + side, y0), height)
    square = frame[y0:y1, x0:x1]
    if square.shape[:2] != (side, side):
        padded = np.zeros((side, side, 3), np.uint8)
        padded[y0 - top : y1 - top, x0 - left : x1 - left] = square
        square = padded
    if side == size:
        return square.copy()
    return np.asarray(cv2.resize(square, (size, size), interpolation=cv2.INTER_AREA), np.uint8)


def _cut_fractional(
    frame: npt.NDArray[np.uint8], left: float, top: float, side: float, size: int
) -> npt.NDArray[np.uint8]:
    """Average areas of any square by differences of the integral image, which is bilinear within a pixel."""
    height, width = frame.shape[:2]
    grid = np.arange(size + 1) * (side / size)
    xs, ys = np.clip(left + grid, 0, width), np.clip(top + grid, 0, height)
    x0, y0, x1, y1 = math.floor(xs[0]), math.floor(ys[0]), math.ceil(xs[-1]), math.ceil(ys[-1])
    if x0 >= x1 or y0 >= y1:
        return np.zeros((size, size, 3), np.uint8)
    patch = frame[y0:y1, x0:x1]
    depth = cv2.CV_32S if patch.shape[0] * patch.shape[1] <= _MAX_INT32_PIXELS else cv2.CV_64F
    sums = np.asarray(cv2.integral(patch, sdepth=depth))
    strips = np.diff(_between(sums, ys - y0, 0), axis=0)
    cells = np.diff(_between(strips, xs - x0, 1), axis=1)
    cells *= (size / side) ** 2
    return np.rint(cells).astype(np.uint8)


def _between(values: npt.NDArray[np.generic], at: npt.NDArray[np.float64], axis: int) -> npt.NDArray[np.float64]:
    """Interpolate values linearly at fractional positions along an axis."""
    low = np.minimum(at.astype(np.intp), values.shape[axis] - 2)
    weight = (at - low).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
    first = values.take(low, axis).astype(np.float64)
    second = values.take(low + 1, axis).astype(np.float64)
    return np.asarray(first + (second - first) * weight, np.float64)


def _check_size(size: int) -> None:
    if not 1 <= size <= MAX_SIDE:
        raise ValueError(f"expected a crop size from 1 to {MAX_SIDE} pixels, found {size}")
