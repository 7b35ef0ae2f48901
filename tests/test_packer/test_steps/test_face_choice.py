"""Which face of a frame is kept."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.face_source import pair
from support.media import write_image
from support.packed import read_samples

import packer
from packer.steps.faces.frame import FRAME_RULES, FrameFaces

FRAME = np.zeros((100, 300, 3), np.uint8)
MASKS = ("forgery.png", "black.png", "")


def some_faces(*faces: tuple[float, ...]) -> FrameFaces:
    """Faces by left, top, right and bottom, and score if it is not 0.99."""
    boxes, scores = [face[:4] for face in faces], [*(face[4] if len(face) > 4 else 0.99 for face in faces)]
    points = np.full((len(faces), 5, 2), np.nan)
    return FrameFaces(np.array(boxes, np.float32), np.array(scores, np.float32), points)


def masked(left: int, top: int, right: int, bottom: int, value: int = 255) -> npt.NDArray[np.uint8]:
    mask = FRAME.copy()
    mask[top:bottom, left:right] = value
    return mask


def test_each_rule_has_its_own_choice() -> None:
    faces = some_faces((0, 0, 60, 60), (130, 20, 180, 70), (200, 30, 245, 75, 0.999), (255, 40, 299, 80, 0.96))
    found = {rule: choose(faces, FRAME, masked(260, 50, 280, 70)) for rule, choose in FRAME_RULES.items()}
    assert [found[rule] for rule in ("largest", "central", "best", "masked")] == [0, 1, 2, 3]


@pytest.mark.parametrize("mask", [None, FRAME, masked(100, 0, 110, 100)])
def test_without_a_mask_on_any_face_it_is_the_largest(mask: npt.NDArray[np.uint8] | None) -> None:
    faces = some_faces((0, 0, 40, 40), (200, 0, 260, 60))
    assert FRAME_RULES["masked"](faces, FRAME, mask) == 1


def test_a_box_beyond_the_frame_holds_what_lies_inside() -> None:
    faces = some_faces((-500, -500, -10, -10), (-30, -30, 20, 20), (100, 50, 400, 200))
    assert FRAME_RULES["masked"](faces, FRAME, masked(0, 0, 5, 5)) == 1
    assert FRAME_RULES["masked"](faces, FRAME, masked(290, 90, 300, 100)) == 2


@given(
    st.lists(st.tuples(*[st.integers(-50, 350)] * 2, st.integers(1, 99), st.floats(0.5, 1)), min_size=1, max_size=6),
    st.sampled_from(sorted(FRAME_RULES)),
)
def test_the_first_of_equal_faces_is_chosen(boxes: list[tuple[int, int, int, float]], rule: str) -> None:
    faces = [(x, y, x + side, y + side, score) for x, y, side, score in boxes]
    mask = masked(50, 20, 200, 80, 9)
    choose = FRAME_RULES[rule]
    assert choose(some_faces(*faces, *faces), FRAME, mask) == choose(some_faces(*faces), FRAME, mask)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # rows of Python are relative to the current folder
    return tmp_path


def build(rows: list[dict[str, str]], out: Path, **options: Any) -> list[dict[str, Any]]:
    packer.build(rows, out, preset="faces", engine="inline", progress=False, size=64, **options)
    return read_samples(out)


def test_of_two_people_the_forged_one_is_chosen(folder: Path) -> None:
    both = pair()
    forgery, black = np.zeros_like(both), np.zeros_like(both)
    forgery[:, 512:] = both[:, 512:] // 64  # dim, as the difference of a forgery and its original is
    for name, picture in (("both", both), ("forgery", forgery), ("black", black)):
        write_image(folder / f"{name}.png", picture)
    rows = [{"path": "both.png", "mask": mask} for mask in MASKS]
    samples = build(rows, folder / "out", also="mask", choose="masked")
    assert [bool(sample["box"][0] > 512) for sample in samples] == [True, False, False]
    assert [bool(sample["mask_image"].any()) for sample in samples] == [True, False, False]
    assert [bool(sample["mask_image_valid"]) for sample in samples] == [True, True, False]
