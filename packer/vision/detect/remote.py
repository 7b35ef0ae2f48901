"""A detector in another process: the messages over a socket, the workers' side, and the server.

A message is a JSON header, followed by arrays as they are in memory. Nothing here has a time limit: the engine ends a
process that takes too long, and the other side then sees the end of the connection. The server receives requests in
parallel, and processes them one at a time.
"""

import json
import queue
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from packer.vision.detect.detections import Detections
from packer.vision.detect.interface import BadDetectionsError, CheckedDetector, Frame
from packer.vision.faults import describe_error, find_memory_error
from shardspec.errors import ItemError
from shardspec.wording import counted

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


WAITING_BYTES = 256 * 10**6
"""Memory limit in bytes for frames of queued requests: ten requests of four 1080p frames. One may exceed the limit."""

_PROBE_SIDE = 512
_CHANNELS = 3


@dataclass(eq=False)
class _Request:
    """The frames of one worker, and their result."""

    worker: int
    frames: list[Frame]
    found: Detections | None = None
    error: str = ""
    lacked_memory: bool = False
    done: threading.Event = field(default_factory=threading.Event)


class DetectorServer:
    """Serves requests from any number of connections.

    A request is detected by itself, so its result does not depend on other workers' requests or their times. While one
    request is detected, those of other workers are received, into at most `WAITING_BYTES`; a worker has at most one
    request under way.

    Parameters
    ----------
    announce : callable
        Called, in any thread, with the state of a worker's request, the worker's number, and the number of frames. The
        state is ``"waits"`` once the worker has asked, ``"busy"`` when detection begins, ``"over"`` when the request
        was detected or refused.
    """

    def __init__(self, announce: Callable[[str, int, int], None]) -> None:
        self._announce = announce
        self._requests: queue.SimpleQueue[_Request] = queue.SimpleQueue()
        self._room = _Room(WAITING_BYTES)
        self._detector: CheckedDetector | None = None
        self._loaded = threading.Event()

    def attach(self, sock: socket.socket, worker: int) -> None:
        """Serve a worker from now on, until its connection ends."""
        threading.Thread(target=self._receive_all, args=(sock, worker), daemon=True).start()

    def run(self, detector: CheckedDetector) -> NoReturn:
        """Detect the requests, in this thread, for ever.

        Raises
        ------
        Exception
            If the detector raised an error, and then fails even on an empty frame (a GPU after an illegal access): the
            process must end, since it cannot detect any more.
        """
        self._detector = detector
        self._loaded.set()
        while True:
            self._detect(detector, self._requests.get())

    def _detect(self, detector: CheckedDetector, request: _Request) -> None:
        count = len(request.frames)
        self._announce("busy", request.worker, count)
        try:
            request.found = detector.detect(request.frames)
        except BadDetectionsError as error:
            request.error = str(error)
        except Exception as error:
            detector.detect([np.zeros((_PROBE_SIDE, _PROBE_SIDE, _CHANNELS), np.uint8)])
            request.error = str(error) if isinstance(error, ItemError) else describe_error(error)
            request.lacked_memory = find_memory_error(error) is not None
        request.frames.clear()
        self._announce("over", request.worker, count)
        request.done.set()

    def _receive_all(self, sock: socket.socket, worker: int) -> None:
        with sock:
            try:
                while (header := receive(sock)) is not None:
                    self._receive(sock, worker, [(int(height), int(width)) for height, width in header["frames"]])
            except ChannelError as error:
                print(f"connection to worker {worker} closed: {error}", file=sys.stderr, flush=True)

    def _receive(self, sock: socket.socket, worker: int, shapes: list[tuple[int, int]]) -> None:
        self._loaded.wait()  # the build gives no worker anything to do before
        assert self._detector is not None
        self._announce("waits", worker, len(shapes))
        with self._room.taken(sum(height * width * _CHANNELS for height, width in shapes)):
            try:
                frames = [_new_frame(self._detector, *shape) for shape in shapes]
            except MemoryError as error:
                self._announce("over", worker, len(shapes))
                text = f"no memory for {counted(len(shapes), 'frame')}: {describe_error(error)}"
                send(sock, {"error": text, "memory": True})
                return
            send(sock, {"room": True})
            for frame in frames:
                receive_into(sock, frame)
            request = _Request(worker, frames)
            del frames
            self._requests.put(request)
            request.done.wait()
        if request.found is None:
            send(sock, {"error": request.error, "memory": request.lacked_memory})
            return
        found = request.found
        faces = np.diff(found.offsets).tolist()
        send(sock, {"faces": faces}, *map(np.ascontiguousarray, (found.boxes, found.scores, found.points)))


def _new_frame(detector: CheckedDetector, height: int, width: int) -> Frame:
    """Return a frame buffer: the detector's own if one is free (faster to upload), else ordinary memory."""
    try:
        return detector.new_frame(height, width)
    except (MemoryError, RuntimeError):
        return np.empty((height, width, _CHANNELS), np.uint8)


class _Room:
    """A byte budget. The first waiter cannot be overtaken by a smaller request; those behind it have no fixed order."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._turn = threading.Lock()
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Hold `size` bytes of the budget; a larger size than the whole budget counts as the whole."""
        size = min(size, self._limit)
        with self._turn, self._changed:  # one waits here, the others for their turn: a large request is not overtaken
            while self._used + size > self._limit:
                self._changed.wait()
            self._used += size
        try:
            yield
        finally:
            with self._changed:
                self._used -= size
                self._changed.notify()
