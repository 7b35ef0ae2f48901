"""What a worker is given beside its plan."""

from dataclasses import dataclass

from packer.vision.detect.detections import FaceDetector


@dataclass(frozen=True, slots=True)
class Equipment:
    """What steps may use. It decides how fast they are, and no byte of what they give.

    Attributes
    ----------
    detector : FaceDetector or None
        What finds faces; None if the worker is to load one.
    decodes_ahead : bool
        Whether frames are decoded in a thread of their own while the steps after work: where the worker has a core to spare for it.
    """

    detector: FaceDetector | None = None
    decodes_ahead: bool = False
