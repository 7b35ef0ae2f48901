"""Aligned crops of a face or of a part of it: points of the face mapped onto a template by a similarity.

`align_matrix` with `warp` makes the crop that this project recommends: it has a margin, and averages when it shrinks.
`likeness_matrix` with `bilinear` makes the crops of other projects, pixel by pixel.

`part_matrix` makes crops of a part of a face, such as the mouth, by definitions that were published for lip reading.
Each definition maps stable points of the face onto a mean face in a template of 256 x 256 pixels by a similarity, and
cuts 96 x 96 pixels around the part. The mean face is ``20words_mean_face.npy`` of mpc001/auto_avsr (Apache-2.0); its
numbers are rounded to a thousandth of a pixel here.

======================  ======================================================================================
name                    published in
======================  ======================================================================================
``auto-avsr-68``        auto_avsr, ``preparation/detectors/retinaface/video_process.py``
``auto-avsr-4``         auto_avsr, ``preparation/detectors/mediapipe/video_process.py``
``av-hubert``           AV-HuBERT, ``avhubert/preparation/align_mouth.py``, LipForensics and IIANet
======================  ======================================================================================

The similarity is that of least squares, as in AV-HuBERT. auto_avsr takes OpenCV's LMEDS, which flips between subsets of
the points. The published code rounds the centre of the cut to whole pixels, and this module does not, since a rounded
crop jumps by a pixel.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from packer.vision.geometry.affine import check_frame, check_matrix
from packer.vision.geometry.crop import MAX_SIDE, bilinear
from shardspec.points import get_layout

_TEMPLATE_SIZE = 112
# The five points of InsightFace's ArcFace template for 112 x 112 (insightface/utils/face_align.py, `arcface_dst`).
# There the centre of a pixel is a whole number; half a pixel is added where the template is used.
_TEMPLATE = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]],
)

Points = npt.NDArray[np.float64]


def _arcface(size: int) -> Points:
    """Return the points of ``norm_crop`` (insightface/utils/face_align.py, ``estimate_norm``)."""
    if size % 112 == 0:
        return _TEMPLATE * (size / 112)
    if size % 128 == 0:
        return _TEMPLATE * (size / 128) + (8 * size / 128, 0)
    raise ValueError(f"expected a multiple of 112 or 128 pixels for arcface, found {size}")


def _deepfakebench(size: int) -> Points:
    """Return the points of ``img_align_crop`` (SCLBD/DeepfakeBench, preprocessing/preprocess.py)."""
    scale = 1.3
    return (_TEMPLATE * (size / _TEMPLATE_SIZE) + size * (scale - 1) / 2) / scale


LIKENESSES: Mapping[str, Callable[[int], Points]] = {"arcface": _arcface, "deepfakebench": _deepfakebench}
"""Templates by name, as functions of the crop's side: (5, 2), where the centre of a pixel is a whole number."""


def align_matrix(points: npt.ArrayLike, size: int, margin: float = 0.0) -> npt.NDArray[np.float64]:
    """Return the similarity, (2, 3), that brings five points (5, 2) of the frame closest to the ArcFace template.

    It minimises squared distances over rotation, one scale and translation, without reflection (Umeyama, IEEE TPAMI 13
    (4), 1991; in the plane it is one division of complex numbers). Every value is exact in float32.

    Parameters
    ----------
    points : array_like, (5, 2)
        Eye, eye, nose, mouth corner, mouth corner in frame pixels. The eye and the corner on the image's left (the
        person's right, in an upright face) come first, as in MTCNN's output.
    margin : float, > -0.5
        Share of the template's side that is added on each side.

    Raises
    ------
    ValueError
        If the points are not finite or are all the same, or if the size or the margin is out of range.
    """
    source = _check_points(points)
    if size < 1 or not (np.isfinite(margin) and margin > -0.5):
        raise ValueError(f"expected a size of at least 1 and a margin above -0.5, found {size} and {margin}")
    target = (_TEMPLATE + 0.5 + margin * _TEMPLATE_SIZE) * (size / (_TEMPLATE_SIZE * (1 + 2 * margin)))
    return fit_similarity(source, target).astype(np.float32).astype(np.float64)


def likeness_matrix(points: npt.ArrayLike, likeness: str, size: int) -> npt.NDArray[np.float64]:
    """Return the matrix, (2, 3), by which another project maps the frame, given the same points as `align_matrix`.

    Those projects pass the points to OpenCV, in which the centre of a pixel is a whole number. With this matrix,
    `packer.vision.geometry.crop.bilinear` equals their ``cv2.warpAffine``. It does not average when it shrinks a face.
    Every value is exact in float32.

    Parameters
    ----------
    likeness : str
        A key of `LIKENESSES`: ``"arcface"`` for InsightFace's ``norm_crop``, ``"deepfakebench"`` for DeepfakeBench's
        ``img_align_crop``.
    size : int, pixels
        Side of the crop; for ``"arcface"`` a multiple of 112 or 128.

    Raises
    ------
    ValueError
        If the points are not finite or are all the same, or if the size does not fit the template.
    """
    matrix = fit_similarity(_check_points(points), LIKENESSES[likeness](size))
    matrix[:, 2] += 0.5 - matrix[:, :2].sum(axis=1) / 2
    return matrix.astype(np.float32).astype(np.float64)


def _check_points(points: npt.ArrayLike) -> Points:
    source = np.asarray(points, np.float64)
    if source.shape != (5, 2) or not np.isfinite(source).all():
        raise ValueError(f"expected five finite points, found shape {source.shape}")
    return source


def fit_similarity(source: Points, target: Points) -> npt.NDArray[np.float64]:
    """Return the similarity, (2, 3), that brings points (K, 2) closest to others by least squares.

    Raises
    ------
    ValueError
        If all points are equal.
    """
    z, w = source @ (1, 1j), target @ (1, 1j)
    z_mean, w_mean = z.mean(), w.mean()
    spread = (np.abs(z - z_mean) ** 2).sum()
    factor = (np.conj(z - z_mean) * (w - w_mean)).sum() / spread if spread > 0 else 0
    if factor == 0:
        raise ValueError(f"expected points that differ, found {source.tolist()}")
    shift = w_mean - factor * z_mean
    return np.array([[factor.real, -factor.imag, shift.real], [factor.imag, factor.real, shift.imag]])


def warp(frame: npt.NDArray[np.uint8], matrix: npt.ArrayLike, size: int) -> npt.NDArray[np.uint8]:
    """Cut the area that a matrix, (2, 3), maps onto (0, 0, size, size), including rotation.

    If it shrinks by up to n times, n x n bilinear values per crop pixel are averaged. If it enlarges, a crop pixel is
    the bilinear value at its centre. Anything outside the frame is black. `cut` is exact and faster where nothing is
    rotated.
    """
    check_frame(frame)
    affine = check_matrix(matrix)
    if not 1 <= size <= MAX_SIDE:
        raise ValueError(f"expected a crop size from 1 to {MAX_SIDE} pixels, found {size}")
    smallest = float(np.linalg.svd(affine[:, :2], compute_uv=False)[-1])
    if smallest == 0:
        raise ValueError(f"expected a matrix that can be inverted, found {affine.tolist()}")
    samples = int(np.clip(np.ceil(1 / smallest - 1e-6), 1, MAX_SIDE // size))
    warped = bilinear(frame, affine * samples, size * samples)
    if samples > 1:
        return np.asarray(cv2.resize(warped, (size, size), interpolation=cv2.INTER_AREA), np.uint8)
    return warped


SIZE = 96
"""Side of the published crops, in pixels of the template."""

# Points of the mean face, in which the centre of a pixel is a whole number.
_MEAN_FACE: Mapping[int, tuple[float, float]] = {
    28: (128.489, 106.925),
    33: (128.870, 137.303),
    36: (92.522, 94.369),
    39: (112.772, 94.944),
    42: (145.525, 94.535),
    45: (166.677, 93.566),
    48: (107.168, 157.196),
    54: (152.193, 156.987),
}
# The means of points 36 to 41, 42 to 47, 31 to 35 and 48 to 67: right eye, left eye, nose, mouth.
_MEAN_PARTS = ((102.074, 94.272), (156.361, 93.578), (129.004, 135.903), (129.313, 157.823))


@dataclass(frozen=True)
class Definition:
    """A definition of crops of a part of a face.

    Attributes
    ----------
    layout : str
        Layout of the points that it reads.
    stable : tuple of tuple of int
        Groups of points whose means are mapped onto the template.
    template : tuple of (float, float)
        Target position of each group's mean, in template pixels.
    """

    layout: str
    stable: tuple[tuple[int, ...], ...]
    template: tuple[tuple[float, float], ...]


def _of_points(*points: int) -> Definition:
    return Definition("68", tuple((point,) for point in points), tuple(_MEAN_FACE[point] for point in points))


DEFINITIONS: Mapping[str, Definition] = {
    "auto-avsr-68": _of_points(28, 33, 36, 39, 42, 45, 48, 54),
    "auto-avsr-4": Definition("5", ((0,), (1,), (2,), (3, 4)), _MEAN_PARTS),
    "av-hubert": _of_points(33, 36, 39, 42, 45),
}


def centre_weights(count: int, name: str | None) -> Points:
    """Return the weights of points in the mean that stays in place while a face's shape is smoothed, (count,).

    auto_avsr's detector of four points finds the middle of the mouth, so both corners of the mouth count as one point.

    Parameters
    ----------
    count : int
        Number of points.
    name : str or None
        A key of `DEFINITIONS`; for anything else, all weights are equal.
    """
    definition = DEFINITIONS.get(name or "")
    if definition is None or definition.layout != "5":
        return np.full(count, 1 / count)
    weights = np.zeros(count)
    for group in definition.stable:
        weights[list(group)] = 1 / (len(definition.stable) * len(group))
    return weights


def _centres(layout: str) -> Mapping[str, tuple[int, ...]]:
    regions = get_layout(layout).regions
    return {
        "mouth": regions["mouth"],
        "left-eye": regions["left_eye"],
        "right-eye": regions["right_eye"],
        "eyes": regions["right_eye"] + regions["left_eye"],
        "nose": (30,) if layout == "68" else regions["nose"],
    }


CENTRES: Mapping[str, Mapping[str, tuple[int, ...]]] = {layout: _centres(layout) for layout in ("5", "68")}
"""Points whose mean is the centre of the crop, by layout and part. For the nose, this is the tip."""


def part_matrix(points: npt.ArrayLike, name: str, part: str, size: int) -> npt.NDArray[np.float64]:
    """Return the matrix, (2, 3), from the frame to the crop of a part of a face; every value is exact in float32.

    The points are passed on as `packer.vision.geometry.align.likeness_matrix` passes them: as numbers in the published
    code, in which the centre of a pixel is a whole number.

    Parameters
    ----------
    points : array_like, (5, 2) or (68, 2)
        Frame pixels, in the layout of the definition.
    name : str
        A key of `DEFINITIONS`.
    part : str
        ``"mouth"``, ``"eyes"``, ``"left-eye"``, ``"right-eye"`` or ``"nose"``.
    size : int, pixels
        Side of the crop, which holds `SIZE` pixels of the template.

    Raises
    ------
    ValueError
        If the points are not finite or all the same.
    """
    definition = DEFINITIONS[name]
    known = np.asarray(points, np.float64)
    if known.shape != (get_layout(definition.layout).count, 2) or not np.isfinite(known).all():
        raise ValueError(f"expected {definition.layout} finite points, found shape {known.shape}")
    source = np.stack([known[list(group)].mean(axis=0) for group in definition.stable])
    matrix = fit_similarity(source, np.array(definition.template))
    centre = known[list(CENTRES[definition.layout][part])].mean(axis=0)
    matrix[:, 2] = SIZE / 2 - matrix[:, :2] @ centre
    matrix[:, 2] += 0.5 - matrix[:, :2].sum(axis=1) / 2
    return (matrix * (size / SIZE)).astype(np.float32).astype(np.float64)
