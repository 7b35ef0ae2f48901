"""Custom orders of a `Loader`, and torch samplers as functions of (epoch, seed)."""

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from readers.dataset.chain import GENERATORS, fresh_generator, objects_in
from readers.order.custom import CustomOrder, RowsOfEpoch, take_finite
from readers.order.progress import Resumable
from readers.order.shuffle_choice import AnyShuffle
from readers.seeding import mix_words
from shardspec.errors import UsageError
from shardspec.wording import shorten

_SAMPLER_TAG = 0x73616D706C6572


def choose_custom(
    samples: int,
    seed: int,
    batch_size: int | None,
    order: RowsOfEpoch | None,
    sampler: Iterable[int] | None,
    batch_sampler: Iterable[Sequence[int]] | None,
    shuffle: AnyShuffle = "auto",
    weights: npt.ArrayLike | None = None,
    draws: int | None = None,
) -> tuple[CustomOrder, int]:
    """Return the custom order that the arguments describe, and the batch size (of the largest batch)."""
    given = {"order": order, "sampler": sampler, "batch_sampler": batch_sampler}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise UsageError(option="order, sampler, batch_sampler", expected="one of them", found=" and ".join(names))
    if batch_sampler is not None and batch_size is not None:
        raise UsageError(
            option="batch_size", expected="none with batch_sampler=, which makes the batches", found=batch_size
        )
    if sampler is not None and batch_size is None:
        raise UsageError(option="batch_size", expected="the number of samples of a batch with sampler=", found="none")
    if order is None:
        (name,) = names
        order = TorchSampler(name, given[name], samples)
    own = CustomOrder(samples, order, seed, batched=batch_size is None)
    first = own.epoch(0)  # report errors now
    if shuffle not in ("auto", False) or weights is not None or draws is not None:
        raise UsageError(
            option="shuffle, weights, draws",
            expected="none with a custom order (order=, sampler= or batch_sampler=), which replaces them",
            found="one",
            hint="leave it out",
        )
    return own, first.largest if batch_size is None else batch_size


class TorchSampler:
    """A torch sampler as a function of (epoch, seed).

    Every epoch iterates over a copy of the original sampler. All random generators that it holds, and the global ones
    of torch, numpy and Python, are seeded by (seed, epoch). The global ones are restored afterwards.

    Parameters
    ----------
    name : str
        Name of the argument, for messages.
    sampler : iterable
        Yields rows, or batches of them. Its ``set_epoch`` is called, if it has one.
    samples : int
        Rows of the dataset.
    """

    seeded: Literal[True] = True

    def __init__(self, name: str, sampler: Any, samples: int) -> None:
        if not isinstance(sampler, Iterable) or isinstance(sampler, Iterator | str | bytes):
            raise UsageError(
                option=name, expected="a sampler, which can be iterated over again", found=shorten(sampler)
            )
        parts = list(objects_in(sampler, (Resumable,), set()))
        if parts:
            raise UsageError(
                option=name,
                expected="a sampler that does not count samples itself",
                found=type(parts[0]).__name__,
                hint="give its seed, shuffle and weights to the Loader",
            )
        divided = [sampler, getattr(sampler, "sampler", None)]
        if any(isinstance(n := getattr(part, "num_replicas", 1), int) and n > 1 for part in divided):
            raise UsageError(
                option=name,
                expected="a sampler of all samples, since the Loader gives each rank its share",
                found="one that is divided by ranks",
                hint="leave it out, or make it with num_replicas=1, rank=0",
            )
        self._samples = samples
        self._sampler = sampler
        self._kept = self._copy(None)

    def _copy(self, seed: int | None) -> Any:
        """Copy the sampler but not the datasets that it refers to; with `seed`, its generators are seeded."""
        memo: dict[int, Any] = {}
        for number, part in enumerate(objects_in(self._sampler if seed is None else self._kept, _APART, set())):
            if isinstance(part, Dataset):
                memo[id(part)] = part
            elif seed is not None:
                memo[id(part)] = fresh_generator(part, mix_words(seed, number))
            elif isinstance(part, torch.Generator):  # deepcopy cannot copy it
                memo[id(part)] = fresh_generator(part)
        return deepcopy(self._sampler if seed is None else self._kept, memo)

    def __call__(self, epoch: int, seed: int) -> list[Any]:
        """Return the rows of an epoch, or its batches."""
        key = mix_words(seed, epoch, _SAMPLER_TAG)
        sampler = self._copy(key)
        with _seeded_globally(key):
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(epoch)
            return take_finite(sampler, self._samples)


_APART = (*GENERATORS, Dataset)


@contextmanager
def _seeded_globally(key: int) -> Iterator[None]:
    """Seed the global generators of torch, numpy and Python, and restore them at the end."""
    numpys, pythons = np.random.get_state(), random.getstate()  # noqa: NPY002 # samplers draw from it
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key)
        np.random.seed(key & 0xFFFFFFFF)  # noqa: NPY002 # samplers draw from it
        random.seed(key)
        try:
            yield
        finally:
            np.random.set_state(numpys)  # noqa: NPY002 # samplers draw from it
            random.setstate(pythons)
