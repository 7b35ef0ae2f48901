"""The interface of the providers of dense landmarks, and the rule by which their points count as valid."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from packer.vision.landmarks.similarity import check_points, five_points, place_mean_face, unit

FARTHEST = 0.35
"""Greatest distance of a landmark from MTCNN's point if both are right, in frontal eye distances (12 % of the box)."""


class LandmarkProvider(Protocol):
    """Finds the points of one face in its crop.

    Attributes
    ----------
    layout : str
        A layout of `shardspec.points`.

    Notes
    -----
    An object serves one thread.
    """

    layout: str

    def __call__(self, image: npt.NDArray[np.uint8], points5: npt.ArrayLike) -> tuple[npt.NDArray[np.float32], bool]:
        """Return the landmarks of the face in a crop, and whether they are valid.

        Parameters
        ----------
        image : ndarray, (S, S, 3), uint8, RGB
        points5 : array_like, (5, 2)
            MTCNN's points in crop pixels.

        Returns
        -------
        points : ndarray, (K, 2), float32
            Crop pixels; some may be outside the crop.
        valid : bool
            Whether they agree with `points5` (`agrees`), and the model, if it has a score, found a face.
        """
        ...


def agrees(points: npt.ArrayLike, layout: str, points5: npt.ArrayLike) -> bool:
    """Return whether each of the five points is within `FARTHEST` of its counterpart among the landmarks."""
    known = check_points(points5, "5")
    distances = np.linalg.norm(five_points(points, layout) - known, axis=1)
    return bool(distances.max() <= FARTHEST * unit(place_mean_face(known)))


class FivePoints:
    """Returns the detector's points, which are always valid; fulfils `LandmarkProvider`."""

    layout = "5"

    def __call__(self, image: npt.NDArray[np.uint8], points5: npt.ArrayLike) -> tuple[npt.NDArray[np.float32], bool]:
        return check_points(points5, "5").astype(np.float32), True
