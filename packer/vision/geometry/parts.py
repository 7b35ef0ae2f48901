"""Crops of a part of a face, such as the mouth, by definitions that were published for lip reading.

Each definition maps stable points of the face onto a mean face in a template of 256 x 256 pixels by a similarity, and
cuts 96 x 96 pixels around the part. The mean face is ``20words_mean_face.npy`` of mpc001/auto_avsr (Apache-2.0); its
numbers are rounded to a thousandth of a pixel here.

======================  ======================================================================================
name                    published in
======================  ======================================================================================
``auto-avsr-68``        auto_avsr, ``preparation/detectors/retinaface/video_process.py``, and RealForensics
``auto-avsr-4``         auto_avsr, ``preparation/detectors/mediapipe/video_process.py``
``av-hubert``           AV-HuBERT, ``avhubert/preparation/align_mouth.py``, LipForensics and IIANet
======================  ======================================================================================

The similarity is that of least squares, as in AV-HuBERT. auto_avsr takes OpenCV's LMEDS, which flips between subsets of
the points. The published code rounds the centre of the cut to whole pixels, and this module does not, since a rounded
crop jumps by a pixel.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from packer.vision.geometry.align import fit_similarity
from shardspec.points import get_layout

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
