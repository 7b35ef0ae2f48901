"""The networks in torch: on the CPU with channels last, or on a GPU."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from packer.detect.cpu import CpuFrame
from packer.detect.networks import Dense, Layer, Pool
from packer.detect.runtime import Frame
from packer.detect.torch_frame import TorchFrame

__all__ = ["TorchRuntime"]

FloatArray = npt.NDArray[np.float32]


_VECTOR = 16  # float32 numbers in a vector of AVX-512
_MAX_DEVICE_PIXELS = 1 << 24  # larger pictures are sampled on the CPU, in bands, so that the device's memory is bounded


def check_device(device: str) -> None:
    """Try a device before a job is planned for it.

    Raises
    ------
    ValueError
        torch does not know it, or cannot use it here.
    """
    try:
        torch.zeros(1, device=torch.device(device))
    except (AssertionError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device: expected cpu, or a device that torch can use here, found {device!r} ({reason})"
        ) from error


class TorchRuntime:
    """Runs the networks in torch; fulfils ``packer.detect.runtime.Runtime``.

    Parameters
    ----------
    networks : mapping of str to sequence of Layer
        From ``build_networks``.
    device : str
        What ``torch.device`` takes.
    threads : int
        Set by ``torch.set_num_threads``, so for the whole process.
    precision : {"float32"}
    sample_on_device : bool, optional
        Whether levels and crops are made on the device too; by default on any but the CPU, where OpenCV and numpy are faster.
    """

    def __init__(
        self,
        networks: Mapping[str, tuple[Layer, ...]],
        *,
        device: str = "cpu",
        threads: int = 1,
        precision: str = "float32",
        sample_on_device: bool | None = None,
    ) -> None:
        if precision != "float32":
            raise ValueError(
                f"runtime 'torch' runs in precision 'float32', found {precision!r}; use runtime='openvino'"
            )
        torch.set_num_threads(threads)
        self._device = torch.device(device)
        self._sample_on_device = self._device.type != "cpu" if sample_on_device is None else sample_on_device
        self._nets = {name: _module(_pad_channels(layers)).to(self._device) for name, layers in networks.items()}

    def open(self, image: npt.NDArray[np.uint8]) -> Frame:
        """See ``packer.detect.runtime.Runtime``."""
        if self._sample_on_device and image.shape[0] * image.shape[1] <= _MAX_DEVICE_PIXELS:
            return TorchFrame(image, self._run, self._device)
        return CpuFrame(image, self._run_arrays)

    def describe(self) -> dict[str, str]:
        """See ``packer.detect.runtime.Runtime``."""
        name = torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else str(self._device)
        return {"runtime": f"torch {torch.__version__}", "device": name, "precision": "float32"}

    def _run(self, net: str, pixels: torch.Tensor) -> torch.Tensor:
        # convolutions on recent GPUs round to TF32 by default, which moves boxes
        with torch.inference_mode(), torch.backends.cudnn.flags(deterministic=True, allow_tf32=False):
            outputs: torch.Tensor = self._nets[net](pixels.contiguous(memory_format=torch.channels_last))
        return outputs

    def _run_arrays(self, net: str, pixels: FloatArray) -> FloatArray:
        outputs: FloatArray = self._run(net, torch.from_numpy(pixels).to(self._device)).contiguous().cpu().numpy()
        return outputs


def _pad_channels(layers: tuple[Layer, ...]) -> list[Layer]:
    """Give convolutions that end in 10 or 28 channels 16 or 32, the new ones zero.

    Torch's channels-last pooling and PReLU work on whole vectors of channels and are several times slower on rests of them.
    """
    padded: list[Layer] = []
    extra = 0  # channels that the layer before has got
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
