"""The last step of ``--sample track``, ``item`` and ``segment``: the frames of a track become one sample.

A sample has no gaps: it is a run of frames of one track, or of one video, in which no sampled frame is missing. A run
that is longer than ``most_seconds``, or whose video has more than `MOST_BYTES`, is divided. A segment lasts ``seconds``,
and begins every ``hop`` seconds of a run; what is left after the last whole segment is dropped.

Images are encoded as they come, so that memory does not grow with the length of a sample but by its encoded bytes.
Each segment that a frame is in has its own encoder, so `packer.recipe.recipe.MOST_OVERLAP` limits their number.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from packer.recipe import Recipe
from packer.sources.item import Item
from packer.steps.chain import ITEM, ONCE, REPORT, Sample, Step, require_image
from packer.steps.encode import SEQUENCES, audio_length
from packer.steps.encode_frames import EncodedFrames, VideoEncoder, describe_shape
from packer.steps.report import ItemReport
from shardspec.errors import ItemError
from shardspec.fields import FRAME_KEY, field_name, is_further_image, is_image_field, video_name
from shardspec.typing.field_types import is_image

_ONCE = ("source", "label", "track", "bucket")
MOST_BYTES = 256 * 10**6
"""Encoded bytes of a sample's videos at which a track or video is divided: those of a shard."""

_CLOSE_S = 1e-6
"""Times are differences of floats: a frame this much before the end of a piece is not in it."""


def make_gathering(recipe: Recipe) -> Step:
    """Make the step of a recipe.

    Of a run of T frames, it yields ``video``, encoded; ``frames``, T; the other images as ``*_video``; one array of
    sound; the label, the source and the columns of the item once; and every other field with a first axis of T.
    """
    by_track = recipe.sample == "track" or (recipe.sample == "segment" and any(s.use == "faces" for s in recipe.chain))
    encoder = VideoEncoder(recipe)

    def gather(samples: Iterator[Sample]) -> Generator[Sample]:
        runs: dict[int, _Run] = {}
        for sample in samples:
            require_image(sample)
            track = int(sample.get("track", 0)) if by_track else 0
            position = int(sample["frame_position"])
            for ended in [known for known, run in runs.items() if position > run.position + 1]:
                yield from runs.pop(ended).end()
            if not by_track and track in runs and runs[track].position == position:
                raise ItemError(
                    expected="one sample a frame",
                    found=f"several of frame {sample['frame']}",
                    hint="take --sample track, or choose one face (--choose)",
                )
            if track not in runs or track < 0:  # a face without a track is alone
                if track in runs:
                    yield from runs.pop(track).end()
                runs[track] = _Run(recipe, encoder)
            yield from runs[track].add(sample, position)
        for run in runs.values():
            yield from run.end()

    return gather


@dataclass(eq=False)
class _Run:
    """The frames of one track without a gap, which are divided into pieces."""

    recipe: Recipe
    encoder: VideoEncoder
    position: int = -1
    _open: list["_Piece"] = field(default_factory=list)
    """The pieces that the last frame is in; several if they overlap."""
    _begun: float | None = None
    """Time of the first frame; None if the next piece begins with the next frame."""
    _begun_pieces: int = 0
    _cut: int = 0
    _last: float | None = None
    _step: float = 0.0
    """Seconds that the last frame lasts: as many as the one before it, 0 if the run has one frame."""

    def add(self, sample: Sample, position: int) -> Iterator[Sample]:
        """Add the next frame, and yield the pieces that end before it."""
        self.position = position
        time = self._time(sample)
        while self._open and time > self._open[0].start + self._seconds - _CLOSE_S:
            yield self._end_first()
        if self._last is not None:
            self._step = time - self._last
        self._last = time
        if self._begun is None:
            self._begun, self._begun_pieces = time, 0
        while time > (start := self._begun + self._begun_pieces * (self.recipe.hop or self._seconds)) - _CLOSE_S:
            if time <= start + self._seconds - _CLOSE_S:  # otherwise no frame is in this piece
                self._open.append(_Piece(self.recipe, self.encoder, start))
            self._begun_pieces += 1
        for piece in self._open:
            piece.add(sample, time)
        if self.recipe.sample != "segment" and self._open[0].bytes > MOST_BYTES:
            yield self._end_first()
            self._begun = None

    def end(self) -> Iterator[Sample]:
        """Yield the last pieces: of segments only whole ones. These may end half a frame early, since files round times."""
        for piece in self._open:
            if self.recipe.sample != "segment" or piece.last + 1.5 * self._step > piece.start + self._seconds:
                self._cut += 1
                yield piece.join(self._step)
            elif not self._cut:
                for number in piece.numbers():
                    piece.report.skip(number, f"a run of frames shorter than {self.recipe.seconds:g} s")
                self._cut += 1  # the others have no more frames

    def _end_first(self) -> Sample:
        self._cut += 1
        return self._open.pop(0).join(self._step)

    @property
    def _seconds(self) -> float:
        """Length of a piece."""
        recipe = self.recipe
        return recipe.seconds if recipe.sample == "segment" and recipe.seconds else recipe.most_seconds

    def _time(self, sample: Sample) -> float:
        rate = self.recipe.resample_fps
        return float(sample["time"]) if rate is None else int(sample["frame_position"]) / rate


class _Piece:
    """A sample that is being made. Its images are encoded as they come, so that it holds no pixels.

    Attributes
    ----------
    start : float
        Time at which it begins, in seconds.
    last : float
        Time of its last frame.
    """

    def __init__(self, recipe: Recipe, encoder: VideoEncoder, start: float) -> None:
        self._recipe = recipe
        self._encoder = encoder
        self._fixed: Sample = {}
        self._values: dict[str, list[Any]] = {}
        self._videos: dict[str, EncodedFrames] = {}
        self._frames = 0
        self._first = 0.0
        self.start = start
        self.last = 0.0

    @property
    def bytes(self) -> int:
        """Encoded bytes of the images so far."""
        return sum(video.bytes for video in self._videos.values())

    @property
    def report(self) -> ItemReport:
        """The item's report."""
        report: ItemReport = self._fixed[REPORT]
        return report

    def numbers(self) -> Sequence[int]:
        """Return the numbers of the frames."""
        return [int(number) for number in self._values["frame"]]

    def add(self, sample: Sample, time: float) -> None:
        """Add a frame."""
        if not self._frames:
            self._begin(sample)
            self._first = time
        self._frames, self.last = self._frames + 1, time
        for name, video in self._videos.items():
            video.add(name, _value(sample, name))
        for name, values in self._values.items():
            values.append(_value(sample, name))

    def _begin(self, sample: Sample) -> None:
        item: Item = sample[ITEM]
        once = set(sample.get(ONCE, (*_ONCE, *item.columns, *item.arrays)))
        once -= set(map(field_name, self._recipe.intervals))
        self._fixed = {ITEM: item, REPORT: sample[REPORT]}
        for name, value in sample.items():
            if name.startswith("_"):
                continue
            if name in once:
                self._fixed[name] = value
            elif is_image_field(name) and isinstance(value, np.ndarray) and is_image(value):
                self._videos[name] = self._encoder.begin(video_name(name))
            else:
                self._values[name] = []

    def join(self, step: float) -> Sample:
        """Return the sample. Its last frame lasts `step` seconds."""
        joined: Sample = {**self._fixed, "frames": self._frames, "seconds": self.last + step - self._first}
        sequences = set()
        for name, values in self._values.items():
            if name == "audio":
                joined[name] = np.concatenate(values)
                if audio_length(self._recipe) is None:
                    joined["audio_lengths"] = np.array([len(value) for value in values], np.int64)
                    sequences.add("audio_lengths")
                continue
            target = FRAME_KEY if name == "key" else video_name(name) if is_further_image(name) else name
            joined[target] = _stack(name, values)
            sequences.add(target)
        videos = {video_name(name): video.finish() for name, video in self._videos.items()}
        return {**joined, **videos, SEQUENCES: frozenset(sequences)}


def _value(frame: Mapping[str, Any], name: str) -> Any:
    if name not in frame:
        raise ItemError(expected=f"the field {name!r} in every frame of a track", found="none in some")
    return frame[name]


def _stack(name: str, values: Sequence[Any]) -> Any:
    """Stack the values of frames: numbers and arrays in an array, others in a list."""
    if isinstance(values[0], str | dict | list):
        return list(values)
    if isinstance(values[0], bytes | bytearray | memoryview):
        raise ItemError(expected=f"numbers, texts or arrays in the field {name!r} of a track's frames", found="bytes")
    shapes = sorted({np.shape(value) for value in values})
    if len(shapes) > 1:
        raise ItemError(
            expected=f"values of {name!r} of one shape in a sample", found=" and ".join(map(describe_shape, shapes[:2]))
        )
    return np.stack([np.asarray(value) for value in values])
