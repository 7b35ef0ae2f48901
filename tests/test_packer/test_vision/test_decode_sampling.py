import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.vision.decode.sampling import FrameClock, Sampling, spread


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"every": 2, "fps": 1.0},
        {"every": 1, "keyframes": True},
        {"every": 0},
        {"frames": 0},
        {"fps": 0.0},
        {"fps": math.nan},
        {"fps": math.inf},
    ],
)
def test_sampling_wants_exactly_one_valid_rule(rules):
    with pytest.raises(ValueError, match="expected"):
        Sampling(**rules)


@given(count=st.integers(0, 5000), frames=st.integers(1, 6000))
def test_spread_takes_the_middles_of_equal_shares(count, frames):
    chosen = spread(count, frames)
    wanted = min(count, frames)
    assert chosen.tolist() == [math.floor((2 * i + 1) * count / (2 * wanted)) for i in range(wanted)]
    assert (np.diff(chosen) > 0).all()
    assert not wanted or (chosen[0] >= 0 and chosen[-1] < count)
    assert wanted < count or chosen.tolist() == list(range(count))


def test_spread_by_hand():
    assert spread(100, 4).tolist() == [12, 37, 62, 87]
    assert spread(3, 1).tolist() == [1]


def test_every():
    taken = Sampling(every=3).choose(np.arange(8) / 25, [False] * 8, 8, FrameClock())
    assert np.flatnonzero(taken).tolist() == [0, 3, 6]


@pytest.mark.parametrize(("fps", "indices"), [(5, [0, 5, 10]), (10, [0, 3, 5, 8, 10]), (100, list(range(12)))])
def test_fps_takes_the_first_frame_at_or_after_each_tick(fps, indices):
    taken = Sampling(fps=fps).choose((np.arange(12) / 25 + 7.3).tolist(), [False] * 12, 12, FrameClock())
    assert np.flatnonzero(taken).tolist() == indices


def test_fps_after_a_gap_takes_one_frame_and_not_those_that_are_missing():
    times = [0.0, 0.1, 5.0, 5.1, 5.2]
    taken = Sampling(fps=2).choose(times, [False] * 5, 5, FrameClock())
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
    taken = Sampling(fps=fps).choose(times.tolist(), [False] * len(times), len(times), clock)
    assert np.flatnonzero(taken).tolist() == list(range(0, len(times), every))


def test_fps_of_a_variable_rate_allows_for_the_rounding_of_times():
    times = np.array([0, 0.033, 0.1, 0.133, 0.2, 0.266, 0.333])  # a third of a tenth of a second, in milliseconds
    clock = FrameClock.of_times(times, 0.001, [21.0, 1000.0])
    assert clock == FrameClock(0.001)
    taken = Sampling(fps=30).choose(times.tolist(), [False] * 7, 7, clock)
    assert taken.all()
    taken = Sampling(fps=15).choose(times.tolist(), [False] * 7, 7, clock)
    assert np.flatnonzero(taken).tolist() == [0, 2, 3, 4, 5, 6]


def test_fps_counts_the_frames_that_a_constant_rate_leaves_out():
    times = np.array([0, 1, 2, 5, 6, 7, 10, 11, 15, 16]) / 25
    clock = FrameClock.of_times(times, 1 / 25, [25.0])
    taken = Sampling(fps=12.5).choose(times.tolist(), [False] * 10, 10, clock)
    assert np.flatnonzero(taken).tolist() == [0, 2, 3, 4, 6, 8, 9]


def test_keyframes():
    taken = Sampling(keyframes=True).choose([0, 1, 2, 3], [True, False, False, True], 4, FrameClock())
    assert np.flatnonzero(taken).tolist() == [0, 3]
