"""The source folder that the tests of the pack stage share, and options that pack it in a second."""

from pathlib import Path
from typing import Any

from support.media import FAST_START, scene, write_image, write_video

TESTS = Path(__file__).parents[1]

OPTIONS = ("--size", "32", "--every", "6", "--label-from", "folder", "--shard-size", "30kB", "--quiet")
"""Several tasks, several shards, images and videos, labels."""

QUIET: dict[str, Any] = {"engine": "inline", "progress": False}
"""Options of a call of Python that needs no worker process."""

IMAGES = 96


def write_source(root: Path) -> Path:
    """Ninety-six small images and three videos in two folders: four tasks."""
    for number in range(IMAGES):
        suffix = (".jpg", ".jpg", ".PNG", ".jpeg", ".webp")[number % 5]
        size = (40 + number % 7, 36 + number % 5)
        write_image(root / ("real" if number % 3 else "fake") / f"{number:03d}{suffix}", scene(number, size))
    write_video(root / "real" / "clip.mp4", frames=20, container=FAST_START)
    write_video(root / "fake" / "deep" / "clip.MOV", frames=14, number=1)
    write_video(root / "fake" / "clip.webm", frames=13, codec="libvpx-vp9", number=2)
    return root


def write_images(root: Path, names: list[str]) -> Path:
    """A few small images of those names."""
    for number, name in enumerate(names):
        write_image(root / name, scene(number, (24, 18)))
    return root


def parts_of(out: Path) -> list[Path]:
    """The finished parts of a build; none while there is no folder of parts, which a build may remove at any time."""
    try:
        found = sorted((out / ".build" / "parts").glob("*/*/part-*"))
    except FileNotFoundError:  # a folder in it was removed while it was listed, and the rest will be
        return []
    return [path for path in found if path.suffix != ".partial" and ".item-" not in path.name]


def records_of(out: Path) -> list[Path]:
    """The records of the shards that a build has published; each lies in a folder with the shard's name."""
    found = sorted((out / ".build" / "staging").glob("*/shard-*/record.json"))
    return [path for path in found if path.parent.suffix != ".partial"]
