"""Face detection: MTCNN with the weights of facenet-pytorch, run by an engine of our own.

``Detector`` and ``Detections`` are the whole interface; `docs/detector.md` tells how the engine works and what it was
measured to do. Importing this package loads neither OpenCV nor a neural network library: the names below resolve on
first use, and the runtime's library is imported by ``Detector(...)``.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packer.vision.detect.detections import Detections
    from packer.vision.detect.detector import Detector

__all__ = ["Detections", "Detector"]

_NAMES = {
    "Detections": "packer.vision.detect.detections",
    "Detector": "packer.vision.detect.detector",
}


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(sorted(_NAMES))}")
    return getattr(importlib.import_module(_NAMES[name]), name)
