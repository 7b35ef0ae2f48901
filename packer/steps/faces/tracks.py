"""The tracks of a video's faces over its sampled frames, damaged ones included."""

import numpy as np
import numpy.typing as npt

from packer.steps.report import ItemReport
from packer.vision.detect.tracks import Tracker


class VideoTracks:
    """The tracks of one video. Sampled frames that are missing because of damage count as frames without a face.

    Parameters
    ----------
    sampled : tuple of int or None
        The indices of all sampled frames, rising; None where they are not known: then missing frames are not counted.
    report : ItemReport
        Counts the faces that were followed, and lost, from frame to frame.
    """

    def __init__(self, sampled: tuple[int, ...] | None, report: ItemReport) -> None:
        self._tracker = Tracker()
        self._report = report
        self._known = 0
        self._places = None if sampled is None else {index: place for place, index in enumerate(sampled)}
        self._next = 0

    def update(self, frame: int, boxes: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """Number the boxes of a sampled frame, or of what stands in for it; frames come in their order."""
        if self._places is not None:
            for _ in range(self._places[frame] - self._next):
                self._tracker.update(np.empty((0, 4)))
            self._next = self._places[frame] + 1
        tracks = self._tracker.update(boxes)
        if len(tracks):
            if self._report.face_frames:
                self._report.followed += len(tracks)
                self._report.lost += int((tracks >= self._known).sum())
            self._report.face_frames += 1
            self._known = max(self._known, int(tracks.max()) + 1)
        return tracks
