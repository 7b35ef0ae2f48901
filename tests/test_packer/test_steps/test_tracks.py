"""Tracks of faces through a video."""

import numpy as np

from packer.steps.faces.tracks import Tracker


def box(x, y=100.0, side=50.0):
    return [x, y, x + side, y + side]


def follow(tracker, *frames):
    return [tracker.update(np.array(frame, np.float32).reshape(-1, 4)).tolist() for frame in frames]


def test_faces_keep_their_numbers_in_any_order():
    frames = [[box(0), box(300)], [box(310), box(10)], [box(20), box(320), box(600)], [box(600), box(20), box(330)]]
    assert follow(Tracker(), *frames) == [[0, 1], [1, 0], [0, 1, 2], [2, 0, 1]]


def test_a_face_may_move_by_its_width_and_no_more():
    assert follow(Tracker(), [box(0)], [box(49)], [box(98)]) == [[0], [0], [0]]
    assert follow(Tracker(), [box(0)], [box(60)]) == [[0], [1]]


def test_a_gap_of_too_many_sampled_frames_ends_a_track():
    assert follow(Tracker(), [box(0)], [], [], [box(0)]) == [[0], [], [], [0]]
    assert follow(Tracker(), [box(0)], [], [], [], [box(0)]) == [[0], [], [], [], [1]]


def test_the_largest_overlap_wins_and_ties_go_to_the_older_track():
    assert follow(Tracker(), [box(0), box(40)], [box(30)]) == [[0, 1], [1]]
    assert follow(Tracker(), [box(0), box(40)], [box(20)]) == [[0, 1], [0]]
    assert follow(Tracker(), [box(20)], [box(0), box(40)]) == [[0], [0, 1]]


def test_a_number_is_never_given_twice():
    frames = [[[box(500 * k)], [], [], []][place] for k in (0, 1, 0, 1) for place in range(4)]
    assert follow(Tracker(), *frames)[::4] == [[0], [1], [2], [3]]


def test_frames_without_faces_and_empty_boxes():
    tracker = Tracker()
    assert tracker.update(np.empty((0, 4))).dtype == np.int64
    assert follow(tracker, [[10, 10, 10, 10]], [[10, 10, 10, 10]]) == [[0], [1]]  # what has no area overlaps nothing
