"""Messages between workers and the detecting process over a socket, and how a connection is passed to that process.

A message is a JSON header, followed by arrays as they are in memory. Nothing here has a time limit: the engine ends a
process that takes too long, and the other side then sees the end of the connection.
"""

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

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
