"""Application of transforms: a copy per thread, a generator per sample, and the layout of transformed values."""

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from types import MethodType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from readers.dataset.collate import as_array, check_dtype, layout_of_value, write_value
from readers.decode.values import BatchLayout, ValueLayout
from readers.order.order import SampledRows
from readers.seeding import sample_rngs
from readers.transforms import AnyTransform, call_transform, check_transform, is_seeded
from shardspec.errors import SchemaError, UsageError

CHUNK_ROWS = 16
"""Samples that are read together before they are transformed one by one: 16 images of 224 px fit into a CPU cache."""


_observed = threading.local()


@contextmanager
def observed(by: Callable[[Callable[[], dict[str, Any]]], dict[str, Any]]) -> Iterator[None]:
    """Let `by` call the transforms of samples that this thread reads meanwhile, those of all datasets down to the base."""
    _observed.by = by
    try:
        yield
    finally:
        _observed.by = None


class Chain:
    """A chain of transforms. Safe between threads: every thread but the first has its own copies.

    Transforms of libraries often keep state during a call; shared between threads, they would silently return wrong
    samples.

    Attributes
    ----------
    seeded : bool
        Whether a transform takes the sample's generator.
    """

    def __init__(self, transforms: Sequence[AnyTransform]) -> None:
        self._transforms = tuple(transforms)
        for transform in self._transforms:
            check_transform("transform", transform)
        self.seeded = any(is_seeded(t) for t in self._transforms)
        self._restore()

    def _restore(self) -> None:
        self._owner = threading.get_ident()
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {"_transforms": self._transforms, "seeded": self.seeded}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._restore()

    def __len__(self) -> int:
        return len(self._transforms)

    def then(self, transform: AnyTransform) -> "Chain":
        """Return a chain with one more transform at its end."""
        return Chain((*self._transforms, transform))

    def generators(self, picks: SampledRows) -> list[np.random.Generator | None]:
        """Return a generator for each sample, by its row in the base dataset; None if no transform takes one."""
        if not self.seeded:
            return [None] * len(picks)
        return list(sample_rngs(picks.seeds, picks.epoch, picks.rows))

    def __call__(
        self, sample: dict[str, Any], rng: np.random.Generator | None, image: npt.NDArray[Any] | None = None
    ) -> dict[str, Any]:
        """Return the transformed sample. The last transform may write its image into `image`, if that is given."""
        observe = getattr(_observed, "by", None)
        if observe is not None:
            transformed: dict[str, Any] = observe(lambda: self._call(sample, rng, image))
            return transformed
        return self._call(sample, rng, image)

    def _call(
        self, sample: dict[str, Any], rng: np.random.Generator | None, image: npt.NDArray[Any] | None
    ) -> dict[str, Any]:
        transforms = self._own()
        for transform in transforms:
            writes = image is not None and transform is transforms[-1] and is_seeded(transform)
            write = getattr(transform, "write_image", None) if writes else None
            sample = call_transform(transform, sample, rng) if write is None else write(sample, rng, image)
        return sample

    def _own(self) -> tuple[AnyTransform, ...]:
        if threading.get_ident() == self._owner:
            return self._transforms
        found: tuple[AnyTransform, ...] | None = getattr(self._local, "transforms", None)
        if found is None:
            found = self._local.transforms = tuple(_copy(t) for t in self._transforms)
        return found


GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
"""Random generators that transforms and samplers may contain."""


def _copy(transform: AnyTransform) -> AnyTransform:
    """Copy a transform for a thread, with new random generators, so that no two copies draw the same numbers."""
    found = objects_in(transform, GENERATORS, set())
    return deepcopy(transform, {id(generator): fresh_generator(generator) for generator in found})


def objects_in(value: Any, kinds: tuple[type, ...], seen: set[int]) -> Iterator[Any]:
    """Yield the objects of some kinds in a value: itself, or inside its attributes, lists, tuples, dicts and sets."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, kinds):
        yield value
        return
    if isinstance(value, dict):
        parts: Iterable[Any] = list(value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        parts = list(value)
    elif isinstance(value, MethodType):
        parts = [value.__self__]
    elif isinstance(value, partial):
        parts = [value.func, value.args, value.keywords]
    else:
        parts = list(getattr(value, "__dict__", {}).values()) if not isinstance(value, type | ModuleType) else ()
    for part in parts:
        yield from objects_in(part, kinds, seen)


def fresh_generator(generator: Any, seed: int | None = None) -> Any:
    """Return a generator of the same kind, with a 64-bit seed, or seeded by the system."""
    if isinstance(generator, np.random.Generator):
        return np.random.Generator(type(generator.bit_generator)(seed))
    if isinstance(generator, torch.Generator):
        fresh = torch.Generator(generator.device)
        fresh.seed() if seed is None else fresh.manual_seed(seed)
        return fresh
    return type(generator)(seed & 0xFFFFFFFF if seed is not None else None)


def rows_of(columns: dict[str, Any], start: int, stop: int) -> Iterator[dict[str, Any]]:
    """Yield the rows start … stop-1 of a batch as samples: views of its arrays, and numpy scalars for 0-d fields."""
    for i in range(start, stop):
        yield {name: column[i] for name, column in columns.items()}


def probe_layout(
    raw: BatchLayout, inputs: list[dict[str, tuple[int, ...] | None]], outputs: list[dict[str, Any]]
) -> BatchLayout:
    """Return the layout of transformed values in a batch, judged by a few transformed samples.

    A field with the same shape in all samples is stacked. The exception is a field whose shape varies in the dataset,
    if the transform has kept its shape, or its length in time.

    Parameters
    ----------
    raw : BatchLayout
        Layout before the transform.
    inputs : list of dict
        Shapes of the arrays of each sample before the transform.
    outputs : list of dict
        Samples after the transform.
    """
    layout: dict[str, ValueLayout] = {}
    for name, first in outputs[0].items():
        before = raw.get(name)
        value = layout_of_value(first, image=before is not None and before.image)
        shapes = [layout_of_value(sample.get(name)).shape for sample in outputs]
        stored = [sample.get(name) for sample in inputs]
        varied = before is not None and before.shape is None
        untouched = varied and shapes == stored
        time = "" if before is None else before.time
        as_long = time != "" and [s and s[0] for s in shapes] == [s and s[0] for s in stored]
        same = all(shape == shapes[0] for shape in shapes)
        encoded = before is not None and before.encoded and untouched
        stacks = same and not untouched and not as_long
        layout[name] = value if stacks else ValueLayout(None, None, value.image, encoded, time)
    return layout


def check_sample(sample: Any) -> None:
    """Check that a batch can be made of a sample: a dict, whose arrays torch can convert."""
    if not isinstance(sample, dict):
        raise UsageError(option="transform", expected="a dict of the sample's fields", found=type(sample).__name__)
    for name, value in sample.items():
        check_dtype(name, value)


def store(
    sample: dict[str, Any],
    out: dict[str, Any],
    place: int,
    layout: BatchLayout,
    image: npt.NDArray[Any] | None = None,
) -> None:
    """Copy a transformed sample into its place in a batch. An image that is already there (`image`) is not copied."""
    check_sample(sample)
    if sample.keys() != layout.keys():
        raise SchemaError(
            place="transform", expected=f"the fields {', '.join(layout)} in every sample", found=", ".join(sample)
        )
    for name, value in sample.items():
        if image is not None and value is image:
            continue
        expected = layout[name]
        if expected.shape is not None:
            write_value(name, value, out[name], place, expected, "the samples tried first")
        elif isinstance(value, np.ndarray | torch.Tensor):
            out[name][place] = as_array(value).copy()
        else:
            out[name][place] = value
