"""The tracks of a video's faces over its sampled frames, including damaged ones, and the hard cuts that end them.

A cut is a change of scene that stays: a sampled frame differs from the one before it, and so do the frames after it.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from packer.steps.faces.frame import FramePlace
from packer.steps.report import ItemReport
from packer.vision.detect.interface import overlap

RULES = ((0.5, 0.93), (0.8, 0.6))
"""Two frames differ if the likeness and the shared part of the colours are both below the numbers of one of these pairs.

The first pair finds another shot of the same place, the second one a scene whose light and dark areas happen to be
alike. Measured, likeness and shared colours:

==============================================================  ==========================  ===================
frames of a 1080p street scene, 1, 10 and 25 frames apart       at least 0.97, 0.78, 0.71   at least 0.93
the same scene seen by a camera that turns by 5, 10 % a frame   at least 0.54, 0.45         at least 0.97, 0.94
two different cutouts of the same frame, 15 pairs               at most 0.40                at most 0.93
two of ten unrelated photographs and frames, 45 pairs           at most 0.64                at most 0.75
these pairs at a half, a quarter and a twentieth of the light   at most 0.64                at most 0.76
==============================================================  ==========================  ===================

Frames of one brightness, such as a white flash, are left out of the comparison.
"""

_ACROSS, _DOWN = 16, 9
_SAMPLES = 128  # pixels of a row that are read: 0.1 ms for a frame of any size
_LEVELS = 4  # of each of red, green and blue, between the darkest and the brightest 2 % of the values
_TAIL = 0.02
_FLAT = 1.0  # standard deviation of the areas' brightness, of 255; the noise of an empty frame stays below it


class Thumbnail(NamedTuple):
    """Reduced frame, which is compared with its neighbours.

    Attributes
    ----------
    light : ndarray, (144,), float32
        Brightness of 16 x 9 areas, less its mean, divided by its norm; zeros if all areas are nearly equal.
    colours : ndarray, (64,), float32
        Share of the pixels that were read with each of 4 x 4 x 4 colours. The levels divide the range of the frame's
        own values, so that the colours of a dark scene are told apart too.
    """

    light: npt.NDArray[np.float32]
    colours: npt.NDArray[np.float32]


def make_thumbnail(frame: npt.NDArray[np.uint8]) -> Thumbnail:
    """Reduce a frame, (H, W, 3), to its thumbnail."""
    step = max(1, frame.shape[1] // _SAMPLES)
    pixels = np.ascontiguousarray(frame[::step, ::step])
    areas = cv2.resize(pixels, (_ACROSS, _DOWN), interpolation=cv2.INTER_AREA)
    light = areas.mean(axis=2, dtype=np.float64).ravel()
    light -= light.mean()
    deviation = float(light.std())
    light /= deviation * np.sqrt(light.size) if deviation >= _FLAT else np.inf
    levels = cv2.calcHist([cv2.LUT(pixels, _levels(pixels))], [0, 1, 2], None, [_LEVELS] * 3, [0, _LEVELS] * 3)
    return Thumbnail(light.astype(np.float32), (levels.ravel() * 3 / pixels.size).astype(np.float32))


def _levels(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return the level of each value from 0 to 255 in a frame."""
    below = np.cumsum(cv2.calcHist([pixels.reshape(-1)], [0], None, [256], [0, 256])) / pixels.size
    darkest, brightest = np.searchsorted(below, (_TAIL, 1 - _TAIL))
    levels = (np.arange(256) - int(darkest)) * _LEVELS // (int(brightest) - int(darkest) + 1)
    return levels.clip(0, _LEVELS - 1).astype(np.uint8)


def differ(before: Thumbnail, after: Thumbnail) -> bool:
    """Return whether two frames show different scenes, by `RULES`.

    The likeness is the correlation of the brightness; the shared part of the colours is the intersection of the
    histograms. Two frames of one brightness each are alike.
    """
    flat = not before.light.any() and not after.light.any()
    likeness = 1.0 if flat else float(before.light @ after.light)
    shared = float(np.minimum(before.colours, after.colours).sum())
    return any(likeness < least and shared < colours for least, colours in RULES)


MAX_GAP = 2
"""Number of consecutive sampled frames in which a track may lack a box. A larger ``fill`` increases it."""

MAX_DISTURBED = 2
"""Number of consecutive sampled frames that a disturbance lasts at most. A flash may fall between two frames."""

DISTURBED_S = 0.5
"""Longest time in seconds from the frame before a disturbance to the one after it. Shots are longer, so that a scene is
not taken for a disturbance of another one even if only one of its frames is sampled."""


class VideoTracks:
    """The tracks of one video. Sampled frames that are missing because of damage count as frames without a face.

    A hard cut ends all tracks: a frame differs from the one before it, and the scene from before does not return within
    `MAX_DISTURBED` sampled frames and `DISTURBED_S`. If it does, the frames between are disturbed, for example by a
    flash, and tracks pass through them.

    Parameters
    ----------
    sampled : tuple of int or None
        The indices of all sampled frames, in ascending order. None if unknown; missing frames are then not counted.
    report : ItemReport
        Counts the faces that were followed or lost from frame to frame.
    fill : int or None
        Number of consecutive sampled frames to fill in by interpolation. A track may lack a box in as many frames.
    """

    def __init__(self, sampled: tuple[int, ...] | None, report: ItemReport, fill: int | None) -> None:
        self._tracker = Tracker(longest_gap(fill))
        self._before: _Scene | None = None
        self._unlike = 0  # frames since then that do not show it
        self._report = report
        self._known = 0
        first = reversed(list(enumerate(sampled or ())))  # `resample_fps` may repeat an index
        self._places = None if sampled is None else {index: place for place, index in first}
        self._last = np.empty(0, np.int64)
        self._number = -1
        self._shot = 0

    def follow(self, places: Iterator[FramePlace]) -> Iterator[FramePlace]:
        """Yield the sampled frames, or their substitutes, with their numbers, their shots, and the tracks of the faces.

        Frames must be passed in order, and may be repeated. Existing tracks are kept. Frames without a thumbnail, or of
        one brightness, are not compared with others. After a change of scene, frames are read ahead.
        """
        ahead: deque[FramePlace] = deque()
        while (place := ahead.popleft() if ahead else next(places, None)) is not None:
            tracks = self._follow(place, chain(tuple(ahead), _keep(places, ahead)))
            faces = place.faces if place.faces.tracks is not None else replace(place.faces, tracks=tracks)
            yield replace(place, faces=faces, number=self._number, shot=self._shot)

    def _follow(self, place: FramePlace, later: Iterator[FramePlace]) -> npt.NDArray[np.int64]:
        missed = 0 if self._places is None else self._places[place.frame] - self._number - 1
        if missed < 0:
            self._number += 1
            return self._last
        self._number += missed + 1
        cut = self._is_cut(place, later)
        self._shot += cut
        if place.faces.tracks is not None:
            return place.faces.tracks
        for _ in range(missed):
            self._tracker.update(np.empty((0, 4)))
        if cut:
            self._tracker.end()
        tracks = self._last = self._tracker.update(place.faces.boxes)
        if len(tracks):
            if self._report.face_frames and not cut:
                self._report.followed += len(tracks)
                self._report.lost += int((tracks >= self._known).sum())
            self._report.face_frames += 1
            self._known = max(self._known, int(tracks.max()) + 1)
        return tracks

    def _is_cut(self, place: FramePlace, later: Iterator[FramePlace]) -> bool:
        scene, before = _scene(place), self._before
        if scene is not None and (before is None or not differ(before.thumbnail, scene.thumbnail)):
            self._before, self._unlike = scene, 0
            return False
        if scene is None or before is None or _returns(before, place, later, MAX_DISTURBED - self._unlike):
            self._unlike += 1
            return False
        self._before, self._unlike = scene, 0
        return True


class _Scene(NamedTuple):
    thumbnail: Thumbnail
    time: float


def _scene(place: FramePlace) -> _Scene | None:
    """Return what a frame shows; None if it cannot be compared with others."""
    seen = place.faces.thumbnail
    if place.sample is None or seen is None or not seen.light.any():
        return None
    return _Scene(seen, place.sample.get("time", 0.0))


def _returns(before: _Scene, place: FramePlace, later: Iterator[FramePlace], most: int) -> bool:
    """Return whether a scene returns after the frame in which it is gone, and at most `most` such frames."""
    frames = {place.frame}
    for other in later:
        frames.add(other.frame)
        scene = _scene(other)
        if len(frames) > most + 1 or (scene is not None and scene.time - before.time > DISTURBED_S):
            return False
        if scene is not None and not differ(before.thumbnail, scene.thumbnail):
            return True
    return False


def _keep(places: Iterator[FramePlace], kept: deque[FramePlace]) -> Iterator[FramePlace]:
    """Yield the places, and append each to `kept`."""
    for place in places:
        kept.append(place)
        yield place


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
