"""The tracks of a video's faces over its sampled frames, damaged ones included."""

import numpy as np
import numpy.typing as npt

from packer.steps.report import ItemReport
from shardspec.errors import UsageError


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


class Tracker:
    """Numbers the faces of one video: the same number means the same face, as far as overlapping boxes can show.

    Causal and greedy. Boxes are first grown about their centres, since a face moves between two sampled frames
    (buffered IoU, Yang et al., WACV 2023). Candidates are all pairs of a box in this frame and a track's last box that
    then overlap by `min_iou` or more. The pair with the largest overlap is joined first, then the next among those
    still free (equal overlaps: the older track, then the earlier box). A box that is left over starts a new track. So a
    frame's numbers depend only on this frame and those before it, and not on chance.

    A track that found no box for more than `max_gap` sampled frames in a row has ended: a face that appears there later
    starts a new track. The track's box stays where it was in between; motion is not extrapolated.

    Parameters
    ----------
    min_iou : float, in (0, 1]
        Least intersection over union of two grown boxes of one track.
    grow : float, >= 0
        Share of its width and height that is added to each side of a box before overlaps are computed. At the defaults
        a face of steady size may move by its own width. On a 1080p video of people in a street with every tenth frame
        sampled, the largest track of each person holds 92 % of their boxes at 0.5, and 47 % without; no track mixes
        persons.
    max_gap : int, sampled frames, >= 0
        How many sampled frames in a row may miss the face. Sampled frames are counted, so with every tenth frame
        sampled a gap of 2 lasts 20 frames of the video.

    Notes
    -----
    Use one object per video. It keeps one box per living track and no frames.
    """

    def __init__(self, min_iou: float = 0.3, grow: float = 0.5, max_gap: int = 2) -> None:
        if not 0 < min_iou <= 1:
            raise UsageError(f"min_iou: expected a number above 0 and at most 1, found {min_iou}")
        if not 0 <= grow < np.inf:
            raise UsageError(f"grow: expected 0 or more, found {grow}")
        if max_gap < 0:
            raise UsageError(f"max_gap: expected 0 or more sampled frames, found {max_gap}")
        self._min_iou = min_iou
        self._grow = grow
        self._max_gap = max_gap
        self._boxes = np.empty((0, 4))
        self._ids = np.empty(0, np.int64)  # ascending: older tracks first
        self._missed = np.empty(0, np.int64)
        self._next = 0

    def update(self, boxes: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Number the boxes of the next sampled frame. A frame without faces counts too: pass an empty array.

        Parameters
        ----------
        boxes : array_like, (N, 4)
            Left, top, right, bottom, in frame pixels.

        Returns
        -------
        ndarray, (N,), int64
            The track of each box, counted from 0 in the order of first appearance.

        Raises
        ------
        UsageError
            If the boxes have another shape, or a value is not finite.
        """
        found = np.asarray(boxes, np.float64).reshape(-1, 4) if np.size(boxes) == 0 else np.asarray(boxes, np.float64)
        if found.ndim != 2 or found.shape[1] != 4 or not np.isfinite(found).all():
            raise UsageError(f"expected finite boxes of shape (N, 4), found shape {np.shape(boxes)}")
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
        """The row of the track that each box continues, -1 for none."""
        overlaps = iou(grown(self._boxes, self._grow), grown(boxes, self._grow))
        track, box = np.nonzero(overlaps >= self._min_iou)
        out = np.full(len(boxes), -1, np.int64)
        taken = np.zeros(len(self._boxes), np.bool_)
        for pair in np.lexsort((box, track, -overlaps[track, box])):
            if not taken[track[pair]] and out[box[pair]] < 0:
                taken[track[pair]] = True
                out[box[pair]] = track[pair]
        return out


def grown(boxes: npt.NDArray[np.float64], share: float) -> npt.NDArray[np.float64]:
    """Boxes (N, 4) with a share of their width and height added on each side."""
    reach = (boxes[:, 2:] - boxes[:, :2]) * share
    return np.concatenate([boxes[:, :2] - reach, boxes[:, 2:] + reach], axis=1)


def iou(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Intersection over union of every pair of boxes, (len(first), len(second)); 0 where a box has no area."""
    a, b = first[:, None], second[None]
    sides = np.maximum(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0)
    shared = sides[..., 0] * sides[..., 1]
    areas = [np.prod(np.maximum(box[..., 2:] - box[..., :2], 0), axis=-1) for box in (a, b)]
    whole = areas[0] + areas[1] - shared
    overlaps: npt.NDArray[np.float64] = np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0)
    return overlaps
