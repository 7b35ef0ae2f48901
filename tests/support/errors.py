"""Errors by their data, so that tests do not depend on the wording of a sentence."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def raises(kind: type[BaseException], **data: Any) -> Iterator["pytest.ExceptionInfo[Any]"]:
    """Expect an error with the given `option`, `place`, `expected`, `found` or `hint`.

    Of an error with one problem alone, the data of that problem.
    """
    with pytest.raises(kind) as caught:
        yield caught
    problems = getattr(caught.value, "problems", ())
    error = problems[0] if len(problems) == 1 else caught.value
    assert {name: getattr(error, name) for name in data} == data
