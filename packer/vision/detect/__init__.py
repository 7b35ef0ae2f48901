"""Face detection: MTCNN with its published weights, run by this project's inference engine.

``Detector`` and ``Detections`` are the whole interface; `docs/background/detector_design.md` explains how the engine works and
what was measured. Importing this package loads neither OpenCV nor a neural network library: the names below resolve on
first use, and the runtime's library is imported by ``Detector(...)``.
"""

from typing import TYPE_CHECKING

from shardspec.registry import ImportTarget, lazy_names

if TYPE_CHECKING:
    from packer.vision.detect.detector import Detector
    from packer.vision.detect.interface import Detections
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "Detections": ImportTarget("packer.vision.detect.interface:Detections"),
            "Detector": ImportTarget("packer.vision.detect.detector:Detector", "faces-light"),
        },
    )

__all__ = ["Detections", "Detector"]
