"""What the names of fields say: which further pictures and arrays of a sample are masks."""

from shardspec.picture_fields import is_further_picture

__all__ = ["is_mask_name"]


def is_mask_name(name: str) -> bool:
    """Whether a field may be a mask or a label map by its name: ``mask``, ``*_mask``, ``*_image``. It is never stored with loss."""
    return is_further_picture(name) or name.endswith("_mask") or name == "mask"
