"""The tracks of a video's faces over its sampled frames, including damaged ones."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from packer.steps.faces.cuts import Thumbnail, is_cut
from packer.steps.faces.frame import FrameFaces
from packer.steps.report import ItemReport
from packer.vision.detect.boxes import overlap

MAX_GAP = 2
"""Number of consecutive sampled frames in which a track may lack a box. A larger ``fill`` increases it."""


class VideoTracks:
    """The tracks of one video. Sampled frames that are missing because of damage count as frames without a face.

    A hard cut ends all tracks (`packer.steps.faces.cuts`).

    Parameters
    ----------
    sampled : tuple of int or None
        The indices of all sampled frames, in ascending order. None if unknown; missing frames are then not counted.
    report : ItemReport
        Counts the faces that were followed or lost from frame to frame.
    fill : int or None
        Number of consecutive sampled frames to fill in by interpolation. A track may lack a box in as many frames.

    Attributes
    ----------
    number : int
        Number of the last frame among all sampled frames.
    shot : int
        Number of hard cuts up to the last frame.
    """

    def __init__(self, sampled: tuple[int, ...] | None, report: ItemReport, fill: int | None) -> None:
        self._tracker = Tracker(longest_gap(fill))
        self._before: Thumbnail | None = None
        self._report = report
        self._known = 0
        first = reversed(list(enumerate(sampled or ())))  # `resample_fps` may repeat an index
        self._places = None if sampled is None else {index: place for place, index in first}
        self._last = np.empty(0, np.int64)
        self.number = -1
        self.shot = 0

    def follow(self, frame: int, faces: FrameFaces) -> FrameFaces:
        """Return the faces of a sampled frame, or of its substitute, with their tracks.

        Frames must be passed in order, and may be repeated. Existing tracks are kept. Frames without a thumbnail, or of
        one brightness, are not compared with others: a white flash is no cut.
        """
        missed = 0 if self._places is None else self._places[frame] - self.number - 1
        if missed < 0:
            self.number += 1
            return faces if faces.tracks is not None else replace(faces, tracks=self._last)
        self.number += missed + 1
        seen = faces.thumbnail if faces.thumbnail is not None and faces.thumbnail.light.any() else None
        cut = self._before is not None and seen is not None and is_cut(self._before, seen)
        self._before = seen or self._before
        self.shot += cut
        if faces.tracks is not None:
            return faces
        for _ in range(missed):
            self._tracker.update(np.empty((0, 4)))
        if cut:
            self._tracker.end()
        tracks = self._last = self._tracker.update(faces.boxes)
        if len(tracks):
            if self._report.face_frames and not cut:
                self._report.followed += len(tracks)
                self._report.lost += int((tracks >= self._known).sum())
            self._report.face_frames += 1
            self._known = max(self._known, int(tracks.max()) + 1)
        return replace(faces, tracks=tracks)


def longest_gap(fill: int | None) -> int:
    """Return the number of consecutive sampled frames in which a track may lack a box."""
    return max(MAX_GAP, fill or 0)


MIN_IOU = 0.3
"""Smallest overlap (IoU) of two consecutive boxes of one track, after growing both."""

GROW = 0.5
"""Share of its width and height that is added to each side of a box before overlaps are computed.

A face of constant size may then move by its own width. On a 1080p video of people in a street with every tenth frame
sampled, the largest track of each person holds 92 % of their boxes at 0.5, and 47 % at 0. No track mixes people.
"""


class Tracker:
    """Numbers the faces of one video: boxes with the same number show the same face. Use one object per video.

    Causal and greedy. Boxes are first grown about their centres, since a face moves between two sampled frames
    (buffered IoU, Yang et al., WACV 2023). Candidates are all pairs of a box in this frame and a track's last box that
    overlap by `MIN_IOU` or more. The pair with the largest overlap is joined first, then the next among those still
    free (if overlaps are equal, the older track, then the earlier box). A box that is left over starts a new track. So
    the numbers in a frame depend only on this frame and those before it.

    A track without a box for more than `max_gap` sampled frames in a row has ended. Until then its box stays in place;
    motion is not extrapolated.
    """

    def __init__(self, max_gap: int = MAX_GAP) -> None:
        self._max_gap = max_gap
        self._boxes = np.empty((0, 4))
        self._ids = np.empty(0, np.int64)  # ascending: older tracks first
        self._missed = np.empty(0, np.int64)
        self._next = 0

    def end(self) -> None:
        """End all tracks."""
        self._boxes, self._ids, self._missed = self._boxes[:0], self._ids[:0], self._missed[:0]

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
        living = self._missed <= self._max_gap
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
