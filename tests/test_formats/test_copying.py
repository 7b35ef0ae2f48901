"""Copies of many rows: every row in its place, by OpenCV or without it, into whatever memory the batch has."""

import numpy as np
import pytest

from readers.decode.values import ValueLayout, empty_aligned
from readers.formats import copying
from readers.formats.copying import copy_rows
from readers.loader.batches import Ring


@pytest.fixture(params=["opencv", "without"])
def _either(request, monkeypatch):
    if request.param == "without":
        monkeypatch.setattr(copying, "cv2", None)
    elif copying.cv2 is None:
        pytest.skip("needs OpenCV")


@pytest.mark.usefixtures("_either")
@pytest.mark.parametrize("dtype", ["<u1", "<f4", "<i8", "?"])
@pytest.mark.parametrize("at", [[0], [3, 1, 2], [5, 0, 3], []])
def test_every_row_comes_to_its_place(dtype, at):
    rng = np.random.default_rng(0)
    rows = (rng.random((len(at), 40, 7)) * 200).astype(dtype)
    rows.flags.writeable = False
    out = np.ones((6, 40, 7), dtype)
    expected = out.copy()
    expected[at] = rows
    copy_rows(list(rows), out, np.array(at, np.int64))
    assert np.array_equal(out, expected)


@pytest.mark.usefixtures("_either")
def test_other_dtypes_and_shapes_follow_numpys_rules():
    rows = [np.full((4, 4), i, np.uint8) for i in range(3)]
    out = np.zeros((3, 4, 4), np.float32)
    copy_rows(rows, out, np.arange(3))
    assert out[:, 0, 0].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="broadcast"):
        copy_rows(rows, np.zeros((3, 5, 5), np.uint8), np.arange(3))


@pytest.mark.parametrize("shape", [(100,), (3, 1000, 1000), (300, 300, 300)])
@pytest.mark.parametrize("begin", [0, 16])
def test_memory_begins_where_it_was_asked_for_and_can_be_written(shape, begin):
    array = empty_aligned(shape, np.dtype(np.uint8), begin)
    assert array.ctypes.data % 64 == begin
    array[...] = 7
    assert array.shape == shape
    assert int(array.min()) == int(array.max()) == 7


def test_a_ring_of_large_buffers_reuses_them_and_keeps_what_is_held():
    layout = {"image": ValueLayout((1200, 1200, 3), np.dtype(np.uint8), True)}
    ring = Ring(8, 2)
    first = ring.take(layout, 8)["image"]
    first[...] = 1
    held = first[3]
    second = ring.take(layout, 8)["image"]
    second[...] = 2
    assert int(held.max()) == 1
    place = first.ctypes.data
    del first, held
    assert ring.take(layout, 5)["image"].ctypes.data == place
