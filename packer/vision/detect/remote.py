"""A detector that lives in another process."""

import socket
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.vision.detect.channel import Channel, ChannelError
from packer.vision.detect.detections import Detections
from shardspec.errors import ItemError


class DetectorLost(BaseException):
    """The detecting process is gone. Not an ``Exception``, so that no step takes it for a fault of its item."""


class RemoteDetector:
    """Asks the detecting process; fulfils ``packer.vision.detect.detections.FaceDetector``.

    One thread at a time may use it.

    Parameters
    ----------
    sock : socket
        Connected to a ``packer.vision.detect.server.DetectorServer``.
    limit_s : float
        Seconds that an answer may take.
    """

    def __init__(self, sock: socket.socket, limit_s: float) -> None:
        self._channel = Channel(sock, "the detector process", limit_s)

    def detect(self, frames: Iterable[npt.NDArray[np.uint8]]) -> Detections:
        """Find the faces in each frame, (H, W, 3) uint8 RGB, as ``packer.vision.detect.Detector.detect`` does.

        Raises
        ------
        ItemError
            If the detector cannot process these frames; the message is the detector's.
        MemoryError
            If the detector has no memory for the frames.
        DetectorLost
            If the detecting process has ended or does not answer.
        """
        pictures = [np.ascontiguousarray(frame) for frame in frames]
        for number, picture in enumerate(pictures):
            if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
                raise ItemError(
                    f"frame {number}: expected an RGB picture as an array (H, W, 3) of uint8, "
                    f"found {picture.dtype} {picture.shape}"
                )
        try:
            self._channel.send({"frames": [picture.shape[:2] for picture in pictures]})
            self._answer("room for a request")
            self._channel.send_arrays(*pictures)
            faces = np.asarray(self._answer("faces")["faces"], np.int64)
            total = int(faces.sum())
            boxes = np.empty((total, 4), np.float32)
            scores = np.empty(total, np.float32)
            points = np.empty((total, 5, 2), np.float32)
            for array in (boxes, scores, points):
                self._channel.receive_into(array, "faces")
        except ChannelError as error:
            raise DetectorLost(str(error)) from error
        return Detections(boxes, scores, points, np.concatenate([np.zeros(1, np.int64), np.cumsum(faces)]))

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _answer(self, what: str) -> dict[str, Any]:
        header = self._channel.receive(what)
        if header is None:
            raise DetectorLost(f"the detector process has ended while this process waited for {what}")
        if header.get("memory"):
            raise MemoryError(header["error"])
        if "error" in header:
            raise ItemError(header["error"])
        return header
