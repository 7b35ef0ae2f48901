"""No shape of an image makes the detector fail."""

import importlib.util
from collections.abc import Sequence

import numpy as np
import pytest
import skimage.data
from hypothesis import example, given
from hypothesis import strategies as st
from support.fuzz import examples

from packer import Detector
from packer.vision.detect import cpu
from packer.vision.detect.networks import build_networks, load_weights

MAX_SIDE = 3000
PORTRAIT = skimage.data.astronaut()[:300, 100:360]
NOISE = np.random.default_rng(0).integers(0, 256, (61, 67, 3), np.uint8)
CONTENTS = {"black": NOISE[:1, :1] * 0, "noise": NOISE, "faces": PORTRAIT}

Shape = tuple[int, int]

sides = st.integers(1, MAX_SIDE)
short_sides = st.integers(1, 64)
shapes = st.one_of(
    st.tuples(short_sides, sides), st.tuples(sides, short_sides), st.tuples(st.integers(1, 800), st.integers(1, 800))
)
"""Mostly thin ones; the large ones, which take long, are examples below."""


def picture(shape: Shape, content: str) -> np.ndarray:
    """The content repeated to fill a shape, (H, W, 3) uint8."""
    tile = CONTENTS[content]
    rows, columns = (np.arange(side) % of for side, of in zip(shape, tile.shape, strict=False))
    return np.ascontiguousarray(tile[rows[:, None], columns])


@pytest.fixture(
    scope="module",
    params=[
        ("openvino", "parity", False),
        ("openvino", "dataset", False),
        ("torch", "parity", False),
        ("torch", "dataset", True),
    ],
    ids=lambda param: "-".join(map(str, param)),
)
def detector(request):
    """A detector of a runtime in a mode, which may sample the images on its device."""
    library, mode, on_device = request.param
    if not importlib.util.find_spec(library):
        pytest.skip(f"needs {library}")
    made = Detector(library) if mode == "parity" else Detector.dataset(runtime=library)
    if on_device:
        from packer.vision.detect.torch_runtime import TorchRuntime

        made._runtime = TorchRuntime(build_networks(load_weights().nets), sample_on_device=True)
    return made


@examples(12)
@given(st.lists(shapes, min_size=1, max_size=3), st.sampled_from(sorted(CONTENTS)))
@example([(2000, 2000)], "faces")
@example([(1280, 563)], "black")
@example([(1, MAX_SIDE), (MAX_SIDE, 1), (1, 1)], "noise")
@example([(20, MAX_SIDE), (MAX_SIDE, 20), (57, MAX_SIDE), (MAX_SIDE, 57)], "faces")
@example([(1201, 1900), (2, 3), (331, 1000)], "faces")
def test_no_shape_makes_the_detector_fail(detector: Detector, batch: Sequence[Shape], content: str) -> None:
    images = [picture(shape, content) for shape in batch]
    found = detector.detect(images)
    assert len(found) == len(batch)
    assert found.offsets[0] == 0
    assert found.offsets[-1] == len(found.boxes) == len(found.scores) == len(found.points)
    assert (np.diff(found.offsets) >= 0).all()
    assert all(np.isfinite(values).all() for values in (found.boxes, found.scores, found.points))
    assert ((found.scores > 0.7) & (found.scores <= 1)).all()
    last = detector.detect(images[-1:])
    assert np.array_equal(last.boxes, found[-1].boxes)


def test_a_strip_of_faces_is_searched(detector: Detector) -> None:
    """The images above do hold faces, so all three networks take part."""
    assert len(detector.detect([picture((300, MAX_SIDE), "faces"), picture((MAX_SIDE, 260), "faces")]).boxes) > 15


@given(
    shape=st.tuples(st.integers(12, 90), st.integers(12, 90)),
    level=st.tuples(st.integers(12, 60), st.integers(12, 60)),
    cells=st.integers(1, 6),
    content=st.sampled_from(["noise", "faces"]),
)
def test_a_level_in_strips_has_the_cells_of_the_whole(
    detector: Detector, shape: Shape, level: Shape, cells: int, content: str
) -> None:
    """However few rows the last strip has: P-net's ceil mode gives them a row of cells from eleven pixels on."""
    frame = detector._runtime.open(picture(shape, content))
    whole = frame.propose(*level, -np.inf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "_STRIP_PIXELS", level[1] * (2 * cells + 12))
        strips = frame.propose(*level, -np.inf)
    assert len(whole[0]) == np.prod([(side - 11) // 2 + 1 for side in level])
    assert np.array_equal(strips[0], whole[0])
    assert np.array_equal(strips[1], whole[1])
    np.testing.assert_allclose(strips[2], whole[2], atol=1e-3)
