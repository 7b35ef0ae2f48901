"""Which group goes into which split: a pure function of the groups' sizes, the ratios and a seed."""

import hashlib
import math
from collections.abc import Mapping, Sequence

from shardspec.errors import UsageError
from shardspec.plurals import counted
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


def assign_groups(names: Sequence[str], sizes: Sequence[int], ratios: Mapping[str, float], seed: int) -> list[str]:
    """The split of each group.

    Large groups go first, each to the split that lacks most samples; so the small ones even out what the large ones leave, and
    the ratios are met as closely as whole groups allow, far closer than by a hash of each group alone. Among groups whose sizes
    have the same number of binary digits the order is that of SHA-256 of (seed, name): another seed gives another split. No split stays empty.

    Parameters
    ----------
    names : sequence of str
        Different from one another. Their order does not matter.
    sizes : sequence of int
        Samples of each group.
    ratios : dict of str to float
        Adding up to 1.

    Returns
    -------
    list of str
        A key of `ratios` for each group.

    Raises
    ------
    UsageError
        There are fewer groups than splits.
    """
    if len(names) < len(ratios):
        raise UsageError(
            f"expected as many groups as splits or more, found {counted(len(names), 'group')} for {len(ratios)} splits: "
            "split by a field with more values"
        )
    total = sum(sizes)
    lacking = {name: ratio * total for name, ratio in ratios.items()}
    empty = set(ratios)
    chosen = [""] * len(names)
    order = sorted(range(len(names)), key=lambda group: (-sizes[group].bit_length(), _draw(seed, names[group])))
    for position, group in enumerate(order):
        must_fill = len(order) - position <= len(empty)
        split = max((name for name in ratios if name in empty or not must_fill), key=lacking.__getitem__)
        empty.discard(split)
        lacking[split] -= sizes[group]
        chosen[group] = split
    return chosen


def _draw(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed}/{name}".encode("utf-8", "surrogateescape")).digest()
