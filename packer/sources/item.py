"""One raw input, and the report of what was found in it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from shardspec.wording import cut

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
    """Whether a file name has the suffix of a picture, in upper or lower case."""
    return PurePath(name).suffix.lower() in PICTURE_SUFFIXES


def is_video(name: str) -> bool:
    """Whether a file name has the suffix of a video, in upper or lower case."""
    return PurePath(name).suffix.lower() in VIDEO_SUFFIXES


ALSO = "also"
BOXES_FROM = "boxes_from"
"""Options whose columns name further files of an item."""

PACKED_ROW = "_packed_row"
"""Column of an item that is a row of the packed dataset at its path: ``[row, digest of the dataset]``. If other keys
consist of the row's key and an ordinal, the largest of these ordinals follows."""

REASON_LENGTH = 1000
"""Maximum number of characters of a reason in a report, whatever a library or a step says."""


class ItemFile(NamedTuple):
    """A further file of an item, named by a column of a table.

    Attributes
    ----------
    name : str
        Its path relative to the source.
    path : str
    bytes : int
    mtime_ns : int
    """

    name: str
    path: str
    bytes: int
    mtime_ns: int

    @property
    def is_video(self) -> bool:
        """Whether it is a video, by its suffix."""
        return is_video(self.name)


@dataclass(frozen=True)
class Item:
    """One raw input of a source.

    Attributes
    ----------
    index : int
        Position in the sorted list of items.
    name : str
        The item's name in messages and in the ``source`` field: its path relative to the source, or the name of its
        row.
    path : str or None
        Location of the picture or video; None where the row holds the data itself.
    bytes : int
        Size of the file, 0 without one.
    mtime_ns : int
        Modification time of the file in nanoseconds, 0 without one.
    columns : dict
        Further fields of the sample: JSON values, and arrays of a Python source.
    reject : str or None
        Why the source itself rejected the item.
    files : dict of str to ItemFile
        Further files, by the option that uses them.
    """

    index: int
    name: str
    path: str | None
    bytes: int = 0
    mtime_ns: int = 0
    columns: Mapping[str, Any] = field(default_factory=dict)
    reject: str | None = None
    files: Mapping[str, ItemFile] = field(default_factory=dict)

    @property
    def is_picture(self) -> bool:
        """Whether it is a picture, by its suffix."""
        return is_picture(self.name)

    @property
    def is_video(self) -> bool:
        """Whether it is a video, by its suffix."""
        return is_video(self.name)

    def to_line(self) -> str:
        """The item as one line of JSON (ASCII, so that names that are not UTF-8 survive)."""
        document = [self.index, self.name, self.path, self.bytes, self.mtime_ns, dict(self.columns), self.reject]
        document.append(dict(self.files))
        return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"

    @classmethod
    def from_line(cls, line: str) -> "Item":
        """Read a line that `to_line` wrote."""
        *values, files = json.loads(line)
        return replace(cls(*values), files={option: ItemFile(*file) for option, file in files.items()})

    def location(self) -> Path:
        """The path of an item that has one."""
        if self.path is None:
            raise ValueError(f"item {self.name!r} has no path")
        return Path(self.path)

    def changes(self) -> Iterator[str]:
        """Describe each of the item's files that has changed since it was listed.

        Raises
        ------
        OSError
            If a file cannot be examined.
        """
        own = [] if self.path is None else [ItemFile(self.name, self.path, self.bytes, self.mtime_ns)]
        for file in [*own, *self.files.values()]:
            if not file.mtime_ns:  # not a file that was examined
                continue
            try:
                found = Path(file.path).stat()
            except (FileNotFoundError, NotADirectoryError):
                yield f"{file.name!r} was there when the build was planned"
            else:
                if (found.st_size, found.st_mtime_ns) != (file.bytes, file.mtime_ns):
                    yield f"{file.name!r} has changed since the build was planned"


def read_items(path: Path, start: int, stop: int, offset: int) -> Iterator[Item]:
    """Read items `start` to `stop` (exclusive) of a plan's items file; the first one's line begins at byte `offset`."""
    with path.open(encoding="ascii") as file:
        file.seek(offset)
        for _ in range(start, stop):
            yield Item.from_line(file.readline())


def item_name(path: Path, task: tuple[int, int, int], index: int) -> str:
    """The name of an item of a task; the task is ``(start, stop, offset)`` as in `read_items`."""
    return next(item.name for item in read_items(path, *task) if item.index == index)


@dataclass
class ItemReport:
    """What became of one item. Steps reach it as ``sample["_report"]`` and add to it.

    Attributes
    ----------
    name : str
    samples : int
        Number of samples that the item gave.
    frames : int
        Number of frames that were examined; a picture counts as one.
    faces : int or None
        Number of faces that the detector found, wanted or not; None where no detector ran.
    skipped : dict of str to list of int
        Frames that gave no sample, by reason.
    progressive : int
        Number of samples whose picture was a progressive JPEG and was stored without being decoded and encoded again.
    marked : int
        Number of samples whose picture has restart markers, where the recipe asks for them.
    refilled : int
        Number of sampled frames in whose place a nearby frame gave the samples.
    face_frames : int
        Number of frames of a video whose faces were joined into tracks by the step ``faces``.
    followed : int
        Number of faces in these frames, without those in the first of the frames.
    lost : int
        Number of those faces that start a new track.
    unused_boxes : int
        Number of given boxes for frames that were not sampled, or could not be read.
    damage : str or None
        What could not be read or cut.
    empty : bool
        Whether the item has no samples on purpose, and is no reject.
    step, reason : str or None
        Where and why the item was rejected.
    """

    name: str
    samples: int = 0
    frames: int = 0
    faces: int | None = None
    skipped: dict[str, list[int]] = field(default_factory=dict)
    progressive: int = 0
    marked: int = 0
    refilled: int = 0
    face_frames: int = 0
    followed: int = 0
    lost: int = 0
    unused_boxes: int = 0
    damage: str | None = None
    empty: bool = False
    step: str | None = None
    reason: str | None = None

    def skip(self, frame: int, reason: str) -> None:
        """Record a frame that gives no sample."""
        self.skipped.setdefault(cut(reason, REASON_LENGTH), []).append(frame)

    def add_damage(self, what: str) -> None:
        """Record that something could not be read or cut."""
        self.damage = cut(f"{self.damage}; {what}" if self.damage else what, REASON_LENGTH)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON."""
        return dict(vars(self))
