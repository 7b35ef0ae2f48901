"""The value of one option: taken as Python's own, and checked."""

import math
from collections.abc import Collection, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

from shardspec.problems import Problems
from shardspec.suggest import did_you_mean


def plain_value(value: Any, choices: Collection[Any] = ()) -> Any:
    """The value as Python's own type, as JSON and the plan's fingerprint hold it: numpy's numbers, and numbers that name a choice.

    Parameters
    ----------
    value : object
        As it was given.
    choices : collection
        Those of the option; none where any value of its type may be.
    """
    if isinstance(value, np.bool_ | np.str_):
        return value.item()
    if isinstance(value, bool):  # which is an integer, too, and is meant for none
        return value
    if isinstance(value, Integral):
        number = int(value)
        return str(number) if str(number) in choices else number
    if isinstance(value, Real):
        return float(value)
    return value


def check_value(name: str, value: Any, kinds: Collection[type], meta: Mapping[str, Any], problems: Problems) -> None:
    """Check one plain value against its types, choices and range.

    Parameters
    ----------
    name : str
        The option's.
    value : object
    kinds : collection of type
        Types that the option may have; none where it is checked elsewhere.
    meta : mapping
        Of the option: ``choices``, ``minimum``, ``maximum`` and ``above``, where it has them.
    problems : Problems
        Told of what is wrong.
    """
    if value is None:
        if type(None) not in kinds:
            problems.add(name, "expected a value, found none")
        return
    if float in kinds and type(value) is int:
        value = float(value)
    if kinds and type(value) not in kinds:
        problems.add(name, f"expected {' or '.join(k.__name__ for k in kinds if k is not type(None))}, found {value!r}")
        return
    if isinstance(value, float) and not math.isfinite(value):
        problems.add(name, f"expected a finite number, found {value!r}")
        return
    if isinstance(value, str) and not value.isascii() and value != value.encode("utf-8", "replace").decode():
        problems.add(name, f"expected text that UTF-8 can spell, found {value!r}")
    if "choices" in meta and value not in meta["choices"]:
        like = did_you_mean(str(value), meta["choices"])
        problems.add(name, f"expected one of {', '.join(meta['choices'])}, found {value!r}{like}")
    low, high, above = meta.get("minimum"), meta.get("maximum"), meta.get("above")
    if low is not None and not value >= low:
        problems.add(name, f"expected {low} or more, found {value!r}")
    if high is not None and not value <= high:
        problems.add(name, f"expected {high} or less, found {value!r}")
    if above is not None and not value > above:
        problems.add(name, f"expected more than {above}, found {value!r}")
