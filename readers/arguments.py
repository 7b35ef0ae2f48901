"""Checks of what a caller gives, for constructors: the value as it is used from there on, or an error that names the argument."""

from operator import index
from os import fspath
from pathlib import Path
from typing import Any

from shardspec.errors import UsageError


def as_integer(name: str, value: Any) -> int:
    """An integer of Python's, of whichever library's kind it was given as.

    Raises
    ------
    UsageError
        It is none; a bool is none either.
    """
    try:
        if not isinstance(value, bool):
            return index(value)
    except TypeError:
        pass
    raise UsageError(f"{name}: expected an integer, found {value!r}")


def as_count(name: str, value: Any, least: int = 1, unit: str = "") -> int:
    """An integer that is no less than `least`.

    Parameters
    ----------
    unit : str
        What is counted, in the number that fits `least`, for the message.

    Raises
    ------
    UsageError
    """
    number = as_integer(name, value)
    if number < least:
        raise UsageError(f"{name}: expected {f'{least} {unit}'.strip()} or more, found {number}")
    return number


def as_number(name: str, value: Any) -> float:
    """A number as a float.

    Raises
    ------
    UsageError
        It is none; text that spells one is none either.
    """
    try:
        if not isinstance(value, str | bytes | bool):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise UsageError(f"{name}: expected a number, found {value!r}")


def as_pair(name: str, value: Any) -> tuple[float, float]:
    """Two numbers.

    Raises
    ------
    UsageError
    """
    try:
        low, high = value
    except (TypeError, ValueError):
        raise UsageError(f"{name}: expected two numbers, found {value!r}") from None
    return as_number(name, low), as_number(name, high)


def as_range(user: str, name: str, value: Any) -> tuple[float, float]:
    """The least and the largest share of something, of what a transform is to draw between.

    Raises
    ------
    UsageError
        They are not above 0, at most 1, and in this order.
    """
    least, most = as_pair(f"{user}: {name}", value)
    if not 0 < least <= most <= 1:
        raise UsageError(f"{user}: expected {name}s (least, largest) above 0 and at most 1, found {value}")
    return least, most


def as_probability(user: str, value: Any) -> float:
    """A transform's ``p``.

    Raises
    ------
    UsageError
        It is no number from 0 to 1.
    """
    p = as_number(f"{user}: p", value)
    if not 0 <= p <= 1:
        raise UsageError(f"{user}: expected a probability p from 0 to 1, found {value}")
    return p


def as_path(name: str, value: Any) -> Path:
    """A path of the file system.

    Raises
    ------
    UsageError
        It is none.
    """
    try:
        return Path(fspath(value))
    except TypeError:
        raise UsageError(f"{name}: expected a path, found {value!r}") from None
