"""The tracks of a video's faces over its sampled frames, including damaged ones."""

import numpy as np
import numpy.typing as npt

from packer.steps.report import ItemReport
from packer.vision.detect.boxes import overlap


class VideoTracks:
    """The tracks of one video. Sampled frames that are missing because of damage count as frames without a face.

    Parameters
    ----------
    sampled : tuple of int or None
        The indices of all sampled frames, rising; None if they are not known, and then missing frames are not counted.
    report : ItemReport
        Counts the faces that were followed, and lost, from frame to frame.
    """

    def __init__(self, sampled: tuple[int, ...] | None, report: ItemReport) -> None:
        self._tracker = Tracker()
        self._report = report
        self._known = 0
        self._places = None if sampled is None else {index: place for place, index in enumerate(sampled)}
        self._next = 0
        self._last = np.empty(0, np.int64)

    def update(self, frame: int, boxes: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """Number the boxes of a sampled frame, or of its substitute; frames come in order, and may be repeated."""
        if self._places is not None:
            if self._places[frame] < self._next:
                return self._last
            for _ in range(self._places[frame] - self._next):
                self._tracker.update(np.empty((0, 4)))
            self._next = self._places[frame] + 1
        tracks = self._last = self._tracker.update(boxes)
        if len(tracks):
            if self._report.face_frames:
                self._report.followed += len(tracks)
                self._report.lost += int((tracks >= self._known).sum())
            self._report.face_frames += 1
            self._known = max(self._known, int(tracks.max()) + 1)
        return tracks


MIN_IOU = 0.3
"""Smallest overlap of two grown boxes of one track."""

GROW = 0.5
"""Share of its width and height that is added to each side of a box before overlaps are computed.

A face of constant size may then move by its own width. On a 1080p video of people in a street with every tenth frame
sampled, the largest track of each person holds 92 % of their boxes at 0.5, and 47 % at 0. No track mixes people.
"""

MAX_GAP = 2
"""Number of consecutive sampled frames in which a track may have no box."""


class Tracker:
    """Numbers the faces of one video: boxes with the same number show the same face. Use one object per video.

    Causal and greedy. Boxes are first grown about their centres, since a face moves between two sampled frames
    (buffered IoU, Yang et al., WACV 2023). Candidates are all pairs of a box in this frame and a track's last box that
    overlap by `MIN_IOU` or more. The pair with the largest overlap is joined first, then the next among those still
    free (if overlaps are equal, the older track, then the earlier box). A box that is left over starts a new track. So
    the numbers in a frame depend only on this frame and those before it.

    A track without a box for more than `MAX_GAP` sampled frames in a row has ended. Until then its box stays in place;
    motion is not extrapolated.
    """

    def __init__(self) -> None:
        self._boxes = np.empty((0, 4))
        self._ids = np.empty(0, np.int64)  # ascending: older tracks first
        self._missed = np.empty(0, np.int64)
        self._next = 0

    def update(self, boxes: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
        """Number the boxes of the next sampled frame, (N, 4). A frame without faces counts too: pass an empty array.

        Returns
        -------
        ndarray, (N,), int64
            The track of each box, counted from 0 in the order of first appearance.
        """
        found = boxes.astype(np.float64)
        tracks = self._match(found)
        fresh = tracks < 0
        ids = np.where(fresh, -1, self._ids[tracks] if len(self._ids) else -1)
        ids[fresh] = np.arange(self._next, self._next + fresh.sum())
        self._next += int(fresh.sum())
        self._boxes[tracks[~fresh]] = found[~fresh]
        self._missed += 1
        self._missed[tracks[~fresh]] = 0
        living = self._missed <= MAX_GAP
        self._boxes = np.concatenate([self._boxes[living], found[fresh]])
        self._ids = np.concatenate([self._ids[living], ids[fresh]])
        self._missed = np.concatenate([self._missed[living], np.zeros(int(fresh.sum()), np.int64)])
        return ids

    def _match(self, boxes: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Return the row of the track that each box continues, -1 for none."""
        overlaps = overlap(_grown(self._boxes)[:, None], _grown(boxes)[None])
        track, box = np.nonzero(overlaps >= MIN_IOU)
        out = np.full(len(boxes), -1, np.int64)
        taken = np.zeros(len(self._boxes), np.bool_)
        for pair in np.lexsort((box, track, -overlaps[track, box])):
            if not taken[track[pair]] and out[box[pair]] < 0:
                taken[track[pair]] = True
                out[box[pair]] = track[pair]
        return out


def _grown(boxes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    reach = (boxes[:, 2:] - boxes[:, :2]) * GROW
    return np.concatenate([boxes[:, :2] - reach, boxes[:, 2:] + reach], axis=1)
