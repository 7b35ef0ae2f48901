"""What tests of batches compare."""

from collections.abc import Iterable
from typing import Any

import numpy as np


def keys_of(batches: Iterable[dict[str, Any]]) -> list[str]:
    """The keys of all samples, in order."""
    return [key for batch in batches for key in batch["key"]]


def error_of(batches: Iterable[Any]) -> Exception:
    """What reading batches raises, without its traceback.

    A traceback keeps a DataLoader's iterator until a garbage collection, in which its worker processes end only after
    five seconds.
    """
    try:
        for _ in batches:
            pass
    except Exception as error:
        return error.with_traceback(None)
    raise AssertionError("nothing was raised")


def woven(ranks: Iterable[Iterable[str]]) -> list[str]:
    """The samples of all ranks in the order of the whole sequence."""
    return [key for step in zip(*ranks, strict=True) for key in step]


class Noise:
    """A seeded transform that shows what it drew."""

    seeded = True

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {**sample, "drawn": np.float64(rng.random())}
