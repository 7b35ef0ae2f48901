"""The report of an item, filled in as it passes through the steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from packer.sources.item import REASON_LENGTH
from shardspec.wording import cut, one_line


@dataclass
class ItemReport:
    """Report about one item. Steps find the report in ``sample["_report"]`` and add to it.

    Attributes
    ----------
    samples : int
        Number of samples that the item yielded.
    frames : int
        Number of frames that were examined; an image counts as one.
    faces : int or None
        Number of faces that the detector found, including faces that were not packed; None if no detector ran.
    skipped : dict of str to list of int
        Frames that yielded no sample, by reason.
    progressive : int
        Number of samples whose image was a progressive JPEG and was stored without encoding it again.
    enlarged : int
        Number of samples whose image the step ``resize`` enlarged.
    face_frames : int
        Number of frames of a video whose faces were joined into tracks by the step ``faces``.
    followed : int
        Number of faces in these frames, except for the first frame.
    lost : int
        Number of the followed faces that start a new track.
    unused_boxes : int
        Number of given boxes for frames that were not sampled, or could not be read.
    wide_colours : str or None
        The standard of a video's colours, if it is HDR or has a wide gamut.
    damage : str or None
        Describes what could not be read or cut.
    empty : bool
        Whether the item yields no samples on purpose, and is not rejected.
    step, reason : str or None
        The step that rejected the item, and the reason.
    watch : callable or None
        Called with `frames` after each frame of a video, to show the progress within the item.
    """

    name: str
    samples: int = 0
    frames: int = 0
    faces: int | None = None
    skipped: dict[str, list[int]] = field(default_factory=dict)
    progressive: int = 0
    enlarged: int = 0
    face_frames: int = 0
    followed: int = 0
    lost: int = 0
    unused_boxes: int = 0
    wide_colours: str | None = None
    damage: str | None = None
    empty: bool = False
    step: str | None = None
    reason: str | None = None
    watch: Callable[[int], None] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "ItemReport":
        """Read the result of `to_json`.

        Values missing from the document are those of the class; setting them would take longer than reading them.
        """
        report = cls.__new__(cls)
        vars(report).update(document)
        if "skipped" not in document:
            report.skipped = {}
        return report

    def count_frame(self) -> None:
        """Count an examined frame."""
        self.frames += 1
        if self.watch is not None:
            self.watch(self.frames)

    def skip(self, frame: int, reason: str) -> None:
        """Record a frame that yields no sample."""
        self.skipped.setdefault(cut(one_line(reason), REASON_LENGTH), []).append(frame)

    def add_damage(self, what: str) -> None:
        """Append a description of data that could not be read or cut."""
        self.damage = cut(f"{self.damage}; {what}" if self.damage else what, REASON_LENGTH)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON, without values that equal their defaults."""
        return {name: value for name, value in vars(self).items() if value != _NEW_REPORT[name] and name != "watch"}


def is_larger(new: Sequence[int], old: Sequence[int]) -> bool:
    """Return whether an image of size `new` is larger in height or width than one of size `old`."""
    return new[0] > old[0] or new[1] > old[1]


_NEW_REPORT = {**vars(ItemReport("")), "name": None}
