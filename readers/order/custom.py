"""Custom orders: a function of the epoch returns the rows to visit, or whole batches of them."""

from collections.abc import Callable, Iterable
from hashlib import blake2b
from itertools import islice
from typing import Any

import numpy as np

from readers.order.order import SampledRows, count_occurrences
from readers.seeding import check_epoch, check_seed
from shardspec.columns import IntArray
from shardspec.errors import UsageError
from shardspec.wording import shorten, span

RowsOfEpoch = Callable[..., Any]
"""Called with the epoch, or with (epoch, seed) if it has an attribute ``seeded = True``."""

_MOST_TIMES = 1000
"""An epoch that takes each row more often than this on average is assumed to be endless."""
_LEAST_BOUND = 1 << 20


class CustomOrder:
    """The sequences that a function returns. It counts rows, or batches if the function returns batches.

    Parameters
    ----------
    samples : int
        Rows of the dataset.
    rows_of : callable
        Function of the epoch, or of (epoch, seed) if its attribute ``seeded`` is True. Returns rows, (n,), or batches
        of one row or more; the same for the same arguments, on every rank. If it has an attribute ``dataset_rows``,
        the number of rows that it was made for, it must be that of the dataset.
    seed : int
        Seed of the samples' draws.
    batched : bool
        Whether the function returns batches, which ranks do not divide.
    """

    takes_shuffle = False
    name = "custom"

    def __init__(self, samples: int, rows_of: RowsOfEpoch, seed: int, batched: bool) -> None:
        if not callable(rows_of):
            raise UsageError(
                option="order", expected="a function of the epoch that returns rows", found=shorten(rows_of)
            )
        made_for = getattr(rows_of, "dataset_rows", samples)
        if made_for != samples:
            raise UsageError(
                option="order",
                expected=f"columns of the dataset that is read, of {samples} rows",
                found=f"{type(rows_of).__name__} of {made_for} rows",
                hint=f"make it of that dataset: {type(rows_of).__name__}(dataset, ...)",
            )
        self.samples = samples
        self.seed = check_seed(seed)
        self.batched = batched
        self.rows_of = rows_of
        self._last: CustomEpoch | None = None

    def length(self, epoch: int) -> int:
        """Return the number of rows, or batches, of an epoch."""
        return len(self.epoch(epoch))

    def always_first(self) -> "CustomOrder":
        """Return an order whose every epoch has the rows of epoch 0."""
        seeded = getattr(self.rows_of, "seeded", False)
        return CustomOrder(
            self.samples,
            lambda epoch: self.rows_of(0, self.seed) if seeded else self.rows_of(0),
            self.seed,
            self.batched,
        )

    def epoch(self, epoch: Any) -> "CustomEpoch":
        """Return the sequence of one epoch. The last one is kept, so that the function is called once for it."""
        epoch = check_epoch(epoch)
        if self._last is None or self._last.epoch != epoch:
            given = self.rows_of(epoch, self.seed) if getattr(self.rows_of, "seeded", False) else self.rows_of(epoch)
            rows, ends = _as_batches(given, self.samples) if self.batched else (_as_rows(given, self.samples), None)
            self._last = CustomEpoch(rows, ends, self.seed, epoch)
        return self._last

    def state(self, epoch: Any) -> dict[str, int | str | bool | None]:
        """Return the state that a resume compares: the function must return the same rows for the epoch."""
        sequence = self.epoch(epoch)
        return {
            "length": len(sequence),
            "seed": self.seed,
            "shuffle": self.name,
            "window": None,
            "lanes": None,
            "rows": sequence.digest(),
        }


class CustomEpoch:
    """The sequence of one epoch. Every copy of a row has separate draws.

    Parameters
    ----------
    rows : int64 array, (n,)
    ends : int64 array, (b,), or None
        End of each batch; None if the sequence consists of rows.
    """

    def __init__(self, rows: IntArray, ends: IntArray | None, seed: int, epoch: int) -> None:
        self.epoch = epoch
        self._ends = ends
        self._picks = SampledRows(rows, np.full(len(rows), seed, np.uint64), epoch).again(
            count_occurrences(rows), level=0
        )
        self._digest: str | None = None

    def __len__(self) -> int:
        return len(self._picks) if self._ends is None else len(self._ends)

    @property
    def batched(self) -> bool:
        """True if the epoch consists of batches."""
        return self._ends is not None

    @property
    def largest(self) -> int:
        """Rows of the largest batch, or of the whole epoch if it has no batches."""
        if self._ends is None or not len(self._ends):
            return len(self._picks)
        return int(np.diff(self._ends, prepend=0).max())

    @property
    def rows(self) -> IntArray:
        """All rows."""
        return self._picks.rows

    def at(self, positions: IntArray) -> SampledRows:
        """Return the picks at some positions of a sequence of rows. Positions beyond the length wrap around."""
        places = positions % max(1, len(self))
        return SampledRows(self._picks.rows[places], self._picks.seeds[places], self.epoch)

    def batch(self, position: int) -> SampledRows:
        """Return the picks of the batch at a position. Positions beyond the length wrap around."""
        assert self._ends is not None
        number = position % len(self._ends)
        return self._picks.part(int(self._ends[number - 1]) if number else 0, int(self._ends[number]))

    def digest(self) -> str:
        """Return a short digest of the rows and the batches."""
        if self._digest is None:
            state = blake2b(self._picks.rows.astype("<i8").tobytes(), digest_size=8)
            state.update(b"" if self._ends is None else self._ends.astype("<i8").tobytes())
            self._digest = state.hexdigest()
        return self._digest


def take_finite(values: Iterable[Any], samples: int) -> list[Any]:
    """Return the values as a list; endless ones are refused."""
    most = max(_LEAST_BOUND, _MOST_TIMES * samples)
    found = list(islice(values, most + 1))
    if len(found) > most:
        raise UsageError(
            option="order", expected="the rows of one epoch", found=f"no end after {most}", hint="give it a length"
        )
    return found


def _as_rows(given: Any, samples: int) -> IntArray:
    if hasattr(given, "__next__"):
        given = take_finite(given, samples)
    try:
        rows = np.asarray(given)
    except (TypeError, ValueError):  # rows of different lengths
        rows = np.empty((0, 0), object)
    if rows.ndim != 1 or (rows.dtype.kind not in "iu" and rows.size):
        hint = ""
        if rows.dtype == bool:
            hint = ": a mask's rows are np.flatnonzero(mask)"
        elif rows.ndim == 2:
            hint = ": leave out batch_size to yield whole batches"
        raise UsageError(
            option="order", expected="the rows of an epoch, integers of shape (n,)", found=f"{shorten(given)}{hint}"
        )
    rows = rows.astype(np.int64)
    if len(rows) and not 0 <= rows.min() <= rows.max() < samples:
        raise UsageError(option="order", expected=f"rows 0 to {samples - 1}", found=span(rows.min(), rows.max()))
    return rows


def _as_batches(given: Any, samples: int) -> tuple[IntArray, IntArray]:
    """Return the rows of all batches, and the end of each batch."""
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | dict):
        raise UsageError(option="order", expected="batches of rows, such as [[4, 2], [0, 7]]", found=shorten(given))
    if isinstance(given, np.ndarray) and given.ndim == 2 and given.shape[1]:  # faster than batch by batch
        rows = _as_rows(given.reshape(-1), samples)
        return rows, given.shape[1] * np.arange(1, len(given) + 1)
    batches = take_finite(given, samples)
    for batch in batches:
        if not isinstance(batch, Iterable) or isinstance(batch, str | bytes):
            raise UsageError(
                option="order",
                expected="batches of rows, since there is no batch_size",
                found=f"{shorten(batch)} as one",
                hint="for single rows give batch_size",
            )
    checked = [_as_rows(batch, samples) for batch in batches]
    if not all(map(len, checked)):
        raise UsageError(option="order", expected="one row or more in every batch", found="a batch without any")
    ends = np.cumsum([len(rows) for rows in checked], dtype=np.int64)
    return np.concatenate([np.empty(0, np.int64), *checked]), ends
