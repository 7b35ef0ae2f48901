"""The networks in torch: on the CPU with channels last, or on a GPU."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from packer.vision.detect.cpu import CpuFrame, cell_edges
from packer.vision.detect.networks import CROP_SIZES, OUTPUTS, Dense, Layer, Pool, PreparedFrame
from shardspec.errors import UsageError
from shardspec.wording import shorten

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

RunNetwork = Callable[[str, torch.Tensor], torch.Tensor]
"""(net, (n, 3, h, w) pixels) to P-net's (1, 5, rows, columns) or (n, OUTPUTS[net]), all on the device."""

T = TypeVar("T")

_CHUNKS = {"rnet": 1024, "onet": 256}  # crops of one call: at most 300 MB of activations

_VECTOR = 16  # float32 numbers in a vector of AVX-512
_MAX_DEVICE_PIXELS = 1 << 24  # larger images are sampled on the CPU in bands, which bounds the device's memory


def check_device(device: str) -> None:
    """Raise a `UsageError` unless torch can use a device here, before a job is planned for it."""
    try:
        chosen = torch.device(device)
        # A GPU is counted and not tried: the context of a trial would stay in this process, and some GPUs accept only
        # one process.
        if chosen.type != "cuda" or (chosen.index or 0) >= torch.cuda.device_count():
            torch.zeros(1, device=chosen)
    except (AssertionError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            option="device", expected="cpu, or a device that torch can use here", found=f"{shorten(device)} ({reason})"
        ) from error


class TorchRuntime:
    """Runs the networks in torch; fulfils ``packer.vision.detect.networks.Runtime``.

    Parameters
    ----------
    threads : int
        Set by ``torch.set_num_threads``, so for the whole process.
    sample_on_device : bool, optional
        Whether levels and crops are made on the device too. By default on every device except the CPU, where OpenCV and
        numpy are faster.
    """

    def __init__(
        self,
        networks: Mapping[str, tuple[Layer, ...]],
        *,
        device: str = "cpu",
        threads: int = 1,
        sample_on_device: bool | None = None,
    ) -> None:
        check_device(device)
        torch.set_num_threads(threads)
        self._device = torch.device(device)
        self._sample_on_device = self._device.type != "cpu" if sample_on_device is None else sample_on_device
        self._nets = {name: _module(_pad_channels(layers)).to(self._device) for name, layers in networks.items()}

    def open(self, image: npt.NDArray[np.uint8]) -> PreparedFrame:
        if self._sample_on_device and image.shape[0] * image.shape[1] <= _MAX_DEVICE_PIXELS:
            in_pieces = partial(CpuFrame, image, self._run_arrays)
            return _RetriedFrame(partial(TorchFrame, image, self._run, self._device), in_pieces)
        return CpuFrame(image, self._run_arrays)

    def new_frame(self, height: int, width: int) -> npt.NDArray[np.uint8]:
        """Return memory for an image; for a GPU it is pinned, which saves a copy and a wait."""
        pinned = self._device.type == "cuda"
        frame: npt.NDArray[np.uint8] = torch.empty((height, width, 3), dtype=torch.uint8, pin_memory=pinned).numpy()
        return frame

    def describe(self) -> dict[str, str]:
        name = torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else str(self._device)
        return {"runtime": f"torch {torch.__version__}", "device": name, "precision": "float32"}

    def _run(self, net: str, pixels: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(), _exact():
            outputs: torch.Tensor = self._nets[net](pixels.contiguous(memory_format=torch.channels_last))
        return outputs

    def _run_arrays(self, net: str, pixels: FloatArray) -> FloatArray:
        outputs: FloatArray = self._run(net, torch.from_numpy(pixels).to(self._device)).contiguous().cpu().numpy()
        return outputs


class TorchFrame:
    """Uploads an image once and samples it there; fulfils ``packer.vision.detect.networks.PreparedFrame``.

    Works like ``packer.vision.detect.cpu.AreaSampler``, with an integral image on the device. The chunks
    depend on the image's own boxes alone, so the results cannot depend on the frames around it.
    """

    def __init__(self, image: npt.NDArray[np.uint8], run: RunNetwork, device: torch.device) -> None:
        self._run = run
        self._device = device
        self._height, self._width = image.shape[:2]
        # Torch warns of read-only memory, such as that of a JPEG whose bytes are kept.
        self._image = image if image.flags.writeable else image.copy()
        # The upload from pinned memory continues after this call, so the frame stays referenced.
        pixels = torch.from_numpy(self._image).to(device, non_blocking=True).permute(2, 0, 1)
        sums = torch.zeros((3, self._height + 1, self._width + 1), dtype=torch.int32, device=device)
        sums[:, 1:, 1:] = pixels.cumsum(1, dtype=torch.int32).cumsum(2, dtype=torch.int32)
        self._sums = sums

    def propose(self, height: int, width: int, min_logit: float) -> tuple[IntArray, IntArray, FloatArray]:
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


class _RetriedFrame:
    """An image on the device that is processed in pieces once the device has had too little memory for a call.

    The result of a call depends on the image alone, so a call can be repeated. Fulfils
    ``packer.vision.detect.networks.PreparedFrame``.
    """

    def __init__(self, whole: Callable[[], PreparedFrame], in_pieces: Callable[[], PreparedFrame]) -> None:
        self._in_pieces: Callable[[], PreparedFrame] | None = in_pieces
        self._make: Callable[[], PreparedFrame] | None = whole
        self._frame: PreparedFrame | None = None

    def propose(self, height: int, width: int, min_logit: float) -> tuple[IntArray, IntArray, FloatArray]:
        return self._call(lambda frame: frame.propose(height, width, min_logit))

    def refine(self, net: str, windows: IntArray) -> FloatArray:
        return self._call(lambda frame: frame.refine(net, windows))

    def _call(self, call: Callable[[PreparedFrame], T]) -> T:
        try:
            return call(self._opened())
        except torch.OutOfMemoryError:
            if self._in_pieces is None:
                raise
        # After the handler, because its exception keeps alive what the call made on the device.
        self._frame, self._make, self._in_pieces = None, self._in_pieces, None
        torch.cuda.empty_cache()
        return call(self._opened())

    def _opened(self) -> PreparedFrame:
        if self._frame is None:
            assert self._make is not None
            self._frame = self._make()
        return self._frame


def _floor(numerator: torch.Tensor, denominator: int) -> torch.Tensor:
    return torch.div(numerator, denominator, rounding_mode="floor")


@lru_cache(maxsize=256)
def _device_edges(n: int, m: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    start, end = cell_edges(n, m)
    return torch.from_numpy(start).to(device), torch.from_numpy(end).to(device)


@contextmanager
def _exact() -> Iterator[None]:
    """Make cuDNN and cuBLAS compute in float32: recent GPUs may round to TF32, which moves boxes."""
    before = torch.get_float32_matmul_precision()
    if before != "highest":
        torch.set_float32_matmul_precision("highest")
    try:
        # enabled: if it is left out, it is False, and convolutions run without cuDNN.
        with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
            yield
    finally:
        if before != "highest":
            torch.set_float32_matmul_precision(before)


def _pad_channels(layers: tuple[Layer, ...]) -> list[Layer]:
    """Pad convolutions that end in 10 or 28 channels to 16 or 32; the new channels are zero.

    Torch's channels-last pooling and PReLU work on whole vectors of channels and are several times slower on partial
    ones.
    """
    padded: list[Layer] = []
    extra = 0  # channels that were added to the previous layer
    for layer in layers:
        if isinstance(layer, Dense) and layer.weight.ndim == 4:
            more = -len(layer.weight) % _VECTOR if layer.slope is not None else 0
            slope = None if layer.slope is None else np.pad(layer.slope, (0, more))
            layer = Dense(
                np.pad(layer.weight, ((0, more), (0, extra), (0, 0), (0, 0))), np.pad(layer.bias, (0, more)), slope
            )
            extra = more
        padded.append(layer)
    return padded


def _module(layers: list[Layer]) -> nn.Module:
    modules: list[nn.Module] = []
    flat = False
    for layer in layers:
        if isinstance(layer, Pool):
            modules.append(nn.MaxPool2d(layer.size, layer.stride, ceil_mode=True))
            continue
        weight = torch.from_numpy(layer.weight)
        module: nn.Conv2d | nn.Linear
        if weight.ndim == 4:
            module = nn.Conv2d(weight.shape[1], weight.shape[0], weight.shape[2])
        else:
            if not flat:
                modules.append(nn.Flatten())
            flat = True
            module = nn.Linear(weight.shape[1], weight.shape[0])
        module.weight, module.bias = (nn.Parameter(weight), nn.Parameter(torch.from_numpy(layer.bias)))
        modules.append(module)
        if layer.slope is not None:
            slopes = nn.PReLU(len(layer.slope))
            slopes.weight = nn.Parameter(torch.from_numpy(layer.slope))
            modules.append(slopes)
    network = nn.Sequential(*modules).eval().requires_grad_(False)
    return network.to(memory_format=torch.channels_last)
