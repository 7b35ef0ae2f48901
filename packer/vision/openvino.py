"""OpenVINO without its telemetry, and with one core.

Importing openvino sends an event over the network from a forked child process. The child inherits the pipes of a worker and can
hang in the fork, and a tool that packs people's faces has nothing to report to anybody. OpenVINO takes a stub of its own where
the telemetry package is missing, so it is made to look missing.
"""

import functools
import sys
from typing import Any

sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None makes the import fail (import system reference, 5.3.1)

import openvino  # noqa: E402 -- only after the line above
from openvino import opset13 as ops  # noqa: E402

__all__ = ["core", "openvino", "ops"]


@functools.cache
def core() -> Any:
    """Return the process's one ``openvino.Core``, which is never freed.

    Each Core sets an alternate signal stack when its CPU plugin loads, and puts the one before it back when it is freed
    (openvinotoolkit/openvino#11894). Two that are freed in the order of their making leave the process with a stack that
    is gone, and the next signal that Python handles, such as Ctrl-C or the end of a child, ends it with a segmentation fault.
    """
    return openvino.Core()
