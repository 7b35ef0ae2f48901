"""Golden files of messages: expressions of Python that are wrong calls, each with the error that it raises."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

PROMPT = ">>> "
LONGEST = 800
"""Characters of a message, at most."""


def check_messages(path: Path, names: Mapping[str, Any], places: Mapping[str, str]) -> None:
    """Evaluate the expressions of a golden file, and compare the errors with those in the file.

    Parameters
    ----------
    path : Path
        The file. With ``UPDATE_MESSAGES=1`` in the environment, it is written again.
    names : mapping
        Names that the expressions may use.
    places : mapping
        Texts to replace in messages, such as temporary folders, by what the file has in their place.
    """
    expected = path.read_text("utf-8")
    shown = []
    for line in expected.splitlines():
        if line.startswith(PROMPT):
            with pytest.raises(Exception) as caught:  # noqa: PT011 -- its kind and text are compared
                eval(line.removeprefix(PROMPT), dict(names))
            error = f"{caught.type.__name__}: {caught.value}"
            assert len(error) < LONGEST, line
            for place, name in places.items():
                error = error.replace(place, name)
            shown.append(f"{line}\n{re.sub('0x[0-9a-f]+', '0x...', error)}\n")
    written = "\n".join(shown)
    if os.environ.get("UPDATE_MESSAGES"):
        path.write_text(written, "utf-8")
        return
    assert written == expected
