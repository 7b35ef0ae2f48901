import errno
import os

import numpy as np
import pytest

from shardspec.columns import evenly
from shardspec.errors import system_reason


@pytest.mark.parametrize("rows", [*range(12), 1000, 10**9])
@pytest.mark.parametrize("most", [0, 1, 2, 3, 7, 2000])
def test_evenly_returns_distinct_rows_from_first_to_last(rows: int, most: int) -> None:
    found = evenly(rows, most).tolist()
    assert len(found) == min(rows, most)
    assert found == sorted(set(found))
    assert found[:1] == [0][: len(found)]
    if len(found) > 1:
        assert found[-1] == rows - 1
        assert np.ptp(np.diff(found)) <= 1


def test_a_system_error_always_has_a_reason() -> None:
    assert system_reason(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/a/file")) == os.strerror(errno.ENOSPC)
    assert system_reason(OSError("broken pipe of ours")) == "broken pipe of ours"
    assert system_reason(OSError()) == "OSError"
