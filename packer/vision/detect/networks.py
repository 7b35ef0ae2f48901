"""MTCNN's three networks: their published weights, their layers as data, and the runtimes that run them.

facenet-pytorch 2.5.x contains ``pnet.pt``, ``rnet.pt`` and ``onet.pt`` in the format that ``torch.save`` wrote before
torch 1.6: four pickles (magic number, protocol, system, state dict), a pickled list of storage keys, and for each
storage an element count and the raw little-endian numbers. This can be read without torch, whose import costs every
worker process seconds and half a gigabyte that the OpenVINO runtime does not need. The unpickler below knows three
names (an ordered dict, the tensor constructor, the float storage), all resolved to functions of this file or the
standard library, and refuses every other one. It is stricter than ``torch.load(..., weights_only=True)``, and a test
checks that both give the same numbers.

The published networks take ``(pixel - 127.5) / 128``, end in separate heads with a two-way softmax, and flatten in
(width, height, channel) order. Three exact rewritings make them cheaper and simpler for every runtime. The
normalisation is folded into the first convolution (no convolution is padded, so every pixel gets it). The heads are
joined into one with the difference of the two logits (``sigmoid(b - a)`` is the softmax's second value). The first
dense layer's columns are put into (channel, height, width) order.
"""

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from shardspec.errors import MissingDependencyError, UsageError
from shardspec.registry import ImportTarget, check_installed, resolve
from shardspec.wording import did_you_mean, shorten

FloatArray = npt.NDArray[np.float32]

_MAGIC = 0x1950A86A20F9469CFC6C  # torch/serialization.py: MAGIC_NUMBER
_PROTOCOL = 1001  # torch/serialization.py: PROTOCOL_VERSION
_MAX_FILE_BYTES = 64 << 20  # the largest real file has 1.6 MB
_INSTALL = "install it with `pip install --no-deps facenet-pytorch==2.5.3`"


@dataclass(frozen=True, slots=True)
class Weights:
    """The parameters of P-, R- and O-net as in the files.

    Attributes
    ----------
    nets : dict of str to dict of str to ndarray, float32
        ``nets["pnet"]["conv1.weight"]`` and so on, with the names of the published state dicts.
    declared : dict of str to str
        ``name``: the distribution and its version, such as ``"facenet-pytorch 2.5.3"``; ``sha256`` over the three
        files; ``license``.
    """

    nets: dict[str, dict[str, FloatArray]]
    declared: dict[str, str]


def load_weights() -> Weights:
    """Read the three networks from the installed facenet-pytorch, without importing it.

    Raises
    ------
    MissingDependencyError
        If facenet-pytorch or one of its weight files is missing.
    ValueError
        If a weight file differs from those of facenet-pytorch.
    """
    nets, digest = {}, hashlib.sha256()
    for path in _find_weights():
        nets[path.stem] = read_legacy_state_dict(path)
        digest.update(path.read_bytes())
    name = f"facenet-pytorch {importlib.metadata.version('facenet-pytorch')}"
    return Weights(nets, {"name": name, "sha256": digest.hexdigest(), "license": "MIT"})


def _find_weights() -> list[Path]:
    spec = importlib.util.find_spec("facenet_pytorch")  # finds a top-level package without running it
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependencyError(
            f"the detector's weights come with facenet-pytorch, which is not installed; {_INSTALL}"
        )
    paths = [Path(spec.submodule_search_locations[0]) / "data" / f"{name}.pt" for name in ("pnet", "rnet", "onet")]
    for path in paths:
        if not path.is_file():
            raise MissingDependencyError(
                expected=f"the detector's weights in {path}", found=f"no such file; {_INSTALL}"
            )
    return paths


def read_legacy_state_dict(path: Path) -> dict[str, FloatArray]:
    """Read a state dict of float32 tensors in torch's format before 1.6, without torch. The order is the file's.

    Raises
    ------
    ValueError
        If the file has another format, names anything but float tensors, or is truncated.
    """
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise ValueError(f"{path}: expected at most {_MAX_FILE_BYTES} bytes of weights, found {path.stat().st_size}")
    try:
        with path.open("rb") as file:
            return _read(file)
    except Exception as error:  # a damaged pickle can raise anything
        raise ValueError(
            f"{path}: expected a state dict of float32 tensors in torch's legacy format, found {error}; {_INSTALL}"
        ) from error


class _Unpickler(pickle.Unpickler):
    """Builds ordered dicts of `_Tensor`, and nothing else. `storages` gets the size of each storage by key."""

    def __init__(self, file: IO[bytes], storages: dict[str, int]) -> None:
        super().__init__(file)
        self._storages = storages

    def find_class(self, module: str, name: str) -> Any:
        known: dict[tuple[str, str], Callable[..., Any] | str] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): lambda *arguments: _Tensor(*arguments[:4]),
            ("torch", "FloatStorage"): "float32",
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"the name {module}.{name}, which is not loaded")
        return known[module, name]

    def persistent_load(self, pid: Any) -> str:
        kind, dtype, key, _location, size, view = pid
        if (kind, dtype, view) != ("storage", "float32", None) or not isinstance(size, int) or size < 0:
            raise pickle.UnpicklingError(f"the storage {pid!r}")
        self._storages[key] = size
        return str(key)


class _Tensor(NamedTuple):
    """The key of a tensor's storage, and its place in it, counted in numbers."""

    storage: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _read(file: IO[bytes]) -> dict[str, FloatArray]:
    storages: dict[str, int] = {}
    header = [_Unpickler(file, storages).load() for _ in range(3)]
    if header[:2] != [_MAGIC, _PROTOCOL] or not header[2].get("little_endian"):
        raise ValueError(f"the header {header!r}")
    tensors = _Unpickler(file, storages).load()
    numbers = {}
    for key in _Unpickler(file, storages).load():
        size, raw = int.from_bytes(file.read(8), "little"), file.read(4 * storages[key])
        if size != storages[key] or len(raw) != 4 * size:
            raise ValueError(f"{min(size, len(raw) // 4)} numbers in storage {key} in place of {storages[key]}")
        numbers[key] = np.frombuffer(raw, "<f4").astype(np.float32)
    return {name: _array(name, tensor, numbers[tensor.storage]) for name, tensor in tensors.items()}


def _array(name: str, tensor: _Tensor, storage: FloatArray) -> FloatArray:
    numbers = (tensor.offset, *tensor.shape, *tensor.strides)
    last = tensor.offset + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True))
    if not all(isinstance(n, int) and n >= 0 for n in numbers) or 0 in tensor.shape or last >= storage.size:
        raise ValueError(f"tensor {name} reaching outside its storage: {numbers} in {storage.size} numbers")
    view = np.lib.stride_tricks.as_strided(storage[tensor.offset :], tensor.shape, [4 * s for s in tensor.strides])
    return np.array(view, np.float32, order="C")


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

# names of the published layers; a pair of numbers is a pooling (size, stride)
_LAYERS: dict[str, tuple[str | tuple[int, int], ...]] = {
    "pnet": ("conv1", (2, 2), "conv2", "conv3"),
    "rnet": ("conv1", (3, 2), "conv2", (3, 2), "conv3", "dense4"),
    "onet": ("conv1", (3, 2), "conv2", (3, 2), "conv3", (2, 2), "conv4", "dense5"),
}
_HEADS = {
    "pnet": ("conv4_2", "conv4_1"),
    "rnet": ("dense5_2", "dense5_1"),
    "onet": ("dense6_2", "dense6_3", "dense6_1"),
}
_DENSE_SIDES = {"dense4": 3, "dense5": 3}  # side of the feature map that the first dense layer flattens


def build_networks(nets: Mapping[str, Mapping[str, FloatArray]]) -> dict[str, tuple[Layer, ...]]:
    """Prepare the published parameters, ``Weights.nets``: networks of RGB pixels in [0, 255] with one joined head.

    Inputs of ``pnet``, ``rnet`` and ``onet`` are (N, 3, H, W) float32, outputs have the columns of ``OUTPUTS``.
    """
    return {name: _build(name, nets[name]) for name in _LAYERS}


def _build(name: str, parameters: Mapping[str, FloatArray]) -> tuple[Layer, ...]:
    layers: list[Layer] = []
    for layer in _LAYERS[name]:
        if isinstance(layer, tuple):
            layers.append(Pool(*layer))
            continue
        weight, bias = parameters[f"{layer}.weight"], parameters[f"{layer}.bias"]
        if layer == "conv1":
            weight, bias = _fold_normalisation(weight, bias)
        if layer in _DENSE_SIDES:
            weight = _channels_first(weight, _DENSE_SIDES[layer])
        layers.append(Dense(weight, bias, parameters[f"prelu{layer[-1]}.weight"]))
    weights = [parameters[f"{head}.weight"] for head in _HEADS[name]]
    biases = [parameters[f"{head}.bias"] for head in _HEADS[name]]
    weights[-1], biases[-1] = weights[-1][1:] - weights[-1][:1], biases[-1][1:] - biases[-1][:1]
    layers.append(Dense(np.concatenate(weights), np.concatenate(biases), None))
    return tuple(layers)


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
    "openvino": ImportTarget("packer.vision.detect.openvino_runtime:OpenVINORuntime", "faces"),
    "torch": ImportTarget("packer.vision.detect.torch_runtime:TorchRuntime", "faces"),
}
"""The values of ``--detector`` except auto, each named after its library. `make_runtime` calls the classes."""

IntArray = npt.NDArray[np.int64]

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_NAME_BYTES = 256


class Frame(Protocol):
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

    def open(self, image: npt.NDArray[np.uint8]) -> Frame:
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


def make_runtime(
    name: str, networks: Mapping[str, tuple[Layer, ...]], *, device: str, threads: int, precision: str
) -> Runtime:
    """Import a runtime's file and make it; ``name`` is a key of ``RUNTIMES``."""
    runtime: Runtime = resolve("runtime", name, RUNTIMES)(networks, device=device, threads=threads, precision=precision)
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
