"""The ratios of a split, as they are given. `shardspec.splits` says which group goes where."""

import math
from collections.abc import Mapping

from shardspec.errors import UsageError
from shardspec.schema import NAME

_TOLERANCE = 1e-6


def parse_ratios(text: str) -> dict[str, float]:
    """Ratios from ``"train=0.8,val=0.1,test=0.1"``; whole numbers that add up to 100 are percents.

    Raises
    ------
    UsageError
    """
    ratios: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        try:
            value = float(number)
        except ValueError:
            raise UsageError(f"ratios: expected train=0.8,val=0.1,test=0.1, found {part!r} in {text!r}") from None
        if name.strip() in ratios:
            raise UsageError(f"ratios: expected every split once, found {name.strip()!r} twice")
        ratios[name.strip()] = value
    return check_ratios(ratios)


def check_ratios(ratios: Mapping[str, float]) -> dict[str, float]:
    """The ratios, adding up to 1.

    Raises
    ------
    UsageError
        A name is no plain word, a ratio is not above 0, or they add up to neither 1 nor 100.
    """
    wrong = [name for name in ratios if not NAME.match(name)]
    if wrong or len(ratios) < 2:
        found = ", ".join(map(repr, wrong or ratios))
        raise UsageError(f"ratios: expected two splits or more, named in lower-case letters, found {found or 'none'}")
    if not all(math.isfinite(ratio) and ratio > 0 for ratio in ratios.values()):
        raise UsageError(f"ratios: expected numbers above 0, found {dict(ratios)}")
    total = sum(ratios.values())
    for whole in (1, 100):
        if abs(total - whole) <= whole * _TOLERANCE:
            return {name: ratio / whole for name, ratio in ratios.items()}
    raise UsageError(f"ratios: expected numbers that add up to 1 (or to 100), found {total:g}")
