"""A picture whose levels and crops are made on the CPU, in pieces that stay in its caches."""

import itertools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from packer.vision.detect.area import AreaSampler
from packer.vision.detect.networks import CELLS, CROP_SIZES, OUTPUTS

__all__ = ["CpuFrame", "RunNetwork"]

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

RunNetwork = Callable[[str, FloatArray], FloatArray]
"""(net, (n, 3, h, w) pixels) to P-net's (n, 5, rows, columns) or (n, OUTPUTS[net]); valid until the next call. The net "cells" is P-net
for (CELLS, 3, 12, 12), one cell each; only callers that screen need it."""

_STRIP_PIXELS = 1 << 17  # input pixels of one P-net call
_CHUNKS = {"rnet": 64, "onet": 8}  # crops of one call; measured on a Zen 4 core with 1 MB of second-level cache
_FIELD, _STRIDE = 12, 2  # P-net's receptive field and stride, input pixels
_SCREENED_SHRINKING = 4.0
"""P-net looks coarsely first at levels shrunk by no more. On coarser ones it passes more than one cell in a hundred, and looking
again at single cells, each ten to twenty times as dear as in a whole map, costs what was won (measured)."""
_SCREEN_MARGINS = {"pnet": 0.75, "rnet": 1.0}
"""How much less than wanted a coarse logit may be. bfloat16 was off by up to 0.44 in 54,000 of P-net's logits near the threshold, on
frames of a 1080p video, and by up to 0.23 in 500 of R-net's."""


class CpuFrame:
    """Samples a picture and hands the pieces to a network library; fulfils ``packer.vision.detect.runtime.Frame``.

    Strips and chunks are cut by the picture and its own boxes alone, so the results cannot depend on the frames around it.

    Parameters
    ----------
    image : ndarray, (H, W, 3), uint8
    run : callable
        The networks in float32.
    screen : callable, optional
        P-net and R-net in a coarser and faster precision. Where it is given, ``run`` sees only what the coarse nets come near to passing;
        all that is returned as passed was decided and computed by ``run``.
    """

    def __init__(self, image: npt.NDArray[np.uint8], run: RunNetwork, screen: RunNetwork | None = None) -> None:
        self._area = AreaSampler(image)
        self._run = run
        self._screen = screen

    def propose(self, height: int, width: int, min_logit: float) -> tuple[IntArray, IntArray, FloatArray]:
        """See ``packer.vision.detect.runtime.Frame``."""
        cells = (height - _FIELD + 1) // _STRIDE + 1  # the ceil mode of P-net's pooling
        per_strip = max(1, (_STRIP_PIXELS // width - _FIELD) // _STRIDE)
        screened = self._screen is not None and self._area.height <= _SCREENED_SHRINKING * height
        look = self._look_twice if screened else self._look
        found: list[tuple[IntArray, IntArray, FloatArray]] = []
        for first in range(0, cells, per_strip):
            last = min(first + per_strip, cells)
            end = min(_STRIDE * (last - 1) + _FIELD, height)
            y, x, values = look(self._area.rows(height, width, _STRIDE * first, end), min_logit)
            found.append((y + first, x, values))
        y, x, values = (np.concatenate(part) for part in zip(*found, strict=True))
        return y, x, values

    def _look(self, pixels: FloatArray, min_logit: float) -> tuple[IntArray, IntArray, FloatArray]:
        """P-net's cells in a strip whose logit is at least ``min_logit``, row by row, and their outputs."""
        maps = self._run("pnet", pixels[None])[0]
        y, x = _cells_above(maps[-1], min_logit)
        return y, x, maps[:, y, x].T

    def _look_twice(self, pixels: FloatArray, min_logit: float) -> tuple[IntArray, IntArray, FloatArray]:
        """The same, coarsely and then again in the cells that matter, each from the pixels that it sees."""
        assert self._screen is not None
        y, x = _cells_above(self._screen("pnet", pixels[None])[0, -1], min_logit - _SCREEN_MARGINS["pnet"])
        values = np.empty((len(y), OUTPUTS["pnet"]), np.float32)
        heights = np.minimum(pixels.shape[1] - _STRIDE * y, _FIELD)
        widths = np.minimum(pixels.shape[2] - _STRIDE * x, _FIELD)
        # The last row and column of cells see one pixel less where the strip's sides are odd.
        for size in itertools.product((_FIELD, _FIELD - 1), repeat=2):
            rows = np.flatnonzero((heights == size[0]) & (widths == size[1]))
            windows = np.lib.stride_tricks.sliding_window_view(pixels, size, axis=(1, 2))
            for start in range(0, len(rows), CELLS):
                some = rows[start : start + CELLS]
                patches = np.zeros((CELLS, 3, *size), np.float32)
                patches[: len(some)] = windows[:, _STRIDE * y[some], _STRIDE * x[some]].swapaxes(0, 1)
                outputs = self._run("cells" if size == (_FIELD, _FIELD) else "pnet", patches)
                values[some] = outputs[: len(some), :, 0, 0]
        passed = values[:, -1] >= min_logit
        return y[passed], x[passed], values[passed]

    def refine(self, net: str, windows: IntArray, min_logit: float) -> FloatArray:
        """See ``packer.vision.detect.runtime.Frame``."""
        out = np.empty((len(windows), OUTPUTS[net]), np.float32)
        order = np.lexsort((windows[:, 0], windows[:, 1]))  # neighbours in the picture are neighbours in the cache
        screen = self._screen if net in _SCREEN_MARGINS else None
        near: list[tuple[IntArray, FloatArray]] = []
        for start in range(0, len(windows), _CHUNKS[net]):
            rows = order[start : start + _CHUNKS[net]]
            pixels = self._area.crops(windows[rows], CROP_SIZES[net])
            out[rows] = (screen or self._run)(net, pixels)
            if screen is not None:
                close = np.flatnonzero(out[rows, -1] >= min_logit - _SCREEN_MARGINS[net])
                near.append((rows[close], pixels[close]))
        if near:
            rows, pixels = (np.concatenate(part) for part in zip(*near, strict=True))
            for start in range(0, len(rows), _CHUNKS[net]):
                some = slice(start, start + _CHUNKS[net])
                out[rows[some]] = self._run(net, pixels[some])
        return out


def _cells_above(logits: FloatArray, limit: float) -> tuple[IntArray, IntArray]:
    """Row and column of the cells of a map at or above a limit, row by row."""
    y, x = np.divmod(np.flatnonzero(logits >= limit), logits.shape[1])
    return y, x
