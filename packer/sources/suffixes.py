"""Which files of a folder are pictures and videos, by suffix."""

from pathlib import PurePath

PICTURE_SUFFIXES = frozenset(
    {".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)
VIDEO_SUFFIXES = frozenset(
    {
        *(".3g2", ".3gp", ".asf", ".avi", ".flv", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts"),
        *(".ogv", ".ts", ".vob", ".webm", ".wmv"),
    }
)


def is_picture(name: str) -> bool:
    """Whether a file name ends as a picture's does, in any case of letters."""
    return PurePath(name).suffix.lower() in PICTURE_SUFFIXES


def is_video(name: str) -> bool:
    """Whether a file name ends as a video's does, in any case of letters."""
    return PurePath(name).suffix.lower() in VIDEO_SUFFIXES
