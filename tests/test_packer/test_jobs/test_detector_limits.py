"""Whom the engine blames when the detecting process takes too long, and whose time passes meanwhile."""

from pathlib import Path

import pytest

from packer.jobs.engines.detector import Busy, DetectorChild
from packer.jobs.engines.processes import ProcessesEngine, _Worker
from packer.jobs.units import Unit
from packer.workspace import Workspace


class Overdue(DetectorChild):
    """A detecting process over its third request, that of the first worker, for too long. At its end it may have gone on."""

    def __init__(self, at_end: Busy) -> None:
        self.busy = self._seen = Busy(3, 0, 4)
        self.item_timeout = 10.0
        self.ready = True
        self._seen_s = -100.0
        self._at_end = at_end
        self.waiting = frozenset()

    def end(self) -> None:
        self.busy = self._at_end


class AtWork(_Worker):
    """A worker process at an item of the task of its number."""

    def __init__(self, serial: int) -> None:
        self.place = self.serial = serial
        self.unit, self.item = Unit("task", serial), 10 * serial
        self.item_started_s = 0.0
        self.ready = True

    def end(self) -> None:
        pass


@pytest.mark.parametrize(
    ("at_end", "expected"),
    [
        (Busy(3, 0, 4), [("timeout", 0), ("again", None)]),
        (Busy(4, None, 0), [("again", None), ("again", None)]),
        (Busy(5, 1, 4), [("again", None), ("again", None)]),
    ],
)
def test_a_request_that_came_to_its_end_is_not_to_blame_nor_is_the_next(
    tmp_path: Path, at_end: Busy, expected: list[tuple[str, int | None]]
) -> None:
    engine = ProcessesEngine(Workspace(tmp_path), 2, 10.0, shared_detector=True)
    engine._detector, engine._workers = Overdue(at_end), [AtWork(0), AtWork(1)]
    events = [engine.wait() for _ in range(2)]
    assert [(event.kind, event.item) for event in events] == expected
    assert [event.unit for event in events] == [Unit("task", 0), Unit("task", 1)]


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.s = 0.0

    def now_s(self) -> float:
        return self.s


def test_an_items_time_does_not_pass_while_it_waits_for_the_faces_of_others(tmp_path: Path) -> None:
    engine, clock = ProcessesEngine(Workspace(tmp_path), 2, 10.0, shared_detector=True), Clock()
    detector, waiting = Overdue(Busy(0, None, 0)), AtWork(1)
    engine._detector, engine._workers, engine._clock = detector, [None, waiting], clock
    for number in range(4, 10):
        detector.take({"event": "waits", "worker": 1, "frames": 4}, engine._answers)
        detector.take({"event": "busy", "worker": 0, "frames": 4}, engine._answers)
        assert detector.busy == Busy(2 * number - 4, 0, 4)
        clock.s += 4
        engine._look_for_overdue()
        detector.take({"event": "over", "worker": 0, "frames": 4}, engine._answers)
    assert not engine._events
    for _ in range(3):  # its own request, or none, is no excuse
        detector.take({"event": "busy", "worker": 1, "frames": 4}, engine._answers)
        clock.s += 4
        engine._look_for_overdue()
        detector.take({"event": "over", "worker": 1, "frames": 4}, engine._answers)
    assert [(event.kind, event.item) for event in engine._events] == [("timeout", 10)]
