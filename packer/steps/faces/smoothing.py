"""Crops that are steady over a track (``smooth``, ``fill``, ``crop_per``), and the choice of one track of a video.

The faces of a video form a table with a row for each face of each sampled frame. A face is cut once all rows that its
crop depends on are known. Until then its frame waits, in memory or to be decoded again.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from packer.recipe import Recipe
from packer.steps.chain import ITEM, SAMPLED, Sample
from packer.steps.encode import KEPT
from packer.steps.faces.frame import NO_TRACK, TRACK_RULES, FrameFaces, FramePlace, waits_for_end
from packer.steps.faces.motion import REACH, FacePath, steady_centre
from packer.steps.faces.search import takes_decoded
from packer.steps.faces.tracks import longest_gap
from packer.steps.report import ItemReport
from packer.steps.second_image import CompanionFile
from packer.vision.geometry.align import centre_weights

MOST_BYTES = 2**28
"""Memory limit for waiting frames: 43 frames of 1920 x 1080 pixels. Further frames are decoded a second time."""


class WaitingFrames:
    """Holds frames in memory, or decodes them again. Both yield the same pixels.

    Parameters
    ----------
    file : CompanionFile or None
        The file of the frames. None if they cannot be decoded again; all frames are then held in memory.
    """

    def __init__(self, file: CompanionFile | None) -> None:
        self._file = file
        self._bytes = 0

    def hold(self, sample: Sample) -> Sample:
        """Return the frame to keep while it waits: without its image if the memory limit is reached."""
        size = sample["image"].nbytes
        if self._file is not None and self._bytes + size > MOST_BYTES:
            return drop_image(sample)
        self._bytes += size
        return sample

    def release(self, sample: Sample) -> Sample | None:
        """Return a frame with its image; None if it cannot be decoded again. Indices must be in ascending order."""
        if sample["image"] is not None:
            self._bytes -= sample["image"].nbytes
            return sample
        assert self._file is not None
        frame = self._file.frame(sample["frame"])
        return None if frame is None else {**sample, "image": frame.image}


def drop_image(sample: Sample) -> Sample:
    """Return a frame without its image."""
    return {**sample, "image": None, KEPT: None}


@contextmanager
def open_waiting(recipe: Recipe, first: Sample) -> Iterator[WaitingFrames]:
    """Make the `WaitingFrames` of a sample's item. Its file is opened again when the first frame is needed."""
    if not takes_decoded(recipe):  # other steps may have changed the frames
        yield WaitingFrames(None)
        return
    file = CompanionFile("second pass", first[ITEM].file, first.get(SAMPLED))
    try:
        yield WaitingFrames(file)
    finally:
        file.close()


Vector = npt.NDArray[np.float64]
"""The box of a face, (4,), its five points, (10,), and the points for its alignment, (2 P,); NaN if unknown."""

_BOX, _FIVE = slice(0, 4), slice(4, 14)


class SteadyTracks:
    """The table of one video.

    Parameters
    ----------
    recipe : Recipe
    frames : WaitingFrames
    report : ItemReport
        Records why frames have no sample.
    """

    def __init__(self, recipe: Recipe, frames: WaitingFrames, report: ItemReport) -> None:
        self._recipe = recipe
        self._frames = frames
        self._report = report
        self._reach = longest_gap(recipe.fill)
        self._delay = self._reach + (0 if recipe.smooth is None else max(recipe.smooth - 1, REACH))
        self._runs: dict[int, _TrackRun] = {}  # the last one of each track
        self._living: dict[int, dict[int, _TrackRun]] = {}  # by frame and track, until the frame is finished
        self._carries = recipe.smooth is not None and recipe.crop == "face"  # the others follow published code
        self._whole: dict[int, list[_TrackRun]] = {}  # all runs of each track, if they share a crop
        self._common: dict[int, Vector] = {}

    def steady(self, places: Iterable[FramePlace]) -> Iterator[FramePlace]:
        """Yield the sampled frames in order, with their final faces. Frames with faces have their images."""
        to_end = waits_for_end(self._recipe)
        waiting: deque[FramePlace] = deque()
        for place in places:
            self._add(place)
            waiting.append(replace(place, sample=self._hold(place)))
            while not to_end and waiting[0].number + self._delay <= place.number:
                done = waiting.popleft()
                yield self._release(self._finish(done))
                self._forget(done.number)
        finished: Iterator[FramePlace] = map(self._finish, waiting)
        if self._recipe.choose in TRACK_RULES:
            finished = self._one_track(list(finished), TRACK_RULES[self._recipe.choose])
        yield from map(self._release, finished)

    def _hold(self, place: FramePlace) -> dict[str, object] | None:
        if place.sample is None:
            return None
        may_be_cut = len(place.faces) or self._recipe.fill or self._recipe.keep_faceless
        return self._frames.hold(place.sample) if may_be_cut else drop_image(place.sample)

    def _release(self, place: FramePlace) -> FramePlace:
        is_cut = len(place.faces) or self._recipe.keep_faceless
        if place.sample is None or (place.sample["image"] is None and not is_cut):
            return place
        sample = self._frames.release(place.sample)
        if sample is None:
            self._report.skip(place.sample["frame"], "expected the frame in a second pass, found none")
            return replace(place, sample=None, faces=place.faces.take([]))
        return replace(place, sample=sample)

    def _add(self, place: FramePlace) -> None:
        for row, track in enumerate(_tracks(place.faces)):
            if track == NO_TRACK:
                continue
            run = self._runs.get(track)
            if run is None or run.shot != place.shot or place.number - run.last - 1 > self._reach:
                run = self._runs[track] = _TrackRun(self._recipe, place)
                if self._recipe.crop_per != "frame":
                    self._whole.setdefault(track, []).append(run)
            for number in range(min(run.last + 1, place.number), place.number + 1):
                self._living.setdefault(number, {})[track] = run
            run.add(place.number, _vector(place.faces, row))
        if place.sample is not None and self._carries:
            for run in self._runs.values():
                if run.shot == place.shot and place.number - run.last <= self._reach:
                    run.move(place.number, place.sample["image"])

    def _forget(self, number: int) -> None:
        """Drop the runs that end before this frame, and the rows that faces after it do not need."""
        self._runs = {track: run for track, run in self._runs.items() if run.last >= number}
        for run in self._runs.values():
            run.forget(number - self._delay - self._reach)

    def _finish(self, place: FramePlace) -> FramePlace:
        """Add the interpolated faces, and the boxes and points for the cut of all faces."""
        number = place.number
        living = self._living.pop(number, {})
        present = _tracks(place.faces)
        faces = place.faces
        if place.sample is not None:
            missing = {track: run.at(number) for track, run in sorted(living.items()) if track not in present}
            faces = _add_interpolated(faces, {t: own for t, own in missing.items() if np.isfinite(own[_BOX]).all()})
        points = faces.points.astype(np.float64)
        interpolated = np.arange(len(faces)) >= len(place.faces)
        dense = None if faces.dense is None else faces.dense.copy()
        cut_boxes, cut_points = faces.boxes.astype(np.float64), faces.aligning.astype(np.float64)
        for row, track in enumerate(_tracks(faces)):
            if track not in living:
                continue
            run = living[track]
            known = run.at(number)
            if np.isnan(points[row]).any() and np.isfinite(known[_FIVE]).all():
                points[row], interpolated[row] = known[_FIVE].reshape(5, 2), True
                if dense is not None:
                    dense[row] = known[_FIVE.stop :].reshape(-1, 2)
            cut_by = self._cut_by(track, run, number)
            cut_boxes[row], cut_points[row] = cut_by[_BOX], cut_by[_FIVE.stop :].reshape(-1, 2)
        final = replace(
            faces,
            points=points,
            interpolated=interpolated,
            dense=dense,
            cut_boxes=cut_boxes,
            cut_points=cut_points,
        )
        return replace(place, faces=final)

    def _cut_by(self, track: int, run: "_TrackRun", number: int) -> Vector:
        """Return the box and the points by which the face of a track in a frame is cut.

        The common square of a track includes all its runs: tracks from the user may have long gaps.
        """
        if self._recipe.crop_per == "frame":
            return run.smooth(number)
        if track not in self._common:
            rows = np.array([r.smooth(k) for r in self._whole[track] for k in range(r.first, r.last + 1)])
            common = _median(rows)
            if self._recipe.crop_per == "track":
                rows = rows[np.isfinite(rows[:, 0])]
                common[:2], common[2:4] = rows[:, :2].min(axis=0), rows[:, 2:4].max(axis=0)
            self._common[track] = common
        return self._common[track]

    def _one_track(self, places: list[FramePlace], weigh: Callable[[list[float]], float]) -> Iterator[FramePlace]:
        """Yield the frames with the faces of one track, the heaviest (the first if equal), and frames without faces.

        If there are no tracks, all faces are kept.
        """
        areas: dict[int, list[float]] = {}
        for place in places:
            for track, area in zip(_tracks(place.faces), place.faces.areas.tolist(), strict=True):
                areas.setdefault(track, []).append(area)
        areas.pop(NO_TRACK, None)
        if not areas:
            yield from places
            return
        kept = max(areas, key=lambda track: weigh(areas[track]))
        for place in places:
            rows = [row for row, track in enumerate(_tracks(place.faces)) if track == kept]
            if rows or not len(place.faces):
                yield replace(place, faces=place.faces.take(rows))
            else:
                assert place.sample is not None
                self._report.skip(place.sample["frame"], f"no face of track {kept}, which is kept")


class _TrackRun:
    """The faces of one track, up to a hard cut or a gap that is too long."""

    def __init__(self, recipe: Recipe, place: FramePlace) -> None:
        self._fill = recipe.fill or 0
        self._span = recipe.smooth or 1
        self._known: dict[int, Vector] = {}
        self._path = FacePath()
        points = place.faces.aligning.shape[1]
        aligning = slice(_FIVE.stop, _FIVE.stop + 2 * points)
        self._parts = (_BOX, _FIVE, aligning)
        self._smoothed = ((_BOX, np.full(2, 1 / 2)), (aligning, centre_weights(points, recipe.align_as)))
        self.shot = place.shot
        self.first = self.last = place.number

    def add(self, number: int, face: Vector) -> None:
        self._known[number] = face
        self.last = number

    def move(self, number: int, image: npt.NDArray[np.uint8]) -> None:
        """Follow the motion of the face into a frame, which has been added if the face was found in it."""
        self._path.add(number, image, self._known[number][_BOX] if number in self._known else None)

    def forget(self, number: int) -> None:
        self._path.forget(number)
        for old in [known for known in self._known if known < number]:
            del self._known[old]

    def at(self, number: int) -> Vector:
        """Return the face in a frame, interpolated if at most `fill` frames in a row lack the box, or the points."""
        out = self._known[number].copy() if number in self._known else np.full(self._parts[-1].stop, np.nan)
        for part in self._parts:
            if np.isfinite(out[part]).all():
                continue
            before = next((k for k in range(number - 1, number - self._fill - 1, -1) if self._has(k, part)), None)
            after = next((k for k in range(number + 1, number + self._fill + 1) if self._has(k, part)), None)
            if before is not None and after is not None and after - before - 1 <= self._fill:
                share = (number - before) / (after - before)
                out[part] = (1 - share) * self._known[before][part] + share * self._known[after][part]
        return out

    def _has(self, number: int, part: slice) -> bool:
        return number in self._known and bool(np.isfinite(self._known[number][part]).all())

    def smooth(self, number: int) -> Vector:
        """Return the mean shape over the window, placed at the steady centre of the frame; NaN stays NaN.

        The window is moved into the run at its ends. A mean of the centres would fall behind a face that moves, so
        centres are carried to the frame by the face's motion (`steady_centre`).
        """
        own = self.at(number)
        if self._span == 1:
            return own
        moves = self._path.moves_to(number)
        side = float(np.max(own[2:4] - own[:2]))
        start = max(self.first, min(number - self._span // 2, self.last - self._span + 1))
        rows = np.array([self.at(k) for k in range(start, min(start + self._span, self.last + 1))])
        for part, weights in self._smoothed:
            if np.isfinite(own[part]).all():
                known = rows[np.isfinite(rows[:, part]).all(axis=1), part].reshape(-1, len(weights), 2)
                carried = {
                    k: weights @ self._known[k][part].reshape(-1, 2) + move
                    for k, move in moves.items()
                    if self._has(k, part)
                }
                centre = steady_centre(number, weights @ own[part].reshape(-1, 2), carried, side)
                shape = (known - (weights @ known)[:, None]).mean(axis=0)
                own[part] = (shape + centre).ravel()
        return own


def _median(rows: npt.NDArray[np.float64]) -> Vector:
    """Return the median of each column over its known values; NaN if a column has none."""
    columns = (column[np.isfinite(column)] for column in rows.T)
    return np.array([np.median(column) if len(column) else np.nan for column in columns])


def _tracks(faces: FrameFaces) -> list[int]:
    return [NO_TRACK] * len(faces) if faces.tracks is None else faces.tracks.tolist()


def _vector(faces: FrameFaces, row: int) -> Vector:
    known = (faces.boxes[row], faces.points[row].ravel(), faces.aligning[row].ravel())
    return np.concatenate(known, dtype=np.float64)


def _add_interpolated(faces: FrameFaces, more: Mapping[int, Vector]) -> FrameFaces:
    """Append faces by their tracks, with a score of 0."""
    if not more:
        return faces
    count = len(more)
    rows = np.array(list(more.values()))
    matrices = None if faces.matrices is None else np.zeros((count, 2, 3), np.float32)
    dense, valid = faces.dense, faces.dense_valid
    return replace(
        faces,
        boxes=np.concatenate([faces.boxes, rows[:, _BOX]], dtype=np.float32, casting="same_kind"),
        scores=np.concatenate([faces.scores, np.zeros(count, np.float32)]),
        points=np.concatenate([faces.points, rows[:, _FIVE].reshape(count, 5, 2)]),
        tracks=np.array([*_tracks(faces), *more], np.int64),
        matrices=None if matrices is None else np.concatenate([faces.matrices, matrices]),
        dense=None if dense is None else np.concatenate([dense, rows[:, _FIVE.stop :].reshape(count, -1, 2)]),
        dense_valid=None if valid is None else np.concatenate([valid, np.zeros(count, np.bool_)]),
    )
