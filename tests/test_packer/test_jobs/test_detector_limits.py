"""Which item is to blame when the detecting process takes too long, and whose time passes meanwhile."""

from pathlib import Path

import pytest

from packer.jobs.engines.base import Clock
from packer.jobs.engines.processes import CurrentRequest, DetectorChild, ProcessesEngine, _Worker
from packer.jobs.plan import Unit, Work
from packer.recipe.engines import WorkerSettings
from packer.workspace import Workspace


class Overdue(DetectorChild):
    """A detecting process over its third request, that of the first worker, for too long. At its end it may have gone on."""

    def __init__(self, at_end: CurrentRequest) -> None:
        self.busy = self._seen = CurrentRequest(3, 0, 4)
        self.item_timeout = 10.0
        self.ready = True
        self._seen_s = -100.0
        self._at_end = at_end
        self.waiting = frozenset()

    def end(self) -> None:
        self.busy = self._at_end


def open_engine(folder: Path) -> ProcessesEngine:
    """An engine of two workers that share a detector; it starts none by itself."""

    def no_work() -> Work:
        raise AssertionError("worker processes open their own")

    return ProcessesEngine(Workspace(folder), no_work, WorkerSettings(2, 10.0, shares_detector=True))


class AtWork(_Worker):
    """A worker process at an item of the task of its number."""

    def __init__(self, serial: int) -> None:
        self.place = self.serial = serial
        self.unit = Unit("task", serial)
        self.seen, self.taken_s = None, 0.0
        self.ready = True

    @property
    def item(self) -> int:
        return 10 * self.serial

    def end(self) -> None:
        pass


@pytest.mark.parametrize(
    ("at_end", "expected"),
    [
        (CurrentRequest(3, 0, 4), [("timeout", 0), ("again", None)]),
        (CurrentRequest(4, None, 0), [("again", None), ("again", None)]),
        (CurrentRequest(5, 1, 4), [("again", None), ("again", None)]),
    ],
)
def test_a_request_that_came_to_its_end_is_not_to_blame_nor_is_the_next(
    tmp_path: Path, at_end: CurrentRequest, expected: list[tuple[str, int | None]]
) -> None:
    engine = open_engine(tmp_path)
    engine._detector, engine._workers = Overdue(at_end), [AtWork(0), AtWork(1)]
    events = [engine.wait() for _ in range(2)]
    assert [(event.kind, event.item) for event in events] == expected
    assert [event.unit for event in events] == [Unit("task", 0), Unit("task", 1)]


class Stopped(Clock):
    """Time that passes when it is set."""

    def __init__(self) -> None:
        self.s = 0.0

    def tick(self) -> None:
        pass

    def now_s(self) -> float:
        return self.s


def test_an_items_time_does_not_pass_while_it_waits_for_the_faces_of_others(tmp_path: Path) -> None:
    engine, clock = open_engine(tmp_path), Stopped()
    detector, waiting = Overdue(CurrentRequest(0, None, 0)), AtWork(1)
    engine._detector, engine._workers, engine._clock = detector, [None, waiting], clock

    def serve(worker: int) -> None:
        """Let 4 s pass while the request of a worker is processed."""
        detector.take({"event": "busy", "worker": worker, "frames": 4}, engine._answers)
        engine._look_for_late_items()
        clock.s += 4
        engine._look_for_late_items()
        detector.take({"event": "over", "worker": worker, "frames": 4}, engine._answers)

    for number in range(4, 10):
        detector.take({"event": "waits", "worker": 1, "frames": 4}, engine._answers)
        serve(0)
        assert detector.busy == CurrentRequest(2 * number - 3, None, 0)
    assert engine._workers == [None, waiting]
    for _ in range(3):  # its own request is no excuse
        serve(1)
    assert engine._workers == [None, None]
    event = engine.wait()
    assert (event.kind, event.unit, event.item) == ("timeout", Unit("task", 1), 10)
    assert event.message == "took longer than 10 s"
