"""A picture whose levels and crops are made on torch's device."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from packer.vision.detect.area import cell_edges
from packer.vision.detect.networks import CROP_SIZES, OUTPUTS

__all__ = ["RunNetwork", "TorchFrame"]

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

RunNetwork = Callable[[str, torch.Tensor], torch.Tensor]
"""(net, (n, 3, h, w) pixels) to P-net's (1, 5, rows, columns) or (n, OUTPUTS[net]), all on the device."""

_CHUNKS = {"rnet": 1024, "onet": 256}  # crops of one call: at most 300 MB of activations


class TorchFrame:
    """Uploads a picture once and samples it there; fulfils ``packer.vision.detect.runtime.Frame``.

    Works as ``packer.vision.detect.area.AreaSampler`` does, with an integral image on the device. Chunks are cut by the picture's own boxes alone, so
    the results cannot depend on the frames around it.
    """

    def __init__(self, image: npt.NDArray[np.uint8], run: RunNetwork, device: torch.device) -> None:
        self._run = run
        self._device = device
        self._height, self._width = image.shape[:2]
        self._image = image  # the upload from pinned memory goes on behind this call
        pixels = torch.from_numpy(image).to(device, non_blocking=True).permute(2, 0, 1)
        sums = torch.zeros((3, self._height + 1, self._width + 1), dtype=torch.int32, device=device)
        sums[:, 1:, 1:] = pixels.cumsum(1, dtype=torch.int32).cumsum(2, dtype=torch.int32)
        self._sums = sums

    def propose(self, height: int, width: int, min_logit: float) -> tuple[IntArray, IntArray, FloatArray]:
        """See ``packer.vision.detect.runtime.Frame``."""
        top, bottom = _device_edges(self._height, height, self._device)
        left, right = _device_edges(self._width, width, self._device)
        lines = self._sums.index_select(1, bottom) - self._sums.index_select(1, top)
        sums = lines.index_select(2, right) - lines.index_select(2, left)
        maps = self._run("pnet", (sums / ((bottom - top)[:, None] * (right - left)))[None])[0]
        columns, maps = maps.shape[2], maps.flatten(1)
        cells = (maps[-1] >= min_logit).nonzero()[:, 0]
        # Each copy back waits for the device: the cells go with the values, as one more row of 32 bits.
        found = torch.cat([maps[:, cells].view(torch.int32), cells.to(torch.int32)[None]]).cpu().numpy()
        y, x = np.divmod(found[-1].astype(np.int64), columns)
        return y, x, found[:-1].view(np.float32).T

    def refine(self, net: str, windows: IntArray) -> FloatArray:
        """See ``packer.vision.detect.runtime.Frame``."""
        chunks = torch.split(torch.from_numpy(windows).to(self._device), _CHUNKS[net])
        outputs = [self._run(net, self._crops(chunk, CROP_SIZES[net])) for chunk in chunks if len(chunk)]
        if not outputs:
            return np.empty((0, OUTPUTS[net]), np.float32)
        result: FloatArray = torch.cat(outputs).cpu().numpy()
        return result

    def _crops(self, windows: torch.Tensor, size: int) -> torch.Tensor:
        i = torch.arange(size, device=self._device)
        left, top, right, bottom = windows[:, :, None].unbind(1)
        (x0, x1), (y0, y1) = (
            (start + _floor(i * (end - start), size), start - _floor(-(i + 1) * (end - start), size))
            for start, end in ((left, right), (top, bottom))
        )
        flat, stride = self._sums.flatten(1), self._sums.shape[2]
        above, below = (y0 * stride)[:, :, None], (y1 * stride)[:, :, None]
        near, far = x0[:, None], x1[:, None]
        sums = flat[:, below + far] - flat[:, above + far] - flat[:, below + near] + flat[:, above + near]
        return (sums / ((y1 - y0)[:, :, None] * (x1 - x0)[:, None])).transpose(0, 1)


def _floor(numerator: torch.Tensor, denominator: int) -> torch.Tensor:
    return torch.div(numerator, denominator, rounding_mode="floor")


@lru_cache(maxsize=256)
def _device_edges(n: int, m: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    start, end = cell_edges(n, m)
    return torch.from_numpy(start).to(device), torch.from_numpy(end).to(device)
