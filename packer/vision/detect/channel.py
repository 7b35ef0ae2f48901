"""Connections between workers and the detecting process: messages over a socket, and how a connection is handed over.

A message is a JSON header, then arrays as they lie in memory.
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
_TICK_S = 1.0

_NUMBER_BYTES = 20
"""Length of the number of a connection: decimal digits, padded with spaces."""


class Channel:
    """One end of a connected socket. One thread at a time may send, and one receive.

    Parameters
    ----------
    sock : socket
        Owned by the channel from now on.
    peer : str
        Name of the other end, for messages.
    limit_s : float
        Seconds that the other side may leave this one waiting within a message. They are counted in ticks of a second,
        so that time in which this process is stopped (a suspended Slurm job) does not count.
    """

    def __init__(self, sock: socket.socket, peer: str, limit_s: float) -> None:
        self._tick_s = min(_TICK_S, limit_s)
        sock.settimeout(self._tick_s)
        self._socket = sock
        self._peer = peer
        self._limit_s = limit_s

    def close(self) -> None:
        """Close the socket; the other side sees the end."""
        self._socket.close()

    def send(self, header: Mapping[str, Any], *arrays: npt.NDArray[Any]) -> None:
        """Send a header, and arrays whose shapes the other side knows.

        Raises
        ------
        ChannelError
            If the other side has ended, or has no room for the data in time.
        """
        text = json.dumps(header).encode()
        self._send(memoryview(_LENGTH.pack(len(text)) + text))
        self.send_arrays(*arrays)

    def send_arrays(self, *arrays: npt.NDArray[Any]) -> None:
        """Send arrays alone; they must be C-contiguous."""
        for array in arrays:
            self._send(_bytes_of(array))

    def receive(self, what: str, *, idle: bool = False) -> dict[str, Any] | None:
        """Receive the next header; None if the other side has ended before it.

        Parameters
        ----------
        what : str
            What this side waits for, for messages.
        idle : bool
            Whether the other side may begin its message at any time.

        Raises
        ------
        ChannelError
            If the header does not arrive in time or is too long, or if the other side ends within it.
        """
        length = bytearray(_LENGTH.size)
        if not self._receive(memoryview(length), what, idle=idle, may_end=True):
            return None
        (size,) = _LENGTH.unpack(length)
        if size > _MAX_HEADER:
            raise ChannelError(f"{self._peer}: expected a header of at most {_MAX_HEADER} bytes, found {size}")
        text = bytearray(size)
        self._receive(memoryview(text), what)
        header: dict[str, Any] = json.loads(text)
        return header

    def receive_into(self, array: npt.NDArray[Any], what: str) -> None:
        """Fill a C-contiguous array.

        Raises
        ------
        ChannelError
            If the data do not arrive in time, or if the other side ends.
        """
        self._receive(_bytes_of(array), what)

    def _send(self, data: memoryview) -> None:
        waited_s = 0.0
        while data:
            try:
                data = data[self._socket.send(data) :]
                waited_s = 0.0
            except TimeoutError:
                waited_s = self._wait(waited_s, "room to send")
            except (BrokenPipeError, ConnectionResetError) as error:
                raise ChannelError(f"{self._peer} has ended") from error

    def _receive(self, data: memoryview, what: str, *, idle: bool = False, may_end: bool = False) -> bool:
        """Fill `data`; False if the other side has ended before its first byte, and `may_end` allows that."""
        waited_s = 0.0
        while data:
            try:
                count = self._socket.recv_into(data)
            except TimeoutError:
                waited_s = 0.0 if idle else self._wait(waited_s, what)
                continue
            except ConnectionResetError:
                count = 0
            if not count:
                if may_end:
                    return False
                raise ChannelError(f"{self._peer} has ended while this process waited for {what}")
            data, waited_s, idle, may_end = data[count:], 0.0, False, False
        return True

    def _wait(self, waited_s: float, what: str) -> float:
        waited_s += self._tick_s
        if waited_s >= self._limit_s:
            raise ChannelError(f"waited {self._limit_s:g} s for {what} from {self._peer}")
        return waited_s


class ChannelError(Exception):
    """The other side did not answer in time, ended within a message, or sent something invalid."""


def hand_over(control: socket.socket, connection: socket.socket, number: int) -> None:
    """Give the other process a duplicate of a connection.

    Raises
    ------
    OSError
        If the other process has ended, or does not receive anything.
    """
    socket.send_fds(control, [str(number).ljust(_NUMBER_BYTES).encode("ascii")], [connection.fileno()])


def take_over(control: socket.socket) -> tuple[socket.socket, int] | None:
    """The next connection with its number; None if the other process has ended."""
    number, descriptors, _, _ = socket.recv_fds(control, _NUMBER_BYTES, 1)
    return (socket.socket(fileno=descriptors[0]), int(number)) if number else None


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    """The array's own memory, so that nothing is copied."""
    if not array.flags.c_contiguous:
        raise ValueError("expected a C-contiguous array")
    return array.reshape(-1).view(np.uint8).data
