"""What is said of frames and items without a face that counts."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command import file_of, read_jsonl
from support.face_source import FACELESS_FRAMES, views, write_frames
from support.media import photograph, write_image
from support.packed import check_whole

import packer
from packer.recipe import Recipe
from packer.steps.faces.frame import FrameFaces, MissingFaces
from packer.steps.report import ItemReport
from shardspec.errors import TooManyRejectsError

RECIPE = Recipe(preset="faces")
SEEN = re.compile(r"largest face (\d+) px \(score ([\d.]+)\)(?:, highest score ([\d.]+) \((\d+) px\))?\Z")

Faces = list[tuple[float, float]]

faces = st.lists(st.tuples(st.floats(1, 4000, width=32), st.floats(0, 1, width=32)), max_size=4)


def frame_faces(some: Faces) -> FrameFaces:
    """Faces by the shorter side of their boxes and their scores."""
    boxes = np.array([[0, 0, side, 2 * side] for side, _ in some], np.float32).reshape(-1, 4)
    scores = np.array([score for _, score in some], np.float32)
    return FrameFaces(boxes, scores, np.zeros((len(some), 5, 2), np.float32))


@given(st.lists(faces, max_size=30))
def test_two_reasons_at_most_with_the_largest_and_the_most_certain_face(video: list[Faces]) -> None:
    report = ItemReport("v.mp4")
    misses = MissingFaces(report, RECIPE)
    for frame, some in enumerate(video):
        misses.add(frame, frame_faces(some))
    none = [frame for frame, some in enumerate(video) if not some]
    seen = [frame for frame, some in enumerate(video) if some]
    found = {"none" if reason.endswith("found none") else "seen": frames for reason, frames in report.skipped.items()}
    assert found == {name: frames for name, frames in (("none", none), ("seen", seen)) if frames}
    for reason in report.skipped:
        assert len(reason) < 200
    if seen:
        said = SEEN.search(next(reason for reason in report.skipped if not reason.endswith("none")))
        assert said is not None
        every = [face for some in video for face in some]
        largest, surest = max(side for side, _ in every), max(score for _, score in every)
        assert int(said[1]) == math.floor(largest)
        assert float(said[3] or said[2]) == pytest.approx(surest, abs=1.1e-3)


@pytest.mark.parametrize(
    ("some", "text"),
    [
        ([(39.99, 0.99)], "largest face 39 px (score 0.99)"),  # not "40 px", of which the reason says that it counts
        ([(37.2, 0.9304), (22, 0.9496)], "largest face 37 px (score 0.93), highest score 0.949 (22 px)"),
        ([(37, 0.9991), (22, 0.9996)], "largest face 37 px (score 0.999)"),
        ([(math.nan, 0.9), (math.inf, 0.9), (12, 0.7)], "largest face 12 px (score 0.7)"),
        ([(math.nan, 0.9)], "found none"),
    ],
)
def test_numbers_are_rounded_down(some: Faces, text: str) -> None:
    report = ItemReport("a.png")
    MissingFaces(report, RECIPE).add(0, frame_faces(some))
    assert list(report.skipped) == [f"no face of 40 px and more with a score of 0.95 and more: {text}"]


@pytest.mark.parametrize("parity", [False, True])
def test_of_a_real_face_in_both_modes(tmp_path: Path, parity: bool) -> None:
    """An image whose face the detector finds, but with too low a score."""
    write_image(tmp_path / "in" / "astronaut.png", photograph("astronaut"))
    how: dict[str, Any] = {"preset": "faces", "min_score": 1, "parity": parity, "engine": "inline", "progress": False}
    said = r"largest face \d+ px \(score 0\.99\d?\)"
    with pytest.raises(TooManyRejectsError, match=said):
        packer.build(tmp_path / "in", tmp_path / "out", **how)
    (line,) = read_jsonl(tmp_path / "out" / ".build" / "rejects.jsonl")
    said = re.search(r"and more: largest face (\d+) px \(score 0\.99\d?\) \(1 frame\)\Z", line["reason"])
    assert said is not None
    assert 80 < int(said[1]) < 130


def test_frames_without_and_with_small_faces_have_a_line_each(tmp_path: Path) -> None:
    write_frames(tmp_path / "in" / "clip.mp4", views(20, faceless=FACELESS_FRAMES))
    how: dict[str, Any] = {"every": 4, "min_face": 105, "parity": True, "max_rejects": 1.0}
    packer.build(tmp_path / "in", tmp_path / "out", preset="faces", engine="inline", progress=False, **how)
    check_whole(tmp_path / "out")
    lines = read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
    assert [line["kind"] for line in lines] == ["frames", "frames"]
    assert {bool(SEEN.search(line["reason"])) for line in lines} == {False, True}
