"""``faces``: frames become face crops, with landmarks, outline, regions and the matrix that leads back to the frame."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

import numpy as np
import numpy.typing as npt

from packer.recipe import Recipe
from packer.sources.item import ItemReport
from packer.steps.chain import ITEM, REPORT, SAMPLED, Equipment, Sample, Step, require_image
from packer.steps.faces.crop import FaceCutter
from packer.steps.faces.frame import FRAME_RULES, NO_TRACK, Face, FrameFaces, choose_face
from packer.steps.faces.search import FaceSearch, ItemSearch, takes_decoded
from packer.steps.faces.second import SecondCutter, cutting_second
from packer.vision.detect.detections import FaceDetector
from packer.vision.detect.tracks import Tracker

BATCH_FRAMES = 4
"""Number of frames of one item that the detector gets at a time."""


def make(recipe: Recipe, equipment: Equipment) -> Step:
    """The step of a recipe. Loads the landmarks' model, and the detector if none is given, once per worker."""
    finder = FaceFinder(recipe, equipment.detector)
    weigh = _WEIGHTS.get(recipe.choose)

    def faces(samples: Iterator[Sample]) -> Iterator[Sample]:
        found = finder.crops(map(_as_frame, samples))
        return found if weigh is None else _one_track(found, weigh)

    return faces


class FaceFinder:
    """Finds, chooses and cuts the faces of one item's frames, frame after frame.

    Parameters
    ----------
    recipe : Recipe
    """

    def __init__(self, recipe: Recipe, detector: FaceDetector | None = None) -> None:
        self._recipe = recipe
        self._search = FaceSearch(recipe, detector)
        self._cutter = FaceCutter(recipe)

    def crops(self, frames: Iterator[Sample]) -> Iterator[Sample]:
        """Yield the face samples of one item, frame by frame; within a frame in the detector's order, largest first."""
        first = next(frames, None)
        if first is None:
            return
        item, report, sampled = first[ITEM], first[REPORT], first.get(SAMPLED)
        report.faces = 0
        with self._search.of_item(item, sampled) as search, cutting_second(self._recipe, self._cutter, first) as second:
            known = sampled if takes_decoded(self._recipe) else None
            tracker = _VideoTracks(known, report) if item.is_video else None
            yield from self._crops(chain([first], frames), search, second, tracker, report)
            report.unused_boxes = search.unused()

    def _crops(
        self,
        frames: Iterator[Sample],
        search: ItemSearch,
        second: SecondCutter | None,
        tracker: "_VideoTracks | None",
        report: ItemReport,
    ) -> Iterator[Sample]:
        faceless: list[Sample] = []
        any_face = False
        while batch := list(islice(frames, BATCH_FRAMES)):
            found = search.faces(batch)
            for sample, faces in zip(batch, found, strict=True):
                crops = self._cut_all(sample, faces, second, tracker, report)
                if crops:
                    any_face = True
                    faceless.clear()
                    yield from crops
                elif self._recipe.keep_faceless and not any_face:
                    whole = self._cutter.keep_whole(sample["image"])
                    faceless.append({**sample, **whole, **(second.cut(sample, whole["matrix"]) if second else {})})
        if not any_face and faceless:
            report.skipped.clear()
            yield from faceless

    def _cut_all(
        self,
        sample: Sample,
        found: FrameFaces | str,
        second: SecondCutter | None,
        tracker: "_VideoTracks | None",
        report: ItemReport,
    ) -> list[Sample]:
        """The samples of one frame. If none, the report says why; a face that cannot be cut affects no other."""
        frame = sample["frame"]
        if isinstance(found, str):
            if tracker is not None:
                tracker.update(frame, np.empty((0, 4), np.float32))
            report.skip(frame, found)
            return []
        report.faces = (report.faces or 0) + len(found)
        wanted = self._wanted(sample, found, second, tracker)
        if not wanted:
            report.skip(frame, self._describe_none(found))
        crops, failures = [], []
        for face in wanted:
            try:
                cut = self._cutter.cut(sample["image"], face.box, face.points)
            except ValueError as error:  # a UsageError is one too
                failures.append(f"a face could not be cut: {error}")
                continue
            known = {"box": face.box.astype(np.float32), "score": np.float32(face.score), "track": face.track}
            crops.append({**sample, **cut, **known, **(second.cut(sample, cut["matrix"]) if second else {})})
        if failures and not crops:
            report.skip(frame, failures[0])
        elif failures:
            report.add_damage(f"frame {frame}: {failures[0]}")
        return crops

    def _wanted(
        self, sample: Sample, found: FrameFaces, second: SecondCutter | None, tracker: "_VideoTracks | None"
    ) -> list[Face]:
        """The faces of one frame that are large and certain enough, or the one of them that the recipe chooses."""
        side = np.minimum(found.boxes[:, 2] - found.boxes[:, 0], found.boxes[:, 3] - found.boxes[:, 1])
        good = np.isfinite(found.boxes).all(axis=1) & (side >= self._recipe.min_face)
        keep = np.flatnonzero(good & (found.scores >= self._recipe.min_score))
        if found.tracks is not None:
            tracks = found.tracks[keep]
        else:
            tracks = (
                np.full(len(keep), NO_TRACK) if tracker is None else tracker.update(sample["frame"], found.boxes[keep])
            )
        faces = [
            Face(found.boxes[i], float(found.scores[i]), _known_points(found.points[i]), int(track))
            for i, track in zip(keep.tolist(), tracks.tolist(), strict=True)
        ]
        if not faces or self._recipe.choose not in FRAME_RULES:
            return faces
        mask = second.picture(sample) if second is not None and self._recipe.choose == "masked" else None
        return [choose_face(self._recipe.choose, faces, sample["image"], mask)]

    def _describe_none(self, found: FrameFaces) -> str:
        wanted = f"of {self._recipe.min_face} px and more with a score of {self._recipe.min_score:g} and more"
        return f"no face {wanted}" + (" (some below)" if len(found) else "")


class _VideoTracks:
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
        """Number the boxes of a frame; frames come in their order."""
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


def _as_frame(sample: Sample) -> Sample:
    """A sample with a picture; one that the source brought is frame 0, as if it had been decoded."""
    require_image(sample)
    return sample if "frame" in sample else {"frame": 0, "time": 0.0, **sample}


def _known_points(points: npt.NDArray[np.float32]) -> npt.NDArray[np.float32] | None:
    return points if np.isfinite(points).all() else None


def _box_area(sample: Sample) -> float:
    left, top, right, bottom = sample["box"].tolist()
    return float((right - left) * (bottom - top))


_WEIGHTS: dict[str, Callable[[list[Sample]], float]] = {
    "track": len,
    "main": lambda samples: sum(map(_box_area, samples)),
}


def _one_track(samples: Iterable[Sample], weigh: Callable[[list[Sample]], float]) -> Iterator[Sample]:
    """Yield the samples of the track with the greatest weight, the first of equals; without tracks, all samples.

    Holds the crops of one video in memory.
    """
    tracks: dict[int, list[Sample]] = {}
    for sample in samples:
        tracks.setdefault(sample["track"], []).append(sample)
    untracked = tracks.pop(NO_TRACK, [])
    if not tracks:
        yield from untracked
        return
    chosen = max(tracks.values(), key=weigh)
    kept = {sample["frame"] for sample in chosen}
    others = chain(untracked, *(samples for samples in tracks.values() if samples is not chosen))
    for frame in sorted({sample["frame"] for sample in others} - kept):
        chosen[0][REPORT].skip(frame, "no face of the track that is kept")
    yield from chosen
