"""Meaning of field names: fields that the pack stage writes, and fields that are images, masks or points."""

import re
from collections.abc import Mapping

FIELD_ORDER = (
    "key",
    "source",
    "label",
    "frame",
    "time",
    "frame_position",
    "track",
    "image",
    "landmarks",
    "landmarks_valid",
    "hull",
    "regions",
    "box",
    "score",
    "matrix",
)
"""Fields that the pack stage writes. They come first, in this order; a user's own fields follow by name."""

RESERVED = frozenset(FIELD_ORDER) - {"label"}
"""Names that a column of a table must not have, because the pack stage writes these fields itself."""

PIXEL_AXES: Mapping[str, tuple[int, ...]] = {
    "landmarks": (0, 1),
    "hull": (0, 1),
    "regions": (0, 1, 0, 1),
    "boxes": (0, 1, 0, 1),
}
"""Fields in pixels of the picture, (n, k) floating: the axis that each of the k numbers lies on, 0 for x and 1 for y.
"""


def field_name(column: str) -> str:
    """A column's name as a field: lower case, other characters as underscores."""
    name = re.sub(r"[^a-z0-9]+", "_", str(column).lower()).strip("_")
    return name if name[:1].isalpha() else f"column_{name}".rstrip("_")


def is_picture_field(name: str) -> bool:
    """Return whether the name is that of a picture: ``image`` or ``*_image``.

    Arrays (H, W, 3) uint8 under such a name are encoded as the recipe says.
    """
    return name == "image" or is_further_picture(name)


def is_further_picture(name: str) -> bool:
    """Return whether the name is that of a picture other than ``image``: ``*_image``, as ``--also`` packs them."""
    return name.endswith("_image")


def is_mask_name(name: str) -> bool:
    """Return whether a field of this name may be a mask or a label map: ``mask``, ``*_mask``, ``*_image``.

    Such a field is stored without loss, unless a user chooses another encoding for it by name.
    """
    return is_further_picture(name) or name.endswith("_mask") or name == "mask"
