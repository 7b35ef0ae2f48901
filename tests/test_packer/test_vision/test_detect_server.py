"""The detecting process's server and the worker's end of it, over real sockets, with a detector that frames control."""

import socket
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.processes import wait_for

from packer import Detections
from packer.vision.detect.interface import BadDetectionsError
from packer.vision.detect.remote import RECEIVED_REQUESTS, Channel, DetectorLost, DetectorServer, RemoteDetector
from shardspec.errors import ItemError

LIMIT_S = 60.0
Frame = npt.NDArray[np.uint8]


class Stop(BaseException):
    """Ends the server's thread, as nothing else does."""


class FakeDetector:
    """Finds as many faces as a frame's first byte says, with its sum as their boxes; waits if that byte is 255."""

    def __init__(self) -> None:
        self.requests: list[list[int]] = []
        self.made: list[tuple[int, int]] = []
        self.go_on = threading.Event()
        self.spared: Exception | None = None
        self.made_by_failed: weakref.ref[Frame] | None = None
        self.kept = False

    def new_frame(self, height: int, width: int) -> Frame:
        if self.spared is not None:
            raise self.spared
        self.made.append((height, width))
        return np.empty((height, width, 3), np.uint8)

    def detect(self, frames: Sequence[Frame]) -> Detections:
        first = [int(frame.flat[0]) if frame.size else 0 for frame in frames]
        self.requests.append(first)
        self.kept = self.made_by_failed is not None and self.made_by_failed() is not None
        if 255 in first:
            assert self.go_on.wait(LIMIT_S)
            first = [0] * len(first)
        if 254 in first:
            raise Stop
        if 253 in first:
            on_device = np.empty((2, 2, 3), np.uint8)
            self.made_by_failed = weakref.ref(on_device)
            raise ValueError("a bad frame")
        if 252 in first:
            raise BadDetectionsError("detector x: expected scores")
        sums = np.repeat([float(frame.sum(dtype=np.int64) % 1000) for frame in frames], first).astype(np.float32)
        total = len(sums)
        points = np.arange(total * 10, dtype=np.float32).reshape(total, 5, 2)
        return Detections(np.repeat(sums[:, None], 4, 1), sums / 1000, points, np.cumsum([0, *first]).astype(np.int64))


class Served:
    """A server in this process, with connections to it."""

    def __init__(self) -> None:
        self.detector = FakeDetector()
        self.reports: list[tuple[str, int, int]] = []
        self.server = DetectorServer(lambda *report: self.reports.append(report))
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        self.clients: list[RemoteDetector] = []

    def connect(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self.server.attach(theirs, len(self.clients))
        return ours

    def client(self) -> RemoteDetector:
        self.clients.append(RemoteDetector(self.connect()))
        return self.clients[-1]

    def close(self) -> None:
        self.detector.go_on.set()
        ours = Channel(self.connect())
        ours.send({"frames": [(1, 1)]})
        assert ours.receive() == {"room": True}
        ours.send(frame(254, 1, 1))
        self.thread.join(LIMIT_S)
        ours.close()
        for client in self.clients:
            client.close()

    def _run(self) -> None:
        with pytest.raises(Stop):
            self.server.run(self.detector)


@pytest.fixture
def served(leaks_allowed: None) -> Iterator[Served]:
    """The thread of the last request waits for its answer for ever: in its own process nothing outlives the server."""
    made = Served()
    yield made
    made.close()


def frame(first: int, height: int = 5, width: int = 7) -> Frame:
    """Random pixels but for the first byte."""
    pixels = np.random.default_rng(first).integers(0, 256, (height, width, 3), dtype=np.uint8)
    pixels.flat[0] = first
    return pixels


def in_thread(client: RemoteDetector, frames: list[Frame]) -> tuple[threading.Thread, list[Any]]:
    """Ask in a thread; the answer is put into the list."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(client.detect(frames)))
    thread.start()
    return thread, found


def test_detections_are_returned_unchanged(served: Served) -> None:
    client = served.client()
    for frames in (
        [frame(2), frame(0), frame(3, 600, 801)],
        [frame(4)[:, ::-1].copy()[:, ::-1]],  # not contiguous
        [np.zeros((0, 5, 3), np.uint8), frame(1)],
        [],
    ):
        expected, found = FakeDetector().detect(frames), client.detect(frames)
        for name in ("boxes", "scores", "points", "offsets"):
            assert np.array_equal(getattr(found, name), getattr(expected, name))
            assert getattr(found, name).dtype == getattr(expected, name).dtype
    assert served.reports[:4] == [("waits", 0, 3), ("busy", 0, 3), ("over", 0, 3), ("waits", 0, 1)]


def test_a_request_is_detected_by_itself(served: Served) -> None:
    clients = [served.client() for _ in range(4)]
    asked = [[frame(10 * i + j) for j in range(i + 1)] for i in range(4)]
    for _ in range(5):
        running = [in_thread(client, frames) for client, frames in zip(clients, asked, strict=True)]
        for (thread, found), frames in zip(running, asked, strict=True):
            thread.join(LIMIT_S)
            assert np.array_equal(found[0].boxes, FakeDetector().detect(frames).boxes)
    whole = [[int(f.flat[0]) for f in frames] for frames in asked]
    assert len(served.detector.requests) == 20
    assert all(request in whole for request in served.detector.requests)


def test_the_next_request_is_received_while_one_is_detected(served: Served) -> None:
    first, _ = in_thread(served.client(), [frame(255)])
    wait_for("the first request", lambda: served.detector.requests)
    second, _ = in_thread(served.client(), [frame(7, 300, 400)])
    wait_for("the second request", lambda: served.server._requests.qsize())
    assert served.detector.requests == [[255]]
    served.detector.go_on.set()
    first.join(LIMIT_S)
    second.join(LIMIT_S)
    assert served.detector.requests == [[255], [7]]


def test_few_requests_are_received_at_a_time(served: Served) -> None:
    threads = [in_thread(served.client(), [frame(255)])[0]]
    wait_for("the first request", lambda: served.detector.requests)
    threads += [in_thread(served.client(), [frame(1)])[0] for _ in range(RECEIVED_REQUESTS + 2)]
    wait_for("all requests", lambda: sum(report[0] == "waits" for report in served.reports) == len(threads))
    assert len(served.detector.made) <= RECEIVED_REQUESTS
    served.detector.go_on.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert served.detector.requests == [[255], *[[1]] * (len(threads) - 1)]


def test_an_answer_of_the_wrong_form_blames_only_its_item(served: Served) -> None:
    with pytest.raises(ItemError, match=r"^detector x: expected scores$"):
        served.client().detect([frame(252)])
    assert served.detector.requests == [[252]]  # no further frame, to see whether the detector still works


def test_an_error_reaches_the_one_that_asked_and_the_connection_stays(served: Served) -> None:
    client = served.client()
    with pytest.raises(ItemError, match=r"^ValueError: a bad frame$"):
        client.detect([frame(253)])
    assert served.detector.requests == [[253], [0]]  # the second one checks that the detector still works
    assert not served.detector.kept
    assert len(client.detect([frame(6)]).boxes) == 6


def test_frames_are_received_into_any_memory_where_the_detectors_own_is_short(served: Served) -> None:
    client = served.client()
    for spared in (MemoryError("no such memory"), RuntimeError("CUDA error: out of memory")):
        served.detector.spared = spared
        assert len(client.detect([frame(6), frame(2)]).boxes) == 8
    assert served.detector.made == []


def test_frames_for_which_there_is_no_memory_at_all_are_refused(served: Served) -> None:
    channel = Channel(served.connect())
    channel.send({"frames": [(1 << 40, 1 << 20)]})
    answer = channel.receive()
    assert answer is not None
    assert answer["error"].startswith("no memory for 1 frame: MemoryError: ")
    assert served.reports == [("waits", 0, 1), ("over", 0, 1)]
    channel.close()
    assert len(served.client().detect([frame(6)]).boxes) == 6


def test_a_worker_may_die_during_a_request(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    with served.connect() as dying:
        dying.sendall(b'{"frames"')
    channel = Channel(served.connect())
    channel.send({"frames": [(500, 500)]})
    assert channel.receive() == {"room": True}
    channel.send(frame(1, 2, 2))
    channel.close()
    assert len(served.client().detect([frame(6)]).boxes) == 6
    assert served.detector.requests == [[6]]
    printed: list[str] = []
    wait_for(
        "both reports",
        lambda: printed.append(capsys.readouterr().err) or "".join(printed).count("ended within a message") == 2,
    )


def test_an_item_is_not_blamed_for_the_end_of_the_server() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    client = RemoteDetector(ours)
    with pytest.raises(DetectorLost, match="the other process has ended") as caught:
        client.detect([frame(1)])
    assert not isinstance(caught.value, Exception)
    client.close()
