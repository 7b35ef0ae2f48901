"""Runtimes of the networks: their protocol, their table, and the name of a GPU."""

import ctypes
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Protocol

import numpy as np
import numpy.typing as npt

from packer.vision.detect.networks import Layer
from shardspec.errors import UsageError
from shardspec.registry import ImportTarget, check_installed, resolve
from shardspec.wording import did_you_mean, shorten

RUNTIMES: Mapping[str, ImportTarget] = {
    "openvino": ImportTarget("packer.vision.detect.openvino_runtime:OpenVINORuntime", "faces"),
    "torch": ImportTarget("packer.vision.detect.torch_runtime:TorchRuntime", "faces"),
}
"""The values of ``--detector`` except auto, each named after its library. `make_runtime` calls the classes."""

FloatArray = npt.NDArray[np.float32]
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
