import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.vision.decode.sampling import Sampling, spread


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
    taken = Sampling(every=3).choose(np.arange(8) / 25, [False] * 8, 8)
    assert np.flatnonzero(taken).tolist() == [0, 3, 6]


@pytest.mark.parametrize(("fps", "indices"), [(5, [0, 5, 10]), (10, [0, 3, 5, 8, 10]), (100, list(range(12)))])
def test_fps_takes_the_first_frame_at_or_after_each_tick(fps, indices):
    taken = Sampling(fps=fps).choose((np.arange(12) / 25 + 7.3).tolist(), [False] * 12, 12)
    assert np.flatnonzero(taken).tolist() == indices


def test_fps_after_a_gap_takes_one_frame_and_not_those_that_are_missing():
    times = [0.0, 0.1, 5.0, 5.1, 5.2]
    taken = Sampling(fps=2).choose(times, [False] * 5, 5)
    assert np.flatnonzero(taken).tolist() == [0, 2]


def test_keyframes():
    taken = Sampling(keyframes=True).choose([0, 1, 2, 3], [True, False, False, True], 4)
    assert np.flatnonzero(taken).tolist() == [0, 3]
