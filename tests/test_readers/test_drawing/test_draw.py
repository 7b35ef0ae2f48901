"""Geometry drawn onto crops."""

import numpy as np
import pytest

from readers.drawing.draw import draw_frame
from readers.drawing.geometry import HULL, LEFT, MIDDLE, REGION_COLOURS, RIGHT


@pytest.fixture
def crop():
    image = np.full((96, 96, 3), 40, np.uint8)
    image.flags.writeable = False
    return image


def test_points_are_drawn_where_they_are_in_the_colour_of_their_side(crop):
    drawn = draw_frame(crop, {"landmarks": [[20.5, 30.5], [70.5, 30.5], [48.5, 50.5], [30.5, 70.5], [60.5, 70.5]]})
    for (x, y), colour in zip(
        [(20, 30), (70, 30), (48, 50), (30, 70), (60, 70)], [RIGHT, LEFT, MIDDLE, RIGHT, LEFT], strict=True
    ):
        assert tuple(drawn[y, x]) == colour
    assert (drawn != crop).any(axis=2).sum() < 5 * 60


def test_hull_and_regions_are_drawn(crop):
    square = np.array([[10.5, 10.5], [80.5, 10.5], [80.5, 80.5], [10.5, 80.5]])
    assert np.abs(draw_frame(crop, {"hull": square})[10, 40].astype(int) - HULL).max() < 30  # lines are smoothed
    boxes = np.array(
        [[60.5, 20.5, 80.5, 30.5], [10.5, 20.5, 30.5, 30.5], [40.5, 20.5, 50.5, 50.5], [30.5, 60.5, 60.5, 80.5]]
    )
    drawn = draw_frame(crop, {"regions": boxes})
    for (left, top, _, _), colour in zip(boxes, REGION_COLOURS.values(), strict=True):
        assert np.abs(drawn[int(top), int(left) + 5].astype(int) - colour).max() < 30


def test_the_crop_stays_as_it_is_and_scales(crop):
    far = {"landmarks": np.full((81, 2), 1e9), "hull": np.full((27, 2), -9e5), "regions": np.zeros((4, 4))}
    drawn = draw_frame(crop, far, scale=3)
    assert drawn.shape == (288, 288, 3)
    assert drawn.flags.c_contiguous
    assert (crop == 40).all()


def test_points_that_are_not_valid_get_a_red_frame(crop):
    assert tuple(draw_frame(crop, {"landmarks_valid": False})[0, 50]) == (255, 0, 0)
    assert tuple(draw_frame(crop, {})[0, 50]) == (40, 40, 40)
