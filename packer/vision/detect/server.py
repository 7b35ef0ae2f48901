"""One detector for many workers. Requests are received in parallel, and processed one at a time."""

import queue
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from packer.vision.detect.detections import Detections
from packer.vision.detect.interface import BadDetectionsError, CheckedDetector
from packer.vision.detect.remote import ChannelError, receive, receive_into, send
from packer.vision.faults import describe_error, find_memory_error
from shardspec.errors import ItemError
from shardspec.wording import counted

Frame = npt.NDArray[np.uint8]

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
