"""A detector in another process."""

import socket
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.vision.detect.channel import ChannelError, receive, receive_into, send, send_arrays
from packer.vision.detect.detections import Detections
from shardspec.errors import ItemError


class DetectorLost(BaseException):
    """The detecting process has ended. Not an ``Exception``, so that no step takes it for a fault of its item."""


class RemoteDetector:
    """Asks the ``DetectorServer`` of the detecting process over a socket. One thread at a time may use it."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def detect(self, frames: Sequence[npt.NDArray[np.uint8]]) -> Detections:
        """Find the faces in each frame, (H, W, 3) uint8 RGB.

        Raises
        ------
        ItemError
            If the detector cannot process these frames; the message is the detector's.
        MemoryError
            If the detector has no memory for the frames.
        DetectorLost
            If the detecting process has ended.
        """
        images = [np.ascontiguousarray(frame) for frame in frames]
        try:
            send(self._socket, {"frames": [image.shape[:2] for image in images]})
            self._answer()  # the server has memory for the frames
            send_arrays(self._socket, *images)
            faces = np.asarray(self._answer()["faces"], np.int64)
            total = int(faces.sum())
            found = np.empty((total, 4), np.float32), np.empty(total, np.float32), np.empty((total, 5, 2), np.float32)
            for array in found:
                receive_into(self._socket, array)
        except ChannelError as error:
            raise DetectorLost(f"detector: {error}") from error
        return Detections(*found, np.concatenate([np.zeros(1, np.int64), np.cumsum(faces)]))

    def close(self) -> None:
        self._socket.close()

    def _answer(self) -> dict[str, Any]:
        header = receive(self._socket)
        if header is None:
            raise ChannelError("the other process has ended")
        if header.get("memory"):
            raise MemoryError(header["error"])
        if "error" in header:
            raise ItemError(header["error"])
        return header
