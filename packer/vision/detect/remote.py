"""A detector in another process, and the messages between workers and that process over a socket.

A message is a JSON header, followed by arrays as they are in memory. Nothing here has a time limit: the engine ends a
process that takes too long, and the other side then sees the end of the connection.
"""

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.vision.detect.detections import Detections
from shardspec.errors import ItemError

_LENGTH = struct.Struct("<I")
_MAX_HEADER = 1 << 20

_NUMBER_BYTES = 20
"""Length of the number of a connection: decimal digits, padded with spaces."""


class ChannelError(Exception):
    """The other process has ended, or sent something invalid."""


def send(sock: socket.socket, header: Mapping[str, Any], *arrays: npt.NDArray[Any]) -> None:
    """Send a header, and C-contiguous arrays whose shapes the other side knows.

    Raises
    ------
    ChannelError
        If the other side has ended.
    """
    text = json.dumps(header).encode()
    _send(sock, _LENGTH.pack(len(text)) + text)
    send_arrays(sock, *arrays)


def send_arrays(sock: socket.socket, *arrays: npt.NDArray[Any]) -> None:
    """Send arrays without a header."""
    for array in arrays:
        _send(sock, _bytes_of(array))


def receive(sock: socket.socket) -> dict[str, Any] | None:
    """Receive the next header; None if the other side has ended before it.

    Raises
    ------
    ChannelError
        If the header is too long, or if the other side ends within it.
    """
    length = bytearray(_LENGTH.size)
    if not _receive(sock, memoryview(length), may_end=True):
        return None
    (size,) = _LENGTH.unpack(length)
    if size > _MAX_HEADER:
        raise ChannelError(f"expected a header of at most {_MAX_HEADER} bytes, found {size}")
    text = bytearray(size)
    _receive(sock, memoryview(text))
    header: dict[str, Any] = json.loads(text)
    return header


def receive_into(sock: socket.socket, array: npt.NDArray[Any]) -> None:
    """Fill a C-contiguous array.

    Raises
    ------
    ChannelError
        If the other side ends.
    """
    _receive(sock, _bytes_of(array))


def hand_over(control: socket.socket, connection: socket.socket, number: int) -> None:
    """Give the other process a duplicate of a connection.

    Raises
    ------
    OSError
        If the other process has ended, or does not receive anything.
    """
    socket.send_fds(control, [str(number).ljust(_NUMBER_BYTES).encode("ascii")], [connection.fileno()])


def take_over(control: socket.socket) -> tuple[socket.socket, int] | None:
    """Return the next connection with its number; None if the other process has ended."""
    number, descriptors, _, _ = socket.recv_fds(control, _NUMBER_BYTES, 1)
    return (socket.socket(fileno=descriptors[0]), int(number)) if number else None


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


def _send(sock: socket.socket, data: bytes | memoryview) -> None:
    try:
        sock.sendall(data)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise ChannelError("the other process has ended") from error


def _receive(sock: socket.socket, data: memoryview, *, may_end: bool = False) -> bool:
    """Fill `data`; return False if the other side has ended before its first byte, and `may_end` allows that."""
    while data:
        try:
            count = sock.recv_into(data)
        except ConnectionResetError:
            count = 0
        if not count:
            if may_end:
                return False
            raise ChannelError("the other process has ended within a message")
        data, may_end = data[count:], False
    return True


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    """Return the array's own memory, so that nothing is copied."""
    if not array.flags.c_contiguous:
        raise ValueError("expected a C-contiguous array")
    return array.reshape(-1).view(np.uint8).data
