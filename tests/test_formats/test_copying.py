"""Copies of many rows: every row in its place, by OpenCV or without it, into whatever memory the batch has."""

import numpy as np
import pytest

from readers.formats import pool
from readers.formats.pool import copy_rows


@pytest.fixture(params=["opencv", "without"])
def _either(request, monkeypatch):
    if request.param == "without":
        monkeypatch.setattr(pool, "cv2", None)
    elif pool.cv2 is None:
        pytest.skip("needs OpenCV")


@pytest.mark.usefixtures("_either")
@pytest.mark.parametrize("dtype", ["<u1", "<f4", "<i8", "?"])
@pytest.mark.parametrize("at", [[0], [3, 1, 2], [5, 0, 3], []])
def test_rows_are_returned_in_the_requested_order(dtype, at):
    rng = np.random.default_rng(0)
    rows = (rng.random((len(at), 40, 7)) * 200).astype(dtype)
    rows.flags.writeable = False
    out = np.ones((6, 40, 7), dtype)
    expected = out.copy()
    expected[at] = rows
    copy_rows(list(rows), out, np.array(at, np.int64))
    assert np.array_equal(out, expected)
