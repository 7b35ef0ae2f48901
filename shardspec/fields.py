"""What the names of fields say: which further pictures and arrays of a sample are masks."""

from collections.abc import Mapping

PIXEL_AXES: Mapping[str, tuple[int, ...]] = {"landmarks": (0, 1), "hull": (0, 1), "regions": (0, 1, 0, 1)}
"""Fields in the picture's pixels, (n, k) floating: which axis each of the k numbers lies on, 0 for x and 1 for y."""


def is_picture_field(name: str) -> bool:
    """Whether arrays (H, W, 3) uint8 under this name are pictures, encoded as a recipe says: ``image``, ``*_image``."""
    return name == "image" or is_further_picture(name)


def is_further_picture(name: str) -> bool:
    """Whether a field is a picture beside ``image`` by its name: ``*_image``, as ``--also`` packs them."""
    return name.endswith("_image")


def is_mask_name(name: str) -> bool:
    """Whether a field may be a mask or a label map by its name: ``mask``, ``*_mask``, ``*_image``. It is never stored with loss."""
    return is_further_picture(name) or name.endswith("_mask") or name == "mask"


FIELD_ORDER = (
    "key",
    "source",
    "label",
    "frame",
    "time",
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
"""Fields that the pack stage writes come first, in this order; a user's own follow by name."""

RESERVED = frozenset(FIELD_ORDER) - {"label"}
"""Fields that the pack stage writes itself, which a column must not be called."""
