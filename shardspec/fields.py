"""Meaning of field names: fields that packing writes, and fields that are images, masks or points."""

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
"""Fields that packing writes, in the order of the schema; a user's fields follow by name."""

OF_VIDEOS = ("video", "frames", "seconds", "audio_lengths")
"""Fields that packing writes only if samples are videos."""

FRAME_KEY = "frame_key"
"""Field of tracks that were made of packed frames: the key that each frame had."""

RESERVED = frozenset(FIELD_ORDER) - {"label"}
"""Names that a column of a table must not have, because packing writes these fields."""

PIXEL_AXES: Mapping[str, tuple[int, ...]] = {
    "landmarks": (0, 1),
    "hull": (0, 1),
    "regions": (0, 1, 0, 1),
    "boxes": (0, 1, 0, 1),
}
"""Floating-point fields in pixels, (n, k): the axis of each of the k numbers, 0 for x and 1 for y."""


def field_name(column: str) -> str:
    """Turn a column's name into that of a field: lower case, with underscores for other characters."""
    name = re.sub(r"[^a-z0-9]+", "_", str(column).lower()).strip("_")
    return name if name[:1].isalpha() else f"column_{name}".rstrip("_")


def is_image_field(name: str) -> bool:
    """Return whether a field is an image by its name, ``image`` or ``*_image``, if it holds (H, W, 3) uint8 arrays."""
    return name == "image" or is_further_image(name)


def video_name(image: str) -> str:
    """Return the name of the video whose frames are in an image field: ``video`` for ``image``, ``*_video``."""
    return image.removesuffix("image") + "video"


def image_name(video: str) -> str:
    """Return the name of the image field of a video's frames (`video_name`)."""
    return video.removesuffix("video") + "image"


def is_video_field(name: str) -> bool:
    """Return whether a field is a video by its name, ``video`` or ``*_video``, if it holds (T, H, W, 3) uint8 arrays."""
    return name == "video" or name.endswith("_video")


def is_further_image(name: str) -> bool:
    """Return whether a name is ``*_image``, as ``--also`` packs second images."""
    return name.endswith("_image")


def is_mask_name(name: str) -> bool:
    """Return whether a field may be a mask or label map by its name: ``mask``, ``*_mask``, ``*_image`` or ``*_video``.

    Such a field is stored without loss, unless the user chooses another encoding for it by name.
    """
    return is_further_image(name) or name.endswith(("_mask", "_video")) or name == "mask"
