"""Steps that the tests of packed sources name as ``support.steps_over_packed:function``."""

from collections.abc import Iterator
from typing import Any


def mirror_twice(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each sample as it is, and once more upside down."""
    for sample in samples:
        yield sample
        yield {**sample, "image": sample["image"][::-1]}


def blacken(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Write into the image itself."""
    for sample in samples:
        sample["image"][:] = 0
        yield sample


def mean_level(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The mean of the image as a field; images of an odd frame number give nothing."""
    for sample in samples:
        if sample["frame"] % 20 == 0:
            yield {**sample, "level": float(sample["image"].mean())}
        else:
            sample["_report"].skip(sample["frame"], "odd")
