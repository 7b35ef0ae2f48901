"""The last step of ``--sample track``, ``item`` and ``segment``: the frames of a track become one sample.

A sample has no gaps: it is a run of frames of one track, or of one video, in which no sampled frame is missing. A run
that is longer than ``most_seconds`` is divided. A segment lasts ``seconds``, and begins every ``hop`` seconds of a run;
what is left after the last whole segment is dropped.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from packer.recipe import Recipe
from packer.sources.item import Item
from packer.steps.chain import ITEM, ONCE, REPORT, Sample, Step, require_image
from packer.steps.encode import SEQUENCES, audio_length
from shardspec.errors import ItemError
from shardspec.fields import FRAME_KEY, field_name, is_further_image, video_name

_ONCE = ("source", "label", "track", "bucket")
_CLOSE_S = 1e-6
"""Times are differences of floats: a frame this much before the end of a piece is not in it."""


def make_gathering(recipe: Recipe) -> Step:
    """Make the step of a recipe.

    Of a run of T frames, it yields ``video``, (T, H, W, 3); ``frames``, T; the other images as ``*_video``; one array of
    sound; the label, the source and the columns of the item once; and every other field with a first axis of T.
    """
    by_track = recipe.sample == "track" or (recipe.sample == "segment" and any(s.use == "faces" for s in recipe.chain))

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
                runs[track] = _Run(recipe)
            yield from runs[track].add(sample, position)
        for run in runs.values():
            yield from run.end()

    return gather


@dataclass(eq=False)
class _Run:
    """The frames of one track without a gap, from which pieces are cut. It holds the frames of one piece at most."""

    recipe: Recipe
    position: int = -1
    frames: list[Sample] = field(default_factory=list)
    _times: list[float] = field(default_factory=list)
    _start: float = 0.0
    _begun: float = 0.0
    _pieces: int = 0
    _last: float = 0.0
    _step: float = 0.0
    """Seconds that the last frame lasts: as many as the one before it, 0 if the run has one frame."""

    def add(self, sample: Sample, position: int) -> Iterator[Sample]:
        """Add the next frame, and yield the pieces that end before it."""
        self.position = position
        time = self._time(sample)
        if not self._times and not self._pieces:
            self._begun = self._start = time
        while time > self._start + self._seconds - _CLOSE_S:
            yield from self._cut()
            self._pieces += 1
            self._start = self._begun + self._pieces * (self.recipe.hop or self._seconds)
            kept = sum(known > self._start - _CLOSE_S for known in self._times)
            del self.frames[: len(self._times) - kept], self._times[: len(self._times) - kept]
        if self._times or self._pieces:
            self._step = time - self._last
        self._last = time
        if time > self._start - _CLOSE_S:  # not between two pieces
            self.frames.append(sample)
            self._times.append(time)

    def end(self) -> Iterator[Sample]:
        """Yield the last piece."""
        if self.recipe.sample != "segment" or self._is_whole():
            yield from self._cut()
        elif not self._pieces:
            for sample in self.frames:
                sample[REPORT].skip(int(sample["frame"]), f"a run of frames shorter than {self.recipe.seconds:g} s")

    @property
    def _seconds(self) -> float:
        """Length of a piece."""
        recipe = self.recipe
        return recipe.seconds if recipe.sample == "segment" and recipe.seconds else recipe.most_seconds

    def _time(self, sample: Sample) -> float:
        rate = self.recipe.resample_fps
        return float(sample["time"]) if rate is None else int(sample["frame_position"]) / rate

    def _is_whole(self) -> bool:
        """Return whether the last frames fill a piece. Files round times, so it may end half a frame early."""
        return bool(self._times) and self._times[-1] + 1.5 * self._step > self._start + self._seconds

    def _cut(self) -> Iterator[Sample]:
        if self.frames:
            yield join_frames(self.frames, self.recipe, self._times[-1] + self._step - self._times[0])


def join_frames(frames: Sequence[Sample], recipe: Recipe, seconds: float) -> Sample:
    """Return the sample of a run of frames, which lasts some seconds."""
    first = frames[0]
    item: Item = first[ITEM]
    once = set(first.get(ONCE, (*_ONCE, *item.columns, *item.arrays))) - set(map(field_name, recipe.intervals))
    joined: Sample = {ITEM: item, REPORT: first[REPORT], "frames": len(frames)}
    joined["seconds"] = seconds
    sequences = set()
    for name, value in first.items():
        if name.startswith("_"):
            continue
        if name in once:
            joined[name] = value
            continue
        values = [_value(frame, name) for frame in frames]
        if name == "audio":
            joined[name] = np.concatenate(values)
            if audio_length(recipe) is None:
                joined["audio_lengths"] = np.array([len(value) for value in values], np.int64)
                sequences.add("audio_lengths")
        else:
            target = video_name(name) if name == "image" or is_further_image(name) else name
            target = FRAME_KEY if name == "key" else target
            joined[target] = _stack(name, values)
            sequences.add(target)
    joined[SEQUENCES] = frozenset(sequences)
    return joined


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
        what = "frames" if name == "image" else f"values of {name!r}"
        found = " and ".join("x".join(map(str, shape)) for shape in shapes[:2])
        hint = "choose --size and --resize exact" if name == "image" else None
        raise ItemError(expected=f"{what} of one shape in a sample", found=found, hint=hint)
    return np.stack([np.asarray(value) for value in values])
