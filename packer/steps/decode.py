"""``decode``: an item becomes its picture, or the sampled frames of its video."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

from packer.recipe import Recipe
from packer.sources.item import Item, ItemReport
from packer.sources.packed_items import PACKED_ROW
from packer.sources.suffixes import is_video
from packer.steps.ahead import run_ahead
from packer.steps.chain import ITEM, REPORT, SAMPLED, Sample, Step
from packer.steps.encode import KEPT
from packer.steps.equipment import Equipment
from packer.vision.decode.errors import PictureError, VideoError
from packer.vision.decode.picture import decode_picture, read_picture
from packer.vision.decode.sampling import Sampling
from packer.vision.decode.video import VideoFrame, VideoReader
from shardspec.errors import ItemError

FRAMES_AHEAD = 4
"""Sampled frames that wait decoded while the steps after this one work: as many as the detector is given at a time."""

_Take = Callable[[VideoReader], AbstractContextManager[Iterable[VideoFrame]]]


def make(recipe: Recipe, equipment: Equipment) -> Step:
    """The step of a recipe: ``image`` (H, W, 3) uint8 RGB, ``frame`` its true index, ``time`` in seconds (a picture: 0 and 0.0)."""
    sampling = _sampling(recipe)
    take = _take_ahead if equipment.decodes_ahead else _take

    def decode(samples: Iterator[Sample]) -> Iterator[Sample]:
        for sample in samples:
            item: Item = sample[ITEM]
            if sample.get("image") is not None or PACKED_ROW in item.columns:
                sample[REPORT].frames += 1
                yield {"frame": 0, "time": 0.0, **sample}
            elif is_video(item.name):
                yield from _frames(sample, item, sample[REPORT], sampling, take)
            else:
                yield _picture(sample, item, sample[REPORT])

    return decode


def _sampling(recipe: Recipe) -> Sampling:
    chosen: dict[str, Any] = {}
    for name in ("every", "fps", "frames"):
        if getattr(recipe, name) is not None:
            chosen[name] = getattr(recipe, name)
    if recipe.keyframes:
        chosen["keyframes"] = True
    return Sampling(**(chosen or {"every": 1}))


def _picture(sample: Sample, item: Item, report: ItemReport) -> Sample:
    try:
        data = read_picture(item.location())
    except OSError as error:
        raise ItemError(f"expected a readable file, found: {error.strerror}") from error
    try:
        picture = decode_picture(data)
    except PictureError as error:
        raise ItemError(str(error)) from error
    report.frames += 1
    kept = (picture.image, data, "jpeg") if picture.passthrough else None
    return {**sample, "image": picture.image, "frame": 0, "time": 0.0, KEPT: kept}


def _take(video: VideoReader) -> AbstractContextManager[Iterable[VideoFrame]]:
    return nullcontext(video)


def _take_ahead(video: VideoReader) -> AbstractContextManager[Iterable[VideoFrame]]:
    return closing(run_ahead(iter(video), FRAMES_AHEAD, video.stop))


def _frames(sample: Sample, item: Item, report: ItemReport, sampling: Sampling, take: _Take) -> Iterator[Sample]:
    """The sampled frames of a video. Damage after the first frame is recorded; without any frame it is an error."""
    try:
        with VideoReader(item.location(), sampling) as video, take(video) as frames:
            sampled = video.sampled
            for frame in frames:
                report.frames += 1
                yield {**sample, "image": frame.image, "frame": frame.index, "time": frame.time, SAMPLED: sampled}
            if video.damage is not None:
                report.add_damage(video.damage)
    except VideoError as error:
        raise ItemError(str(error)) from error
    if not report.frames:
        raise ItemError(report.damage or "expected at least one frame, found none")
