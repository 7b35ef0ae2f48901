"""``faces``: frames become face crops, with landmarks, outline, regions and the matrix that leads back to the frame."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from packer.detect import Detections, Detector
from packer.detect.tracks import Tracker
from packer.geometry.affine import apply
from packer.geometry.align import align_matrix, warp
from packer.geometry.crop import crop_matrix, cut
from packer.item import ItemReport
from packer.landmarks import make_provider
from packer.landmarks.hull import hull
from packer.landmarks.regions import regions
from packer.pipeline import ITEM, REPORT, Sample, Step
from packer.recipe import Recipe
from packer.suffixes import is_video
from shardspec.points import REGIONS, get_layout, hull_size

BATCH_FRAMES = 4
"""Frames of one item that the detector is given at a time."""

NO_TRACK = -1


def make(recipe: Recipe) -> Step:
    """The step of a recipe. The detector and the landmarks' model are loaded here, once per worker."""
    finder = FaceFinder(recipe)

    def faces(samples: Iterator[Sample]) -> Iterator[Sample]:
        found = finder.crops(samples)
        if recipe.choose == "track":
            found = _longest_track(found)
        return found

    return faces


@dataclass(frozen=True)
class _Face:
    """One wanted face of a frame: box and points in frame pixels."""

    box: npt.NDArray[np.float32]
    score: float
    points: npt.NDArray[np.float32]
    track: int

    @property
    def area(self) -> float:
        return float((self.box[2] - self.box[0]) * (self.box[3] - self.box[1]))


class FaceFinder:
    """Finds, chooses and cuts the faces of one item's frames after another.

    Parameters
    ----------
    recipe : Recipe
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        if recipe.parity:
            self._detector = Detector(recipe.detector, device=recipe.device)
        else:
            self._detector = Detector.dataset(recipe.min_face, runtime=recipe.detector, device=recipe.device)
        self._landmarks = make_provider(recipe.landmarks, recipe.landmark_model)
        self._layout = self._landmarks.layout

    def crops(self, frames: Iterator[Sample]) -> Iterator[Sample]:
        """The face samples of one item, frame by frame, and of each frame as the detector orders them: largest first."""
        tracker = Tracker()
        faceless: list[Sample] = []
        any_face = False
        report: ItemReport | None = None
        while batch := list(islice(frames, BATCH_FRAMES)):
            report = batch[0][REPORT]
            report.faces = report.faces or 0
            for sample, found in zip(batch, self._detector.detect([sample["image"] for sample in batch]), strict=True):
                report.faces += len(found.boxes)
                wanted = self._wanted(found, tracker if is_video(sample[ITEM].name) else None)
                if wanted:
                    any_face = True
                    faceless.clear()
                    for face in wanted:
                        yield self._cut(sample, face)
                else:
                    report.skip(sample["frame"], self._describe_none(found))
                    if self._recipe.keep_faceless and not any_face:
                        faceless.append(self._keep_whole(sample))
        if report is not None and not any_face and faceless:
            report.skipped.clear()
            yield from faceless

    def _wanted(self, found: Detections, tracker: Tracker | None) -> list[_Face]:
        """The faces of one frame that are large and certain enough, after the choice among them."""
        side = np.minimum(found.boxes[:, 2] - found.boxes[:, 0], found.boxes[:, 3] - found.boxes[:, 1])
        keep = np.flatnonzero((side >= self._recipe.min_face) & (found.scores >= self._recipe.min_score))
        boxes = found.boxes[keep]
        tracks = np.full(len(keep), NO_TRACK) if tracker is None else tracker.update(boxes)
        faces = [
            _Face(found.boxes[i], float(found.scores[i]), found.points[i], int(track))
            for i, track in zip(keep.tolist(), tracks.tolist(), strict=True)
        ]
        if not faces or self._recipe.choose in ("all", "track"):
            return faces
        if self._recipe.choose == "largest":
            return [max(faces, key=lambda face: face.area)]
        return [max(faces, key=lambda face: face.score)]

    def _describe_none(self, found: Detections) -> str:
        wanted = f"of {self._recipe.min_face} px and more with a score of {self._recipe.min_score:g} and more"
        return f"no face {wanted}" + (" (some below)" if len(found.boxes) else "")

    def _cut(self, sample: Sample, face: _Face) -> Sample:
        """The crop of a face and its geometry."""
        size = self._recipe.face_size
        if self._recipe.align:
            matrix = align_matrix(face.points, size, self._recipe.margin)
            image = warp(sample["image"], matrix, size)
        else:
            matrix = crop_matrix(face.box, self._recipe.margin, size)
            image = cut(sample["image"], matrix, size)
        points, valid = self._landmarks(image, apply(matrix, face.points).astype(np.float32))
        return {
            **sample,
            "image": image,
            "landmarks": points,
            "landmarks_valid": bool(valid),
            "hull": hull(points, self._layout),
            "regions": regions(points, self._layout),
            "box": face.box.astype(np.float32),
            "score": np.float32(face.score),
            "matrix": matrix.astype(np.float32),
            "track": face.track,
        }

    def _keep_whole(self, sample: Sample) -> Sample:
        """A frame without a face: all of it, centred on black, with zeros for geometry and ``landmarks_valid`` false."""
        height, width = sample["image"].shape[:2]
        box = np.array([0, 0, width, height], np.float32)
        matrix = crop_matrix(box, 0, self._recipe.face_size)
        return {
            **sample,
            "image": cut(sample["image"], matrix, self._recipe.face_size),
            "landmarks": np.zeros((len(get_layout(self._layout).names), 2), np.float32),
            "landmarks_valid": False,
            "hull": np.zeros((hull_size(self._layout), 2), np.float32),
            "regions": np.zeros((len(REGIONS), 4), np.float32),
            "box": box,
            "score": np.float32(0),
            "matrix": matrix.astype(np.float32),
            "track": NO_TRACK,
        }


def _longest_track(samples: Iterable[Sample]) -> Iterator[Sample]:
    """The samples of the track that has most of them, the first of equals. Holds one video's crops."""
    tracks: dict[int, list[Sample]] = {}
    singles: list[Sample] = []
    for sample in samples:
        (singles if sample["track"] == NO_TRACK else tracks.setdefault(sample["track"], [])).append(sample)
    yield from singles
    if tracks:
        yield from max(tracks.values(), key=len)
