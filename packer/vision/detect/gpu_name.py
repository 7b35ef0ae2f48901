"""The name of a GPU, asked of its driver."""

import ctypes
import sys

__all__ = ["gpu_name"]

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_NAME_BYTES = 256


def gpu_name(device: str) -> str | None:
    """The name of a device such as ``"cuda:1"``, as torch tells it; None for one that is not CUDA's, or where the driver does not say.

    Torch makes a context on the GPU before it tells. It would stay in this process, and some GPUs take one process only.
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
