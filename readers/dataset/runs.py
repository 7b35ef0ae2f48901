"""Runs, which are consecutive samples of one track without a gap in time, and the clips that are cut from runs."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from readers.dataset.base import SampleDataset
from shardspec.columns import IntArray, fill_missing, missing_in
from shardspec.errors import SchemaError, UsageError
from shardspec.wording import shorten

_GAP = 1.5  # times the median distance between neighbours


@dataclass(frozen=True)
class Runs:
    """Rows of a dataset by track and time, and the runs in this sequence.

    Attributes
    ----------
    rows : int64 array, (n,)
        Rows that belong to a track.
    starts, sizes, tracks : int64 array, (R,)
        Place of each run in `rows`, number of its samples, and number of its track; ascending.
    """

    rows: IntArray
    starts: IntArray
    sizes: IntArray
    tracks: IntArray


@dataclass(frozen=True)
class Starts:
    """Possible first samples of clips. Clip i begins with one of the `counts[i]` starts from `lows[i]` on.

    Attributes
    ----------
    firsts, sizes : int64 array, (S,)
        Place of each start in `Runs.rows`, and the number of samples from there that belong to the clip.
    lows, counts : int64 array, (N,)
    """

    firsts: IntArray
    sizes: IntArray
    lows: IntArray
    counts: IntArray


def find_runs(base: SampleDataset, by: str | None, with_label: bool, max_step: int | None, gaps: bool) -> Runs:
    """Return the runs of samples with equal item, `by` and label, if `with_label`.

    Samples are in the order of ``frame_position``, or of ``frame`` in datasets without it, such as those of
    `packer.Writer`. `gaps` tells whether a run may have gaps if `max_step` does not limit them.
    """
    column = base.column("frame")
    tracks = _tracks(base, by, with_label)
    tracks[missing_in(column)] = -1
    frames = np.asarray(column, np.int64)
    try:
        times, sampled = np.asarray(base.column("frame_position"), np.int64), True
    except (SchemaError, UsageError):
        times, sampled = frames, False
    order = np.lexsort((times, tracks))
    order = order[tracks[order] >= 0]
    track, steps = tracks[order], np.diff(times[order])
    broken = (track[1:] != track[:-1]) | (steps <= 0)
    if max_step is not None:
        broken |= np.diff(frames[order]) > max_step
    elif not gaps and sampled:
        broken |= steps > 1
    elif not gaps:
        broken |= steps > _usual_steps(steps, track)
    starts = np.flatnonzero(np.concatenate([[True], broken])) if len(order) else order
    return Runs(order, starts, np.diff(starts, append=len(order)), track[starts])


def _usual_steps(steps: IntArray, track: IntArray) -> npt.NDArray[np.float64]:
    """Return the largest step without a gap, for each step of a track."""
    limits = np.full(len(steps), np.inf)
    for a, b in pairwise([0, *(np.flatnonzero(np.diff(track)) + 1).tolist(), len(track)]):
        if b - a > 1:
            limits[a : b - 1] = _GAP * max(1.0, float(np.median(steps[a : b - 1])))
    return limits


def find_starts(runs: Runs, least: int, sliding: bool, stride: int | None, short: bool) -> Starts:
    """Return the clips of runs with `least` samples or more.

    Parameters
    ----------
    sliding : bool
        True: a clip has `least` samples, and may begin anywhere. False: it has all samples of its run.
    stride : int or None
        Number of starts of a run that share a clip; None: all starts of a track share one.
    short : bool
        Whether a track without such a run has one clip: its longest run.
    """
    chosen = runs.sizes >= least
    if short:
        longest_last = np.lexsort((runs.sizes, runs.tracks))
        last = longest_last[np.append(np.diff(runs.tracks[longest_last]) > 0, True)[: len(longest_last)]]
        chosen = chosen.copy()
        chosen[last] = True
    sizes, tracks = runs.sizes[chosen], runs.tracks[chosen]
    counts = np.maximum(sizes - least, 0) + 1 if sliding else np.ones_like(sizes)
    firsts = ranges(runs.starts[chosen], counts)
    spans = np.repeat(np.minimum(sizes, least) if sliding else sizes, counts)
    ends = np.cumsum(counts)
    if stride is None:
        last_of_track = np.append(np.diff(tracks) > 0, True)[: len(tracks)]
        highs = ends[last_of_track]
        lows = np.concatenate([[0], highs[:-1]])[: len(highs)]
    else:
        parts = -(-counts // stride)
        lows = ranges(np.zeros_like(parts), parts) * stride + np.repeat(ends - counts, parts)
        highs = np.minimum(lows + stride, np.repeat(ends, parts))
    return Starts(firsts, spans, lows, highs - lows)


def ranges(starts: IntArray, counts: IntArray) -> IntArray:
    """Return the numbers of several ranges, one range after the other: int64, (sum of counts,)."""
    ends = np.cumsum(counts)
    numbers: IntArray = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)
    return numbers


def _tracks(base: SampleDataset, by: str | None, with_label: bool) -> IntArray:
    """Return the number of each sample's track: int64, (N,); −1 for samples that belong to no clip."""
    parts = [base.item_numbers()]
    if by is not None:
        parts.append(_numbers(by, base.column(by)))
    if with_label:
        parts.append(fill_missing(base.column("label")))
    _, numbers = np.unique(np.stack(parts, axis=1), axis=0, return_inverse=True)
    numbers = numbers.reshape(-1).astype(np.int64)
    if by is not None:
        numbers[parts[1] < 0] = -1
    return numbers


def _numbers(by: str, column: npt.NDArray[Any] | list[Any]) -> IntArray:
    """Return a column's integers, or number its texts: int64, (N,); −1 where a value is missing."""
    if isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "iub":
        return fill_missing(column)
    if isinstance(column, list) and all(value is None or isinstance(value, str) for value in column):
        seen: dict[str | None, int] = {None: -1}
        return np.array([seen.setdefault(value, len(seen)) for value in column], np.int64)
    found = f"{column.dtype} {column.shape[1:]}" if isinstance(column, np.ndarray) else "one of varying shape"
    raise UsageError(
        option="by", expected="a field of one integer or of text, such as 'track'", found=f"{shorten(by)}, {found}"
    )
