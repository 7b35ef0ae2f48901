"""An image whose pyramid levels and crops are made on the CPU, in pieces that fit into its caches."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from packer.vision.detect.area_pooling import AreaSampler
from packer.vision.detect.networks import CROP_SIZES, OUTPUTS

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

RunNetwork = Callable[[str, FloatArray], FloatArray]
"""(net, (n, 3, h, w) pixels) to P-net's (n, 5, rows, columns) or (n, OUTPUTS[net]); valid until the next call."""

_STRIP_PIXELS = 1 << 17  # input pixels of one P-net call
_CHUNKS = {"rnet": 64, "onet": 8}  # crops of one call; measured on a Zen 4 core with 1 MB of second-level cache
_FIELD, _STRIDE = 12, 2  # P-net's receptive field and stride, input pixels


class CpuFrame:
    """Samples an image and passes the pieces to a network library; fulfils ``packer.vision.detect.runtime.Frame``.

    The strips and chunks depend on the image and its own boxes alone, so the results cannot depend on other frames.
    """

    def __init__(self, image: npt.NDArray[np.uint8], run: RunNetwork) -> None:
        self._area = AreaSampler(image)
        self._run = run

    def propose(self, height: int, width: int, min_logit: float) -> tuple[IntArray, IntArray, FloatArray]:
        cells = (height - _FIELD + 1) // _STRIDE + 1  # the ceil mode of P-net's pooling
        per_strip = max(1, (_STRIP_PIXELS // width - _FIELD) // _STRIDE)
        found: list[tuple[IntArray, IntArray, FloatArray]] = []
        for first in range(0, cells, per_strip):
            last = min(first + per_strip, cells)
            end = min(_STRIDE * (last - 1) + _FIELD, height)
            maps = self._run("pnet", self._area.rows(height, width, _STRIDE * first, end)[None])[0]
            y, x = np.divmod(np.flatnonzero(maps[-1] >= min_logit), maps.shape[2])
            found.append((y + first, x, maps[:, y, x].T))
        y, x, values = (np.concatenate(part) for part in zip(*found, strict=True))
        return y, x, values

    def refine(self, net: str, windows: IntArray) -> FloatArray:
        out = np.empty((len(windows), OUTPUTS[net]), np.float32)
        order = np.lexsort((windows[:, 0], windows[:, 1]))  # neighbours in the image are neighbours in the cache
        for start in range(0, len(windows), _CHUNKS[net]):
            rows = order[start : start + _CHUNKS[net]]
            out[rows] = self._run(net, self._area.crops(windows[rows], CROP_SIZES[net]))
        return out
