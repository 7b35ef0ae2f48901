import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.vision.decode.sampling import FrameClock, Sampling, spread


@given(count=st.integers(0, 5000), frames=st.integers(1, 6000))
def test_spread_takes_the_middles_of_equal_shares(count, frames):
    chosen = spread(count, frames)
    wanted = min(count, frames)
    assert chosen.tolist() == [math.floor((2 * i + 1) * count / (2 * wanted)) for i in range(wanted)]
    assert (np.diff(chosen) > 0).all()
    assert not wanted or (chosen[0] >= 0 and chosen[-1] < count)
    assert wanted < count or chosen.tolist() == list(range(count))


@pytest.mark.parametrize(("fps", "indices"), [(5, [0, 5, 10]), (10, [0, 3, 5, 8, 10]), (100, list(range(12)))])
def test_fps_takes_the_first_frame_at_or_after_each_tick(fps, indices):
    taken = Sampling(fps=fps).choose((np.arange(12) / 25 + 7.3).tolist(), [False] * 12, 12, FrameClock(), math.inf)
    assert np.flatnonzero(taken).tolist() == indices


def test_fps_after_a_gap_takes_one_frame_and_not_those_that_are_missing():
    times = [0.0, 0.1, 5.0, 5.1, 5.2]
    taken = Sampling(fps=2).choose(times, [False] * 5, 5, FrameClock(), math.inf)
    assert np.flatnonzero(taken).tolist() == [0, 2]


NTSC = 30000 / 1001


@pytest.mark.parametrize(
    ("rate", "fps", "every"),
    [
        (30, 30, 1), (30, 15, 2), (24, 24, 1), (60, 20, 3),
        (NTSC, 29.97, 1), (NTSC, 14.985, 2), (NTSC, 15, 2), (NTSC * 0.8, 23.98, 1), (NTSC * 0.8, 12, 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("unit", [1 / 1000, 1 / 90000, None])
@pytest.mark.parametrize("to_unit", [np.round, np.floor])
def test_fps_at_a_part_of_the_rate_takes_every_nth_frame_however_times_are_rounded(rate, fps, every, unit, to_unit):
    unit = unit or 1 / rate
    times = 7.3 + to_unit(np.arange(40_000) / rate / unit + 1e-9) * unit
    clock = FrameClock.of_times(times, unit, [rate])
    taken = Sampling(fps=fps).choose(times.tolist(), [False] * len(times), len(times), clock, math.inf)
    assert np.flatnonzero(taken).tolist() == list(range(0, len(times), every))


def test_fps_of_a_variable_rate_allows_for_the_rounding_of_times():
    times = np.array([0, 0.033, 0.1, 0.133, 0.2, 0.266, 0.333])  # a third of a tenth of a second, in milliseconds
    clock = FrameClock.of_times(times, 0.001, [21.0, 1000.0])
    assert clock == FrameClock(0.001)
    taken = Sampling(fps=30).choose(times.tolist(), [False] * 7, 7, clock, math.inf)
    assert taken.all()
    taken = Sampling(fps=15).choose(times.tolist(), [False] * 7, 7, clock, math.inf)
    assert np.flatnonzero(taken).tolist() == [0, 2, 3, 4, 5, 6]


def test_fps_counts_the_frames_that_a_constant_rate_leaves_out():
    times = np.array([0, 1, 2, 5, 6, 7, 10, 11, 15, 16]) / 25
    clock = FrameClock.of_times(times, 1 / 25, [25.0])
    taken = Sampling(fps=12.5).choose(times.tolist(), [False] * 10, 10, clock, math.inf)
    assert np.flatnonzero(taken).tolist() == [0, 2, 3, 4, 6, 8, 9]


def nearest_by_hand(times, fps, end):
    """For each tick before the end, the nearest frame, the earlier of two; all in fractions of a second."""
    ticks = (Fraction(k) / fps for k in itertools.count())
    return [
        min(range(len(times)), key=lambda index: abs(times[index] - tick))
        for tick in itertools.takewhile(lambda tick: tick < end, ticks)
    ]


@pytest.mark.parametrize(
    ("rate", "fps"),
    [(30, 25), (24, 25), (25, 25), (50, 25), (Fraction(25, 2), 25), (60, 24), (Fraction(30000, 1001), 25), (15, 30)],
)
@pytest.mark.parametrize("unit", [1000, 90000])
def test_resampling_takes_the_nearest_frame_however_times_are_rounded(rate, fps, unit):
    times = [Fraction(i) / rate for i in range(97)]
    stored = np.array([7.3 + round(time * unit) / unit for time in times])
    clock = FrameClock.of_times(stored, 1 / unit, [float(rate)])
    taken = Sampling(resample_fps=fps).choose(stored, [False] * 97, 97, clock, stored[-1] + float(1 / rate))
    expected = nearest_by_hand(times, fps, times[-1] + 1 / Fraction(rate))
    assert np.repeat(np.arange(97), taken).tolist() == expected
    assert len(expected) == math.ceil(97 * fps / Fraction(rate))


@given(steps=st.lists(st.integers(1, 400), min_size=1, max_size=40), fps=st.sampled_from([5, 25, 29.97]))
def test_resampling_a_variable_rate(steps, fps):
    times = [Fraction(sum(steps[:i]), 1000) for i in range(len(steps))]
    end = Fraction(sum(steps), 1000)
    taken = Sampling(resample_fps=fps).choose(map(float, times), [], len(times), FrameClock(0.001), float(end))
    found = np.repeat(np.arange(len(times)), taken).tolist()
    expected = nearest_by_hand(times, Fraction(str(fps)), end)
    assert found == expected
