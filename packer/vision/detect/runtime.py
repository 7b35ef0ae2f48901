"""The runtimes that the networks can run on: one protocol and one table."""

import importlib
import importlib.util
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from packer.vision.detect.networks import Layer

__all__ = ["RUNTIMES", "Frame", "Runtime", "make_runtime", "resolve_runtime"]

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


class Frame(Protocol):
    """One picture, ready to be looked at by the networks."""

    def propose(self, height: int, width: int, min_logit: float) -> tuple[IntArray, IntArray, FloatArray]:
        """Run P-net on the picture shrunk to (height, width) by area averaging.

        Returns
        -------
        y, x : ndarray, (n,), int64
            The cells of P-net's map (stride 2) whose logit is at least ``min_logit``, in row-major order.
        values : ndarray, (n, 5), float32
            Their outputs.
        """
        ...

    def refine(self, net: str, windows: IntArray, min_logit: float) -> FloatArray:
        """Run R-net or O-net on windows of the picture, each shrunk or grown to the net's size by area averaging.

        Parameters
        ----------
        net : {"rnet", "onet"}
        windows : ndarray, (n, 4), int64
            Left, top, right, bottom (exclusive); inside the picture and not empty.
        min_logit : float
            Rows that do not reach it may hold approximate values, which do not reach it either.

        Returns
        -------
        ndarray, (n, OUTPUTS[net]), float32
        """
        ...


class Runtime(Protocol):
    """A library that runs the networks on a device. Made once per process; not safe across threads, fork or pickle."""

    def open(self, image: npt.NDArray[np.uint8]) -> Frame:
        """Prepare a picture, (H, W, 3) uint8 RGB, C-contiguous."""
        ...

    def new_frame(self, height: int, width: int) -> npt.NDArray[np.uint8]:
        """Memory for a picture, (height, width, 3) uint8, not set. Any thread may ask for it."""
        ...

    def describe(self) -> dict[str, str]:
        """Say which library, version, device and precision decide the numbers."""
        ...


class _Entry(NamedTuple):
    target: str  # "module:Class", called as Class(networks, device=..., threads=..., precision=..., screen=...)
    library: str  # what must be importable
    install: str


RUNTIMES = {
    "openvino": _Entry("packer.vision.detect.openvino_runtime:OpenVINORuntime", "openvino", "pip install openvino"),
    "torch": _Entry("packer.vision.detect.torch_runtime:TorchRuntime", "torch", "pip install torch"),
}


def resolve_runtime(name: str, device: str) -> str:
    """Turn ``"auto"`` into the best installed runtime for a device, and check any other name.

    Raises
    ------
    ValueError
        If there is no such runtime.
    ModuleNotFoundError
        If the library is not installed.
    """
    if name == "auto":
        preferred = ("openvino", "torch") if device == "cpu" else ("torch",)
        installed = [choice for choice in preferred if importlib.util.find_spec(RUNTIMES[choice].library)]
        if not installed:
            options = " or ".join(f"`{RUNTIMES[choice].install}`" for choice in preferred)
            raise ModuleNotFoundError(f"expected a runtime for face detection on {device!r}, found none; run {options}")
        return installed[0]
    if name not in RUNTIMES:
        raise ValueError(f"expected runtime 'auto' or one of {sorted(RUNTIMES)}, found {name!r}")
    if importlib.util.find_spec(RUNTIMES[name].library) is None:
        raise ModuleNotFoundError(f"runtime {name!r} needs {RUNTIMES[name].library}; run `{RUNTIMES[name].install}`")
    return name


def make_runtime(
    name: str, networks: Mapping[str, tuple[Layer, ...]], *, device: str, threads: int, precision: str, screen: bool
) -> Runtime:
    """Import a runtime's file and make it; ``name`` is a key of ``RUNTIMES``."""
    module, _, cls = RUNTIMES[name].target.partition(":")
    factory = getattr(importlib.import_module(module), cls)
    runtime: Runtime = factory(networks, device=device, threads=threads, precision=precision, screen=screen)
    return runtime
