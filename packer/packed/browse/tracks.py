"""The samples of one track in the order of time, and their sound."""

import io
import wave
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from packer.packed.browse.dataset import BrowsedDataset
from shardspec.columns import IntArray
from shardspec.manifest import Manifest

_PAUSE_MS = 200
_SHORTEST_PAUSE_MS, _LONGEST_PAUSE_MS = 16, 1000
_LONGEST_SOUND_S = 600
_HIGHEST_RATE = 192_000  # of --audio; the manifest may be anyone's


class Sound(NamedTuple):
    """The sound of a track, or of one sample.

    Attributes
    ----------
    samples : ndarray, (N,) or (C, N), int16
        That of a track is mono. It begins with the first sample of the track. Frames that are missing are silent.
    rate : int
        Samples a second.
    """

    samples: npt.NDArray[np.int16]
    rate: int

    def peaks(self, columns: int) -> npt.NDArray[np.int16]:
        """Return the lowest and the highest value in each of `columns` equal parts, (columns, 2)."""
        edges = np.linspace(0, len(self.samples), columns + 1).astype(np.int64)
        parts = [self.samples[a : max(b, a + 1)] for a, b in pairwise(edges)]
        return np.array([(part.min(initial=0), part.max(initial=0)) for part in parts], np.int16)

    def wav(self) -> bytes:
        """Return a WAV file."""
        file = io.BytesIO()
        with wave.open(file, "wb") as out:
            out.setnchannels(1 if self.samples.ndim == 1 else len(self.samples))
            out.setsampwidth(2)
            out.setframerate(self.rate)
            out.writeframes(np.ascontiguousarray(self.samples.T, "<i2").tobytes())
        return file.getvalue()


def track_rows(dataset: BrowsedDataset, row: int, most: int | None = None) -> IntArray:
    """Return the rows of the same source and track as `row`, in the order of their frames.

    If there are more than `most`, return the nearest to `row`. A dataset without tracks has one per source.
    """
    same = np.array([row])
    if "source" in dataset.small_fields:
        is_text = dataset.field("source").kind == "text"
        sources = dataset.texts("source").codes if is_text else dataset.numbers("source")
        same = np.flatnonzero(sources == sources[row])
    if "track" in dataset.small_fields:
        tracks = np.ma.getdata(dataset.column("track"))[same]
        same = same[tracks == tracks[same == row][0]]
    order = next((name for name in ("frame_position", "frame", "piece") if name in dataset.small_fields), None)
    if order is not None:
        frames = np.ma.getdata(dataset.column(order))
        if len(np.unique(frames[same])) < len(same) and "key" in dataset.schema:  # merged parts with the same sources
            items = np.array([sample["key"].partition("-")[0] for sample in dataset.read(same, ["key"])])
            same = same[items == items[same == row][0]]
        same = same[np.argsort(frames[same], kind="stable")]
    if most is None:
        return same
    at = int(np.flatnonzero(same == row)[0])
    first = max(0, min(at - most // 2, len(same) - most))
    return same[first : first + most]


def pause_ms(dataset: BrowsedDataset, rows: Sequence[int] | IntArray) -> int:
    """Return the usual number of milliseconds from one sample of a track to the next, between 16 and 1000."""
    return int(np.median(pauses_ms(dataset, rows)))


def pauses_ms(dataset: BrowsedDataset, rows: Sequence[int] | IntArray) -> list[int]:
    """Return the milliseconds from each sample of a track to the next, between 16 and 1000; after the last, the median.

    Without times, 200 for each.
    """
    times = _times(dataset, rows)
    if times is None or len(rows) < 2 or not np.isfinite(times).all():
        return [_PAUSE_MS] * len(rows)
    # Rounded times are subtracted, not rounded differences, so that errors do not add up.
    steps = np.diff(np.rint(1000 * times)).clip(_SHORTEST_PAUSE_MS, _LONGEST_PAUSE_MS).astype(np.int64)
    return [*steps.tolist(), int(np.median(steps))]


def sound_of(dataset: BrowsedDataset, rows: Sequence[int] | IntArray) -> Sound | None:
    """Return the sound of a track; None if the dataset has none, or if it is longer than ten minutes."""
    times, rate = _times(dataset, rows), _rate(dataset, rows)
    if "audio" not in dataset.schema or rate is None or times is None or not len(rows):
        return None
    parts = [np.atleast_2d(sample["audio"]).mean(axis=0).astype(np.int16) for sample in dataset.read(rows, ["audio"])]
    if not ((times >= times[0]) & (times - times[0] <= _LONGEST_SOUND_S)).all():  # false for NaN
        return None
    starts = np.rint((times - times[0]) * rate).astype(np.int64).tolist()
    if "frame_position" in dataset.small_fields:  # the sound of consecutive frames joins exactly; times are rounded
        positions = dataset.numbers("frame_position")[np.asarray(rows, np.int64)]
        for row in (np.flatnonzero(np.diff(positions) == 1) + 1).tolist():
            starts[row] = starts[row - 1] + len(parts[row - 1])
    samples = np.zeros(max(start + len(part) for start, part in zip(starts, parts, strict=True)), np.int16)
    for start, part in zip(starts, parts, strict=True):
        samples[start : start + len(part)] = part
    return Sound(samples, rate)


def sound_of_sample(dataset: BrowsedDataset, row: int) -> Sound | None:
    """Return the sound of a sample that is a video or a sound; None if it has none, or if it is longer than ten minutes."""
    rate = _rate(dataset, [row])
    if rate is None or "audio" not in dataset.schema or not (dataset.videos or dataset.sound is not None):
        return None
    samples = np.asarray(dataset.read([row], ["audio"])[0]["audio"], np.int16)
    return Sound(samples, rate) if samples.shape[-1] <= _LONGEST_SOUND_S * rate else None


def _rate(dataset: BrowsedDataset, rows: Sequence[int] | IntArray) -> int | None:
    """Return the samples a second of the sound: those of the first row, or those of all videos."""
    if dataset.sound is not None and len(rows):
        rate = int(dataset.read(rows[:1], ["audio_rate"])[0]["audio_rate"])
        return rate if 0 < rate <= _HIGHEST_RATE else None
    return sound_rate(dataset.manifest)


def sound_rate(manifest: Manifest) -> int | None:
    """Return the samples a second of the field ``audio``; None if unknown."""
    rates = [generation.recipe.get("audio") for generation in manifest.generations]
    return next((rate for rate in rates if isinstance(rate, int) and 0 < rate <= _HIGHEST_RATE), None)


def _times(dataset: BrowsedDataset, rows: Sequence[int] | IntArray) -> npt.NDArray[np.float64] | None:
    """Return the times of rows in seconds; of videos that were resampled, those of the ticks."""
    rate = dataset.manifest.newest.recipe.get("resample_fps")
    if isinstance(rate, int | float) and rate > 0 and "frame_position" in dataset.small_fields:
        return np.asarray(dataset.numbers("frame_position")[np.asarray(rows, np.int64)] / rate, np.float64)
    if "time" not in dataset.small_fields or dataset.field("time").kind == "text":
        return None
    return np.asarray(dataset.numbers("time")[np.asarray(rows, np.int64)], np.float64)
