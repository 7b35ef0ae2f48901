"""OpenVINO without its telemetry, and with a single core.

Importing openvino sends an event over the network from a forked child process. The child inherits the pipes of a worker
and can hang in the fork, and a tool that packs people's faces must not report to anyone. If the telemetry package is
missing, OpenVINO uses a stub instead, so this module makes the package look missing.
"""

import functools
import sys
from typing import Any

# None makes the import fail (import system reference, 5.3.1).
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

import openvino  # noqa: E402 -- only after the line above
from openvino import opset13 as ops  # noqa: E402

__all__ = ["core", "new_request", "openvino", "ops"]


@functools.cache
def core() -> Any:
    """Return the process's one ``openvino.Core``, which is never freed.

    Each Core sets an alternate signal stack when its CPU plugin loads, and restores the previous one when it is freed
    (openvinotoolkit/openvino#11894). Two Cores that are freed in the order in which they were made leave the process
    with a stack that no longer exists, and the next signal that Python handles, such as Ctrl-C or the end of a child,
    ends the process with a segmentation fault.
    """
    return openvino.Core()


def new_request(network: Any, *, threads: int = 1, **config: Any) -> Any:
    """Compile a network for the CPU and return an inference request for it."""
    config = {
        "INFERENCE_PRECISION_HINT": "f32",  # the default may be bf16, which is not exact
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
        "ENABLE_CPU_PINNING": False,  # pinned, two worker processes share one core
        **config,
    }
    return core().compile_model(network, "CPU", config).create_infer_request()
