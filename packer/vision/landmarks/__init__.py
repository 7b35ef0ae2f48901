"""Landmarks of a face in its crop, and what follows from them: the outline and the regions.

`hull.hull` and `regions.regions` take the points of any layout. The providers of denser points are reached by name, so that
neither dlib nor OpenVINO is loaded before it is used.
"""

from collections.abc import Mapping
from pathlib import Path

from packer.vision.landmarks.base import LandmarkProvider
from shardspec.errors import UsageError
from shardspec.registry import Entry, resolve

__all__ = ["KINDS", "LandmarkProvider", "make_provider"]

KINDS: Mapping[str, Entry] = {
    "5": Entry("packer.vision.landmarks.five:FivePoints"),
    "68": Entry("packer.vision.landmarks.dlib68:Dlib68", "dlib"),
    "mesh": Entry("packer.vision.landmarks.mesh:FaceMesh", "faces"),
}
"""What ``--landmarks`` may be, and the class of each kind."""


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
        The kind is unknown, or the file is missing, not needed or not what the kind wants.
    MissingDependencyError
        A library of that kind is not installed.
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
