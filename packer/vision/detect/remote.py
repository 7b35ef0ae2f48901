"""A detector in another process: the messages over a socket, the workers' side, and the server.

A message is a line of JSON, or an array as it is in memory. Nothing here has a time limit: the engine ends a process
that takes too long, and the other side then sees the end of the connection. The server receives requests in parallel,
and processes them one at a time.
"""

import json
import queue
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from packer.vision.detect.interface import BadDetectionsError, CheckedDetector, Detections, Frame
from packer.vision.faults import describe_error, find_memory_error
from shardspec.errors import ItemError
from shardspec.wording import counted

RECEIVED_REQUESTS = 4
"""Number of requests whose frames are in memory: one that is processed, and those that follow it."""

_NUMBER_BYTES = 20
"""Length of the number of a connection: decimal digits, padded with spaces."""

_PROBE_SIDE = 512
_CHANNELS = 3


class Channel:
    """Messages over a socket, for one thread. If the other side has ended, a `ConnectionError` is raised."""

    def __init__(self, sock: socket.socket) -> None:
        self._file = sock.makefile("rwb")
        sock.close()  # the file keeps it open

    def send(self, *parts: Mapping[str, Any] | npt.NDArray[Any]) -> None:
        """Send headers, and C-contiguous arrays whose shapes the other side knows."""
        for part in parts:
            self._file.write(_memory(part) if isinstance(part, np.ndarray) else json.dumps(part).encode() + b"\n")
        self._file.flush()

    def receive(self) -> dict[str, Any] | None:
        """Receive the next header; None if the other side has ended before it."""
        line = self._file.readline()
        if line and not line.endswith(b"\n"):
            raise ConnectionError("the other process has ended within a message")
        header: dict[str, Any] | None = json.loads(line) if line else None
        return header

    def fill(self, *arrays: npt.NDArray[Any]) -> None:
        """Fill C-contiguous arrays with those that the other side sends."""
        for array in arrays:
            if self._file.readinto(_memory(array)) < array.nbytes:
                raise ConnectionError("the other process has ended within a message")

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):  # what could not be sent before
            self._file.close()


def _memory(array: npt.NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


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
        self._channel = Channel(sock)

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
            self._channel.send({"frames": [image.shape[:2] for image in images]})
            self._answer()  # the server has memory for the frames
            self._channel.send(*images)
            offsets = np.cumsum([0, *self._answer()["faces"]], dtype=np.int64)
            total = int(offsets[-1])
            found = np.empty((total, 4), np.float32), np.empty(total, np.float32), np.empty((total, 5, 2), np.float32)
            self._channel.fill(*found)
        except ConnectionError as error:
            raise DetectorLost("detector: the other process has ended") from error
        return Detections(*found, offsets)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _answer(self) -> dict[str, Any]:
        header = self._channel.receive()
        if header is None:
            raise ConnectionError("the other process has ended")
        if header.get("memory"):
            raise MemoryError(header["error"])
        if "error" in header:
            raise ItemError(header["error"])
        return header


class _Refusal(NamedTuple):
    """An error of a detector as text. The exception itself would keep alive the frames of its traceback."""

    text: str
    lacks_memory: bool


class DetectorServer:
    """Serves requests from any number of connections.

    A request is detected by itself, so its result does not depend on other workers' requests or their times. While one
    request is detected, those of other workers are received, up to `RECEIVED_REQUESTS`; a worker has at most one
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
        self._requests: queue.SimpleQueue[tuple[int, list[Frame], Future[Detections | _Refusal]]] = queue.SimpleQueue()
        self._room = threading.Semaphore(RECEIVED_REQUESTS)
        self._detector: Future[CheckedDetector] = Future()

    def attach(self, sock: socket.socket, worker: int) -> None:
        """Serve a worker from now on, until its connection ends."""
        threading.Thread(target=self._serve, args=(Channel(sock), worker), daemon=True).start()

    def run(self, detector: CheckedDetector) -> NoReturn:
        """Detect the requests, in this thread, for ever.

        Raises
        ------
        Exception
            If the detector raised an error, and then fails even on an empty frame (a GPU after an illegal access): the
            process must end, since it cannot detect any more.
        """
        self._detector.set_result(detector)
        while True:
            worker, frames, result = self._requests.get()
            count = len(frames)
            self._announce("busy", worker, count)
            found: Detections | _Refusal
            in_doubt = ""
            try:
                found = detector.detect(frames)
            except Exception as error:
                text = str(error) if isinstance(error, ItemError) else describe_error(error)
                found = _Refusal(text, find_memory_error(error) is not None)
                in_doubt = "" if isinstance(error, BadDetectionsError) else text
            frames.clear()
            if in_doubt:  # after the handler, because its exception keeps alive what the call made on the device
                print(f"worker {worker}: {in_doubt}", file=sys.stderr, flush=True)
                detector.detect([np.zeros((_PROBE_SIDE, _PROBE_SIDE, _CHANNELS), np.uint8)])
            self._announce("over", worker, count)
            result.set_result(found)
            del found, result

    def _serve(self, channel: Channel, worker: int) -> None:
        try:
            while (header := channel.receive()) is not None:
                self._answer(channel, worker, header["frames"])
        except ConnectionError as error:
            print(f"connection to worker {worker} closed: {error}", file=sys.stderr, flush=True)
        finally:
            channel.close()

    def _answer(self, channel: Channel, worker: int, shapes: list[tuple[int, int]]) -> None:
        detector = self._detector.result()  # the build gives no worker anything to do before
        self._announce("waits", worker, len(shapes))
        result = Future[Detections | _Refusal]()
        with self._room:
            try:
                frames = [_new_frame(detector, *shape) for shape in shapes]
            except MemoryError as error:
                self._announce("over", worker, len(shapes))
                text = f"no memory for {counted(len(shapes), 'frame')}: {describe_error(error)}"
                channel.send({"error": text, "memory": True})
                return
            channel.send({"room": True})
            channel.fill(*frames)
            self._requests.put((worker, frames, result))
            del frames  # they are freed once the request is detected
            found = result.result()
        if isinstance(found, _Refusal):
            channel.send({"error": found.text, "memory": found.lacks_memory})
            return
        faces = np.diff(found.offsets).tolist()
        channel.send({"faces": faces}, *map(np.ascontiguousarray, (found.boxes, found.scores, found.points)))


def _new_frame(detector: CheckedDetector, height: int, width: int) -> Frame:
    """Return a frame buffer: the detector's own if one is free (faster to upload), else ordinary memory."""
    try:
        return detector.new_frame(height, width)
    except (MemoryError, RuntimeError):
        return np.empty((height, width, _CHANNELS), np.uint8)
