"""``detect``: a sample for each face in the frames, without an image, and one for each frame without a face."""

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import numpy as np

from packer.recipe import Recipe
from packer.sources.item import Item
from packer.steps.chain import ITEM, REPORT, SAMPLED, Sample, Step, StepResources
from packer.steps.faces.frame import NO_TRACK, FrameFaces, FramePlace, counting_faces, known_points
from packer.steps.faces.search import BATCH_FRAMES, FaceSearch, ItemSearch, as_frame, takes_decoded
from packer.steps.faces.tracks import VideoTracks
from packer.steps.report import ItemReport


def make(recipe: Recipe, resources: StepResources) -> Step:
    """Make the step of a recipe. Load the detector, once per worker, unless `resources` has one."""
    search = FaceSearch(recipe, resources.detector)

    def detect(samples: Iterator[Sample]) -> Iterator[Sample]:
        return _detections(map(as_frame, samples), search, recipe)

    return detect


def _detections(frames: Iterator[Sample], search: FaceSearch, recipe: Recipe) -> Iterator[Sample]:
    """Yield the faces that count in the frames of one item; within a frame in the detector's order, largest first."""
    first = next(frames, None)
    if first is None:
        return
    item, report, sampled = first[ITEM], first[REPORT], first.get(SAMPLED)
    report.faces = 0
    known = sampled if takes_decoded(recipe) else None
    with search.of_item(item, sampled) as faces:
        places = _places(chain([first], frames), faces, report, recipe)
        if item.medium.is_sequence:
            places = VideoTracks(known, report, recipe.fill).follow(places)
        for place in places:
            assert place.sample is not None
            sample, counting = place.sample, place.faces
            tracks = np.full(len(counting), NO_TRACK) if counting.tracks is None else counting.tracks
            height, width = sample.pop("image").shape[:2]
            size = {"frame_size": np.array([width, height], np.int64), "source_bytes": _bytes_of(item)}
            for face, track in enumerate(tracks.tolist()):
                yield {**sample, **size, **_face(counting, face), "track": track}
            if not len(counting):
                yield {**sample, **size, **_NO_FACE}


def _places(frames: Iterator[Sample], search: ItemSearch, report: ItemReport, recipe: Recipe) -> Iterator[FramePlace]:
    """Yield the frames with the faces that count."""
    while batch := list(islice(frames, BATCH_FRAMES)):
        for sample, found in zip(batch, search.faces(batch), strict=True):
            assert isinstance(found, FrameFaces)
            report.faces = (report.faces or 0) + len(found)
            yield FramePlace(sample["frame"], sample, found.take(counting_faces(found, recipe)))


def _bytes_of(item: Item) -> int:
    """Return the size of an item's file in bytes; 0 if unknown, for example for a value in a Parquet file."""
    return 0 if item.member is not None and item.member.kind == "parquet" else item.bytes


def _face(found: FrameFaces, number: int) -> dict[str, Any]:
    """Return the fields of one face, in pixels of the frame."""
    points = known_points(found.points[number])
    return {
        "box": found.boxes[number].astype(np.float32),
        "box_valid": True,
        "score": np.float32(found.scores[number]),
        "landmarks": np.zeros((5, 2), np.float32) if points is None else points.astype(np.float32),
        "landmarks_valid": points is not None,
    }


_NO_FACE: dict[str, Any] = {
    "box": np.zeros(4, np.float32),
    "box_valid": False,
    "score": np.float32(0),
    "landmarks": np.zeros((5, 2), np.float32),
    "landmarks_valid": False,
    "track": NO_TRACK,
}
"""The fields of a frame in which no face counts."""
