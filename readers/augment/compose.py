"""Chains of transforms, and random choices between transforms."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from readers.arguments import as_probability
from readers.transforms import AnyTransform, call_transform, check_transform
from shardspec.errors import UsageError
from shardspec.wording import shorten

Sample = dict[str, Any]


class Compose:
    """Call transforms one after the other with the same generator (`readers.transforms.SeededTransform`).

    Parameters
    ----------
    transforms : sequence of callable
        Seeded transforms get the sample and the generator. Others get the sample alone, so their draws are not
        repeatable.
    """

    seeded = True

    def __init__(self, transforms: Sequence[AnyTransform]) -> None:
        self.transforms = _checked(transforms, "Compose")
        self._runs = list(_runs(self.transforms))

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample after the last transform."""
        return self.write_image(sample, rng, None)

    def write_image(self, sample: Sample, rng: np.random.Generator, out: npt.NDArray[Any] | None) -> Sample:
        """Return the sample after the last transform, which may write its image into `out`."""
        for run in self._runs:
            together = getattr(run[0], "together", None)
            if together is None:
                sample = call_transform(run[0], sample, rng)
            else:
                sample = together(run, sample, rng, out if run is self._runs[-1] else None)
        return sample

    def __repr__(self) -> str:
        return f"Compose([{', '.join(map(repr, self.transforms))}])"


class OneOf:
    """Draw one of several transforms and call it (`readers.transforms.SeededTransform`).

    Parameters
    ----------
    transforms : sequence of callable
        As for `Compose`. Their own `p` counts as well: pass ``p=1`` to those that should always act.
    weights : sequence of float or None
        Relative probability of each transform, 0 or more; None draws all equally often.
    p : float, in [0, 1]
        Probability that a transform is drawn at all.
    """

    seeded = True

    def __init__(
        self, transforms: Sequence[AnyTransform], weights: Sequence[float] | None = None, p: float = 1.0
    ) -> None:
        self.transforms = _checked(transforms, "OneOf")
        shares = np.asarray([1.0] * len(self.transforms) if weights is None else weights, np.float64)
        if shares.shape != (len(self.transforms),) or not (shares >= 0).all() or not 0 < shares.sum() < np.inf:
            raise UsageError(
                place="OneOf",
                expected=f"{len(self.transforms)} weights of 0 or more, not all 0",
                found=shorten(weights),
            )
        self.p = as_probability("OneOf", p)
        self.weights = tuple((shares / shares.sum()).tolist())
        self._edges = np.cumsum(shares)[:-1] / shares.sum()

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample after the drawn transform."""
        acts, which = rng.random(2)
        if acts >= self.p:
            return sample
        return call_transform(self.transforms[int(np.searchsorted(self._edges, which, side="right"))], sample, rng)

    def __repr__(self) -> str:
        return f"OneOf([{', '.join(map(repr, self.transforms))}], weights={list(self.weights)}, p={self.p})"


def _runs(transforms: Sequence[AnyTransform]) -> Iterator[tuple[AnyTransform, ...]]:
    """Group neighbours that one call can apply together (`readers.augment.pixels.canvas.PixelTransform`)."""
    for together, run in groupby(transforms, lambda transform: getattr(transform, "together", None)):
        if together is None:
            yield from ((transform,) for transform in run)
        else:
            yield tuple(run)


def _checked(transforms: Sequence[AnyTransform], user: str) -> tuple[AnyTransform, ...]:
    if not isinstance(transforms, Iterable):
        raise UsageError(
            place=user, expected="a list of transforms", found=shorten(transforms), hint=f"write {user}([…])"
        )
    chain = tuple(transforms)
    for transform in chain:
        check_transform(user, transform)
    if not chain:
        raise UsageError(place=user, expected="one transform or more", found="none")
    return chain
