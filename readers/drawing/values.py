"""Format values of fields for pages, captions and notebooks."""

from collections.abc import Sequence
from typing import Any

import numpy as np

LONGEST = 2000
"""Largest number of characters of a text."""

_NUMBERS = 12
_ONE_BY_ONE = 1000
"""Largest number of elements of an array whose numbers are shown."""


def describe_value(value: Any, classes: Sequence[str] | None = None, *, longest: int = LONGEST) -> str:
    """Format a value: a class by its name, a number with few digits, an array by its first numbers and its shape.

    Parameters
    ----------
    value : text, bytes, number, array or other object
    classes : sequence of str, optional
        Names of the values 0, 1, …
    longest : int
        Number of characters after which a text is cut.
    """
    if isinstance(value, str):
        return printable(value, longest)
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if not isinstance(value, np.ndarray | np.generic | bool | int | float):
        return printable(repr(value), longest)
    array = np.asarray(value)
    if array.ndim == 0:
        number = array.item()
        if classes is not None and type(number) is int and 0 <= number < len(classes):
            return printable(classes[number], longest)
        return f"{number:.5g}" if isinstance(number, float) else printable(str(number), longest)
    shape = " × ".join(map(str, array.shape))
    if array.dtype.kind not in "biuf" or array.size > _ONE_BY_ONE:
        return f"{array.dtype} {shape}"
    numbers = ", ".join(f"{number:.5g}" for number in np.ravel(array)[:_NUMBERS].astype(np.float64).tolist())
    return f"{numbers}{', …' if array.size > _NUMBERS else ''} ({shape})"


def printable(text: str, longest: int = LONGEST) -> str:
    """Make a text encodable as UTF-8, and cut it if it is too long."""
    shown = text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"
    return shown.encode("utf-8", "replace").decode()
