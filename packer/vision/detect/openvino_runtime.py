"""The networks in OpenVINO, on the CPU."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.vision.detect.cpu import CpuFrame
from packer.vision.detect.networks import CROP_SIZES, Layer, Pool
from packer.vision.openvino import new_request, openvino, ops

FloatArray = npt.NDArray[np.float32]

# Compiled layers kept per network, for the input shapes seen last. The default is 5000, with which a process grew by 3
# MB for each new image size.
_CACHED_SHAPES = 128
_INPUTS = {
    "pnet": [-1, 3, -1, -1],
    "rnet": [-1, 3, CROP_SIZES["rnet"], CROP_SIZES["rnet"]],
    "onet": [-1, 3, CROP_SIZES["onet"], CROP_SIZES["onet"]],
}


class OpenVINORuntime:
    """Runs the networks in OpenVINO on the CPU; fulfils ``packer.vision.detect.networks.Runtime``."""

    def __init__(
        self,
        networks: Mapping[str, tuple[Layer, ...]],
        *,
        device: str = "cpu",
        threads: int = 1,
    ) -> None:
        if device != "cpu":
            raise ValueError(
                f"runtime 'openvino' runs on device 'cpu', found {device!r}; use runtime='torch' for {device!r}"
            )
        self._requests = {
            name: new_request(_model(name, layers), threads=threads, CPU_RUNTIME_CACHE_CAPACITY=_CACHED_SHAPES)
            for name, layers in networks.items()
        }

    def open(self, image: npt.NDArray[np.uint8]) -> CpuFrame:
        return CpuFrame(image, self._run)

    def new_frame(self, height: int, width: int) -> npt.NDArray[np.uint8]:
        return np.empty((height, width, 3), np.uint8)

    def describe(self) -> dict[str, str]:
        return {"runtime": f"openvino {openvino.__version__}", "device": "cpu", "precision": "float32"}

    def _run(self, net: str, pixels: FloatArray) -> FloatArray:
        request = self._requests[net]
        request.set_input_tensor(openvino.Tensor(pixels, shared_memory=True))
        request.infer()
        result: FloatArray = request.get_output_tensor().data
        return result


def _model(name: str, layers: tuple[Layer, ...]) -> Any:
    pixels = ops.parameter(_INPUTS[name], np.float32, name="pixels")
    node = pixels
    for layer in layers:
        if isinstance(layer, Pool):
            pads = [0, 0]
            node = ops.max_pool(node, [layer.stride] * 2, [1, 1], pads, pads, [layer.size] * 2, "ceil").output(0)
            continue
        if layer.weight.ndim == 4:
            node = ops.convolution(node, ops.constant(layer.weight), [1, 1], [0, 0], [0, 0], [1, 1])
            node = ops.add(node, ops.constant(layer.bias.reshape(1, -1, 1, 1)))
        else:
            node = ops.reshape(node, ops.constant(np.array([0, layer.weight.shape[1]])), special_zero=True)
            node = ops.matmul(node, ops.constant(layer.weight), transpose_a=False, transpose_b=True)
            node = ops.add(node, ops.constant(layer.bias.reshape(1, -1)))
        if layer.slope is not None:
            node = ops.prelu(node, ops.constant(layer.slope))
    return openvino.Model([node], [pixels], name)
