"""A picture whose bytes are kept is checked without its pixels, and by the same verdicts as if they were made."""

import pytest

from benchmarks.kept_check import checked_sides, compare, decoded_sides, make_pictures
from packer.vision.decode.picture import check_kept

PICTURES = list(make_pictures())


def test_whole_pictures_are_kept_as_by_the_decoder():
    found = [checked_sides(content) for content in PICTURES]
    assert found == [decoded_sides(content) for content in PICTURES]
    assert sum(one is None for one in found) == 3  # coded as RGB, to be turned, CMYK


def test_damage_is_found_as_by_the_decoder():
    found = compare(4000, seed=5)
    assert found["different"] == 0
    assert 400 < found["kept"] < 3000  # both verdicts were met


@pytest.mark.parametrize("content", [b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", PICTURES[0][:40]])
def test_what_is_no_whole_jpeg_is_left_to_the_decoder(content):
    assert check_kept(content) is None


def test_the_limit_of_pixels_is_left_to_the_decoder():
    assert check_kept(PICTURES[3], max_pixels=64 * 67) is not None
    assert check_kept(PICTURES[3], max_pixels=64 * 67 - 1) is None
