"""``decode``: read the image of an item, or the sampled frames of its video, with their sound for ``--audio``."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from packer.recipe import Recipe
from packer.recipe.checks import SAMPLING
from packer.sources.item import PACKED_ROW, Item
from packer.sources.member_bytes import opener
from packer.steps.chain import ITEM, REPORT, SAMPLED, STILL, Sample, Step, StepResources
from packer.steps.encode import KEPT, OriginalBytes, audio_length, keeps_images
from packer.steps.report import ItemReport
from packer.steps.second_image import open_companion
from packer.steps.sequences import FramesReader, Reader, open_reader
from packer.vision.decode.image import check_kept, decode_image, read_image
from packer.vision.decode.jpeg_header import PROGRESSIVE
from packer.vision.decode.limits import ImageError, VideoError
from packer.vision.decode.sampling import Sampling, VideoFrame, check_span, sample_at
from shardspec.errors import ItemError, system_reason
from shardspec.fields import field_name
from shardspec.registry import import_target

if TYPE_CHECKING:
    from packer.vision.decode.audio import AudioReader

FRAMES_AHEAD = 4
"""Number of frames decoded ahead of later steps; equal to the detector's batch."""

_LATE_S = 0.5
"""Seconds by which an interval may exceed the end of the video: published times are rounded, and audio is padded."""

_NO_PIXEL = bytes(1)

_Take = Callable[[Reader], AbstractContextManager[Iterable[VideoFrame]]]


def make(recipe: Recipe, resources: StepResources) -> Step:
    """Make the decode step of a recipe.

    The step adds ``image``, (H, W, 3) uint8 RGB; ``frame``, the frame's true index; ``time`` in seconds; and
    ``frame_position``, the frame's number among the sampled frames. For an image these numbers are 0. The intervals in
    the columns ``intervals`` are replaced by a boolean per frame: whether its ``time`` is in one of the intervals.
    """
    sampling = _sampling(recipe)
    intervals = tuple(map(field_name, recipe.intervals))
    take = _take_ahead if resources.decodes_ahead else nullcontext
    checks = resources.only_encodes and keeps_images(recipe)

    def read(samples: Iterator[Sample]) -> Generator[Sample]:
        for sample in samples:
            item: Item = sample[ITEM]
            if sample.get("image") is not None or PACKED_ROW in item.columns:
                sample[REPORT].frames += 1
                yield sample if "frame" in sample else {**sample, **STILL, **silence(recipe)}
            elif item.medium.is_sequence:
                sound = ItemSound(recipe, item)
                yield from _frames(sample, item, sample[REPORT], sampling, take, intervals, sound)
            else:
                yield {**_image(sample, item, sample[REPORT], checks), **silence(recipe)}

    cuts = any(step.use == "faces" for step in recipe.chain)  # that step reads companion images and cuts them
    has_second = recipe.also is not None and not cuts

    def read_more(samples: Iterator[Sample]) -> Iterator[Sample]:
        with closing(read(samples)) as frames:
            marked = (_mark(frame, intervals) for frame in frames)
            yield from _add_second(marked, recipe) if has_second else marked

    return read_more if has_second or intervals else read


def _mark(frame: Sample, fields: Sequence[str]) -> Sample:
    """Replace the intervals in some fields by whether the frame's time is in one of them: start <= time < end."""
    marks = {}
    for field in fields:
        starts, ends = np.reshape(frame[field], (-1, 2)).T
        marks[field] = bool(((starts <= frame["time"]) & (frame["time"] < ends)).any())
    return {**frame, **marks}


def _check_intervals(sample: Sample, fields: Sequence[str], duration: float) -> None:
    for field in fields:
        end = np.max(sample[field], initial=0.0)
        if end > duration + _LATE_S:
            raise ItemError(
                place=f"intervals {field}",
                expected=f"times in seconds within the video, which lasts {duration:.3f} s",
                found=f"{end:g}",
            )


def _add_second(frames: Iterator[Sample], recipe: Recipe) -> Iterator[Sample]:
    """Add each frame's companion image, black if it is missing, and a field that says whether it is valid."""
    first = next(frames, None)
    if first is None:
        return
    with open_companion(recipe, first) as images:
        for sample in chain([first], frames):
            image = images.image(sample)
            stored = np.zeros_like(sample["image"]) if image is None else image
            field = recipe.also_field
            yield {**sample, f"{field}": stored, f"{field}_valid": images.is_valid(image)}


def _sampling(recipe: Recipe) -> Sampling:
    chosen: dict[str, Any] = {name: getattr(recipe, name) for name in SAMPLING if getattr(recipe, name)}
    return Sampling(**(chosen or {"every": 1}))


def _image(sample: Sample, item: Item, report: ItemReport, checks: bool) -> Sample:
    try:
        data = read_image(opener(item.file))
    except OSError as error:
        raise ItemError(f"expected a readable file, found: {system_reason(error)}") from error
    except MemoryError as error:
        raise MemoryError(f"no memory for a file of {item.bytes / 1e6:.0f} MB") from error
    if checks and (checked := check_kept(data)) is not None:
        header, data = checked
        report.frames += 1
        shape = np.ndarray((header.height, header.width, 3), np.uint8, _NO_PIXEL, strides=(0, 0, 0))
        kept = OriginalBytes(shape, data, "jpeg", header.frame_marker == PROGRESSIVE)
        return {**sample, **STILL, "image": shape, KEPT: kept}
    try:
        decoded = decode_image(data)
    except ImageError as error:
        raise ItemError(str(error)) from error
    report.frames += 1
    whole = None if decoded.kept is None else OriginalBytes(decoded.image, decoded.kept, "jpeg")
    return {**sample, **STILL, "image": decoded.image, KEPT: whole}


def _take_ahead(video: Reader) -> AbstractContextManager[Iterable[VideoFrame]]:
    frames: Iterator[VideoFrame] = iter(video)
    return closing(run_ahead(frames, FRAMES_AHEAD, video.stop))


def _frames(
    sample: Sample,
    item: Item,
    report: ItemReport,
    sampling: Sampling,
    take: _Take,
    intervals: Sequence[str],
    sound: "ItemSound",
) -> Iterator[Sample]:
    """Yield the sampled frames of a video.

    Damage after the first frame is recorded in the report. A video without any frame is an error.
    """
    try:
        with closing(open_reader(item.file, sampling)) as video, take(video) as frames, closing(sound):
            if video.damage is None:
                _check_intervals(sample, intervals, video.duration)
            known: Sample = {SAMPLED: video.sampled}
            for frame in frames:
                report.count_frame()
                known[KEPT] = None if frame.data is None else OriginalBytes(frame.image, frame.data, "jpeg")
                place = {"frame": frame.index, "time": frame.time, "frame_position": frame.position}
                yield {**sample, **place, "image": frame.image, **sound.fields(video, frame), **known}
            report.wide_colours = video.wide_colours
            if video.damage is not None:
                report.add_damage(video.damage)
            sound.finish(report)
    except VideoError as error:
        raise ItemError(str(error)) from error
    except OSError as error:
        raise ItemError(f"expected a readable file, found: {system_reason(error)}") from error
    if not report.frames:
        raise ItemError(report.damage or "expected at least one frame, found none")


T = TypeVar("T")

THREAD_NAME = "ahead"
"""Prefix of the thread's name."""


def run_ahead(items: Iterator[T], depth: int, stop: Callable[[], None]) -> Generator[T]:
    """Run an iterator in a thread, and yield its items in order. An error in the iterator is raised here.

    Close the generator if it is not exhausted. Nothing else may use the iterator until then.

    Parameters
    ----------
    items : iterator
        Must not yield None.
    depth : int
        Maximum number of items in the queue.
    stop : callable
        Makes the iterator end soon. Called when the generator ends, in the generator's thread.
    """
    with ThreadPoolExecutor(1, THREAD_NAME) as thread:
        waiting = deque(thread.submit(next, items, None) for _ in range(depth))
        try:
            while (item := waiting.popleft().result()) is not None:
                waiting.append(thread.submit(next, items, None))
                yield item
        finally:
            stop()
            thread.shutdown(cancel_futures=True)


def silence(recipe: Recipe) -> Sample:
    """Return the fields of an image, which has no sound; no fields if the recipe asks for none.

    Raises
    ------
    ItemError
        If the recipe requires sound.
    """
    if recipe.audio is None:
        return {}
    if recipe.require_audio:
        raise _no_sound("an image")
    return {"audio": np.zeros(audio_length(recipe) or 0, np.int16), "audio_valid": False}


class ItemSound:
    """The sound of one video. The file is opened with the first frame, and closed by `close`."""

    def __init__(self, recipe: Recipe, item: Item) -> None:
        self._rate = recipe.audio
        self._required = recipe.require_audio
        self._item = item
        self._reader: AudioReader | None = None
        self._heard = False

    def fields(self, video: Reader, frame: VideoFrame) -> Sample:
        """Return the fields of a frame; frames are passed in order."""
        if self._rate is None:
            return {}
        check_span(frame.span[1] - frame.span[0])
        start, stop = (sample_at(time, self._rate) for time in frame.span)
        if self._reader is None and not isinstance(video, FramesReader):
            make: type[AudioReader] = import_target(
                "packer.vision.decode.audio:AudioReader", what="--audio", extra="pack"
            )
            self._reader = make(opener(self._item.file), self._rate, video.start)
        if self._reader is None or not self._reader.exists:
            if self._required:
                raise _no_sound("a folder of frames" if self._reader is None else "a video without a stream of sound")
            return {"audio": np.zeros(stop - start, np.int16), "audio_valid": False}
        samples, valid = self._reader.read(start, stop)
        self._heard |= valid
        return {"audio": samples, "audio_valid": valid}

    def finish(self, report: ItemReport) -> None:
        """Add damage in the sound to the report.

        Raises
        ------
        ItemError
            If the recipe requires sound, and none was found.
        """
        damage = None if self._reader is None else self._reader.damage
        if damage is not None:
            report.add_damage(damage)
        if self._rate is not None and self._required and not self._heard:
            raise _no_sound(damage or "less sound than one frame lasts")

    def close(self) -> None:
        """Free the decoder and the file."""
        if self._reader is not None:
            self._reader.close()


def _no_sound(found: str) -> ItemError:
    return ItemError(expected="sound, which --require-audio asks for", found=found)
