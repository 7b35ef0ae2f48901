"""Buffers for batches, used again once nobody refers to them."""

import math
import weakref
from collections import deque
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from readers.decode.values import BatchLayout, empty_aligned
from shardspec.columns import Columns

_LEASE_BYTES_MIN = 1 << 16
"""Smaller arrays are made anew each time: that costs less than keeping account of them."""


class Buffers(Protocol):
    """Where batches are put together."""

    def take(self, layout: BatchLayout, rows: int) -> Columns:
        """Room for a batch, which is the taker's for as long as anything refers to it."""
        ...


class _Lease:
    """Stands between a piece of memory and the arrays made of it.

    numpy gives every view of such an array, and torch every tensor of it, a reference to this object and no shorter way to
    the memory. So its end is the end of all of them.
    """

    def __init__(self, memory: npt.NDArray[Any], shape: tuple[int, ...]) -> None:
        interface = memory.__array_interface__
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": interface["typestr"],
            "data": interface["data"],
        }


class Ring:
    """Buffers in ordinary memory. An empty ring allocates, it never waits. Safe between threads.

    Memory that was used before is mapped already, which makes filling it twice as fast.

    Parameters
    ----------
    rows : int
        Of the largest batch.
    keep : int
        Buffers kept per field while not in use; more are freed.
    """

    def __init__(self, rows: int, keep: int) -> None:
        self._rows = rows
        self._keep = keep
        self._free: dict[str, deque[npt.NDArray[Any]]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._rows, self._keep)  # without the memory

    def take(self, layout: BatchLayout, rows: int) -> Columns:
        """Room for a batch of `rows` rows, no more than the ring's."""
        out: Columns = {}
        for name, value in layout.items():
            if value.shape is None or value.dtype is None:
                out[name] = [None] * rows
            elif rows * math.prod(value.shape) * value.dtype.itemsize < _LEASE_BYTES_MIN:
                out[name] = np.empty((rows, *value.shape), value.dtype)
            else:
                out[name] = self._lease(name, (self._rows, *value.shape), value.dtype, value.begin, rows)
        return out

    def _lease(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], begin: int, rows: int
    ) -> npt.NDArray[Any]:
        free = self._free.setdefault(name, deque())
        try:
            memory = free.pop()
        except IndexError:
            memory = empty_aligned(shape, dtype, begin)
        if memory.shape != shape or memory.dtype != dtype:  # left from another layout
            memory = empty_aligned(shape, dtype, begin)
        lease = _Lease(memory, (rows, *shape[1:]))
        weakref.finalize(lease, _give_back, free, memory, self._keep).atexit = False
        return np.asarray(lease)


def _give_back(free: "deque[npt.NDArray[Any]]", memory: npt.NDArray[Any], keep: int) -> None:
    """Runs when nothing refers to a lease any more, in whichever thread let go last."""
    if len(free) < keep:
        free.append(memory)


class PinnedBuffers:
    """Buffers in page-locked memory, from torch's caching host allocator.

    The allocator uses a buffer again only after the copies to the device that read it have finished.
    """

    def take(self, layout: BatchLayout, rows: int) -> Columns:
        """Room for a batch of `rows` rows."""
        out: Columns = {}
        for name, value in layout.items():
            if value.shape is None or value.dtype is None:
                out[name] = [None] * rows
            else:
                like = torch.from_numpy(np.empty(0, value.dtype))
                # The array keeps the tensor, and with it the page-locked memory.
                out[name] = torch.empty((rows, *value.shape), dtype=like.dtype, pin_memory=True).numpy()
        return out
