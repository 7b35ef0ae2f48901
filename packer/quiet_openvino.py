"""OpenVINO without its telemetry.

Importing openvino sends an event over the network from a forked child process. The child inherits the pipes of a worker and can
hang in the fork, and a tool that packs people's faces has nothing to report to anybody. OpenVINO takes a stub of its own where
the telemetry package is missing, so it is made to look missing.
"""

import sys

sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None makes the import fail (import system reference, 5.3.1)

import openvino  # noqa: E402 -- only after the line above
from openvino import opset13 as ops  # noqa: E402

__all__ = ["has_bfloat16", "openvino", "ops"]


def has_bfloat16() -> bool:
    """Whether OpenVINO calculates in bfloat16 on this processor."""
    capabilities: list[str] = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return "BF16" in capabilities
