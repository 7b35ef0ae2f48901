"""What belongs to a sample's picture, by the names of the contract: further pictures, and geometry in its pixels."""

from collections.abc import Mapping

__all__ = ["PIXEL_AXES", "is_further_picture", "is_picture_field"]

PIXEL_AXES: Mapping[str, tuple[int, ...]] = {"landmarks": (0, 1), "hull": (0, 1), "regions": (0, 1, 0, 1)}
"""Fields in the picture's pixels, (n, k) floating: which axis each of the k numbers lies on, 0 for x and 1 for y."""


def is_picture_field(name: str) -> bool:
    """Whether arrays (H, W, 3) uint8 under this name are pictures, encoded as a recipe says: ``image``, ``*_image``."""
    return name == "image" or is_further_picture(name)


def is_further_picture(name: str) -> bool:
    """Whether a field is a picture beside ``image`` by its name: ``*_image``, as ``--also`` packs them."""
    return name.endswith("_image")
