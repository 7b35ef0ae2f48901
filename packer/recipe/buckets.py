"""The shapes of ``--buckets``, and which of them an image gets."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from shardspec.errors import UsageError
from shardspec.wording import shorten

_SHAPE = re.compile(r"([0-9]+)x([0-9]+)\Z")
_RULE = {"area": re.compile(r"([0-9]+)(?:²|\^2)?\Z"), "step": re.compile(r"([0-9]+)\Z")}
_RULE["max-ratio"] = re.compile(r"([0-9]+(?:\.[0-9]+)?)\Z")
_DEFAULTS = {"step": 64.0, "max-ratio": 2.0}
_MOST = 1000
"""Most shapes, and so most smaller batches in an epoch."""


class Bucket(NamedTuple):
    """A shape in pixels."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


def parse_buckets(text: str, largest: int) -> tuple[Bucket, ...]:
    """Parse ``512x512,448x576`` (width x height), or a rule such as ``area=512²,step=64,max-ratio=2``.

    The shapes of a rule have sides that are multiples of `step`, at most the given area (a side squared), and sides
    whose ratio is at most `max-ratio`: for each width the largest height, as ``make_bucket_resolutions`` of
    github.com/kohya-ss/sd-scripts has them.

    Parameters
    ----------
    largest : int
        Largest side in pixels.

    Raises
    ------
    UsageError
        If the text has another form, or describes no shape.
    """
    parts = [part.strip() for part in text.split(",")]
    if any("=" in part for part in parts):
        shapes = _shapes_of_rule(parts, largest)
    else:
        matches = [_SHAPE.match(part) for part in parts]
        shapes = [Bucket(int(match[1]), int(match[2])) for match in matches if match is not None]
        wrong = next((part for part, match in zip(parts, matches, strict=True) if match is None), None)
        if wrong is not None:
            raise _refuse("shapes such as 512x512,448x576, or area=512²,step=64,max-ratio=2", shorten(wrong))
    wrong = next((str(shape) for shape in shapes if not 1 <= min(shape) <= max(shape) <= largest), None)
    if wrong is not None:
        raise _refuse(f"sides of 1 to {largest} pixels", wrong)
    if not 1 <= len(set(shapes)) <= _MOST:
        raise _refuse(f"1 to {_MOST} shapes", f"{len(set(shapes))} for {shorten(text)}")
    return tuple(sorted(set(shapes)))


def _shapes_of_rule(parts: Sequence[str], largest: int) -> list[Bucket]:
    values = dict(_DEFAULTS)
    for part in parts:
        name, _, value = part.partition("=")
        match = _RULE[name].match(value) if name in _RULE else None
        if match is None:
            raise _refuse("area=SIDE², step=PIXELS and max-ratio=NUMBER", shorten(part))
        values[name] = float(match[1])
    if "area" not in values:
        raise _refuse("area=SIDE², such as area=512²", ", ".join(parts))
    side, step, ratio = int(values["area"]), int(values["step"]), values["max-ratio"]
    if not (1 <= step <= side <= largest and ratio >= 1):
        raise _refuse(f"step of 1 to SIDE, SIDE of at most {largest} and max-ratio of at least 1", ", ".join(parts))
    square = side // step * step
    shapes = [Bucket(square, square)]
    for width in range(step, int(math.sqrt(ratio) * side) // step * step + 1, step):
        height = side * side // width // step * step
        if height and max(width, height) <= ratio * min(width, height):
            shapes += [Bucket(width, height), Bucket(height, width)]
    return shapes


def nearest_bucket(buckets: Sequence[Bucket], width: int, height: int) -> Bucket:
    """Return the shape for which the least share of an image is cropped when the image is scaled to cover it.

    That is the shape with the nearest ratio of sides, on a logarithmic scale. Of shapes with one ratio, it is the
    largest that needs no enlarging, or else the smallest. Trainers compare the ratios themselves (NovelAI's "Aspect
    Ratio Bucketing", 2022; sd-scripts), which crops slightly more.
    """

    def key(bucket: Bucket) -> tuple[float, bool, int]:
        wide, high = width * bucket.height, height * bucket.width
        enlarges = bucket.width > width or bucket.height > height
        area = bucket.width * bucket.height
        return max(wide, high) / min(wide, high), enlarges, area if enlarges else -area

    return min(buckets, key=key)


def _refuse(expected: str, found: str) -> UsageError:
    return UsageError(option="buckets", expected=expected, found=found)
