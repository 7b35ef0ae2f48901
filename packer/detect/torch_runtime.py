"""The networks in torch: on the CPU with channels last, or on a GPU."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from packer.detect.cpu import CpuFrame
from packer.detect.networks import Layer, Pool

__all__ = ["TorchRuntime"]

FloatArray = npt.NDArray[np.float32]


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
    """

    def __init__(
        self,
        networks: Mapping[str, tuple[Layer, ...]],
        *,
        device: str = "cpu",
        threads: int = 1,
        precision: str = "float32",
    ) -> None:
        if precision != "float32":
            raise ValueError(
                f"runtime 'torch' runs in precision 'float32', found {precision!r}; use runtime='openvino'"
            )
        torch.set_num_threads(threads)
        self._device = torch.device(device)
        self._nets = {name: _module(layers).to(self._device) for name, layers in networks.items()}

    def open(self, image: npt.NDArray[np.uint8]) -> CpuFrame:
        """See ``packer.detect.runtime.Runtime``."""
        return CpuFrame(image, self._run)

    def describe(self) -> dict[str, str]:
        """See ``packer.detect.runtime.Runtime``."""
        return {"runtime": f"torch {torch.__version__}", "device": str(self._device), "precision": "float32"}

    def _run(self, net: str, pixels: FloatArray) -> FloatArray:
        with torch.inference_mode():
            inputs = torch.from_numpy(pixels).to(self._device, memory_format=torch.channels_last)
            outputs: FloatArray = self._nets[net](inputs).contiguous().cpu().numpy()
        return outputs


def _module(layers: tuple[Layer, ...]) -> nn.Module:
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
        module.weight, module.bias = nn.Parameter(weight), nn.Parameter(torch.from_numpy(layer.bias))
        modules.append(module)
        if layer.slope is not None:
            slopes = nn.PReLU(len(layer.slope))
            slopes.weight = nn.Parameter(torch.from_numpy(layer.slope))
            modules.append(slopes)
    network = nn.Sequential(*modules).eval().requires_grad_(False)
    return network.to(memory_format=torch.channels_last)
