"""Progress: rates of the last minute, what is said of bytes and rejects, and stages that are over soon."""

import pytest
from support.listeners import Listener

from packer.jobs import progress as progress_module
from packer.jobs.process import CurrentItem
from packer.jobs.progress import Stage, Terminal, describe_progress, reason_kind


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in seconds."""
    now = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    return now


def test_the_rate_is_that_of_the_last_minute(clock: list[float]) -> None:
    ear = Listener()
    with Stage(ear, "packing", 10_000, "items", 50) as stage:
        for _ in range(100):  # ten items a second, with two samples each
            clock[0] += 1
            stage.advance(10, samples=20)
        fast = ear.heard[-1]
        for _ in range(100):  # one item a second
            clock[0] += 1
            stage.advance(1, samples=3)
    slow = ear.heard[-1]
    assert (fast.rate, fast.sample_rate) == (pytest.approx(10), pytest.approx(20))
    assert (slow.rate, slow.sample_rate) == (pytest.approx(1), pytest.approx(3))
    assert slow.done == 50 + 1000 + 100
    assert slow.seconds_left == pytest.approx(10_000 - slow.done)
    assert describe_progress(slow) == "packing: 1150/10000 items, 3.0 samples/s, 0 rejects, 2.5 h left"


def test_samples_are_spoken_of_where_some_were_made(clock: list[float]) -> None:
    ear = Listener()
    with Stage(ear, "planning", 60_000, "items") as stage:
        clock[0] += 2
        stage.advance(20_000)
    assert describe_progress(ear.heard[1]) == "planning: 20000/60000 items, 4 s left"
    with Stage(ear, "packing", 1, "items") as stage:
        clock[0] += 2
        stage.advance(0, frames=13)
        assert describe_progress(ear.heard[-1]) == "packing: 0/1 items, 13 frames of videos under way"
        stage.advance(1, rejects=1, reasons=["decode: no"])
    assert describe_progress(ear.heard[-1]) == "packing: 1/1 items, 0.0 samples/s, 1 reject (decode: no)"


def test_the_last_line_is_printed_once(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Stage(Terminal(), "copying", 2, "files") as stage:
        for _ in range(2):
            clock[0] += 6
            stage.advance(size=1_000_000)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["copying: 1/2 files, 1.0 MB, 6 s left", "copying: 2/2 files, 2.0 MB"]


def test_rejects_are_counted_by_reason_without_what_differs(clock: list[float]) -> None:
    ear = Listener()
    with Stage(ear, "packing", 9, "items") as stage:
        clock[0] += 2
        reasons = [f"decode: expected {n} bytes in 'a{n}.jpg', found the end" for n in range(3)]
        stage.advance(
            4, samples=1, rejects=4, size=5_000_000, reasons=["source: expected a file, found nothing", *reasons]
        )
        stage.advance(0, frames=70)
        line = describe_progress(ear.heard[-1])
        stage.advance(1, samples=1)
    assert dict(ear.heard[-1].reasons) == {
        "decode: expected … bytes in …, found the end": 3,
        "source: expected a file, found nothing": 1,
    }
    assert list(ear.heard[-1].reasons.values()) == [3, 1]
    assert line == (
        "packing: 4/9 items, 0.5 samples/s, 70 frames of videos under way, 5.0 MB, 4 rejects "
        "(3 × decode: expected … bytes in …, found the end, source: expected a file, found nothing), 2 s left"
    )
    assert ear.heard[-1].frames == 0  # the item has ended
    with Stage(ear, "packing", 900, "items") as stage:
        stage.advance(900, rejects=900, reasons=[f"{chr(n)}: no" for n in range(1000, 1900)])
    assert len(ear.heard[-1].reasons) < 50


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (
            "rows: row 3, 'a.jpg': expected a path in column 'path', found none, in the table 'faces.csv'",
            "rows: row …, …: expected a path in column …, found none …",
        ),
        (
            "source: expected a file inside the source, found a symbolic link that leaves it: name the folder",
            "source: expected a file inside the source, found a …",
        ),
        ("decode: expected 1,024 bytes, found 12.5", "decode: expected … bytes, found …"),
    ],
)
def test_a_long_reason_ends_with_a_whole_word(reason: str, kind: str) -> None:
    assert reason_kind(reason) == kind


def test_a_stage_that_is_over_soon_is_not_heard(clock: list[float]) -> None:
    ear = Listener()
    with Stage(ear, "listing", None, "items", least=1000) as stage:
        clock[0] += 0.5
        stage.advance(5000)
    with Stage(ear, "listing", None, "items", least=1000) as stage:
        clock[0] += 5
        stage.advance(500)
    assert ear.heard == []
    with Stage(ear, "listing", None, "items", least=1000) as stage:
        clock[0] += 5
        stage.advance(60_000)
    assert [describe_progress(heard) for heard in ear.heard] == ["listing: 60,000 items"] * 2
    assert (ear.heard[-1].ended, ear.heard[-1].total, ear.heard[-1].seconds_left) == (True, None, None)


def test_the_frames_of_an_item_are_seen_from_another_process(tmp_path) -> None:
    coordinator = CurrentItem.create(tmp_path / "place")
    worker = CurrentItem(tmp_path / "place")
    worker.set(7)
    worker.set_frames(123)
    assert (coordinator.get(), coordinator.frames()) == (7, 123)
    worker.set(8)
    assert (coordinator.get(), coordinator.frames()) == (8, 0)
    worker.set(None)
    assert coordinator.get() is None
