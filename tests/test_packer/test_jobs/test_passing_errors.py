"""Reads that fail and may succeed later: an item is tried again before it is rejected."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av.error
import numpy as np
import pytest
from support.builds import TESTS, write_images
from support.command import environment, file_of, read_jsonl, run_packer
from support.hooks import at_start_of
from support.media import write_video
from support.packed import check_whole, fingerprints
from support.steps import read_log

import packer
from packer.builds.work import READ_PAUSES_S
from packer.sources.base import describe_path
from packer.sources.files import LocalFiles
from packer.vision.decode import timeline
from packer.vision.decode.limits import VideoError
from packer.vision.decode.sampling import Sampling
from packer.vision.decode.video import VideoReader
from packer.vision.faults import may_pass
from shardspec.errors import BuildError

TRIES = len(READ_PAUSES_S) + 1

FAILING = """
import errno, io, pathlib
opened = io.open

def fail(path, *rest, **more):
    if str(path).endswith({name!r}):
        with opened({log!r}, "a+") as log:
            log.write("opened\\n")
            log.seek(0)
            if len(log.readlines()) <= {times}:
                raise OSError(errno.{error}, os.strerror(errno.{error}), str(path))
    return opened(path, *rest, **more)

io.open = fail
pathlib.io.open = fail
import builtins
builtins.open = fail
"""
"""What has the first times that a process of a module opens a file fail."""


def build(folder: Path, error: str, times: int, *, name: str = "b.png") -> dict[str, str]:
    """Build with workers that cannot open a file for some times; the reasons of the rejects."""
    code = FAILING.format(name=name, log=str(folder / "log"), times=times, error=error)
    env = environment(python_path=[at_start_of(folder / "site", "packer.jobs.worker", code), TESTS])
    run_packer("build", folder / "source", folder / "out", "--max-rejects", "100%", "--quiet", env=env)
    check_whole(folder / "out")
    return {line["item"]: line["reason"] for line in read_jsonl(file_of(folder / "out", "rejects.jsonl"))}


@pytest.mark.parametrize("error", ["EIO", "ESTALE"])
def test_a_image_that_can_be_read_at_last_is_packed(tmp_path: Path, error: str) -> None:
    source = write_images(tmp_path / "source", ["a.png", "b.png", "c.png"])
    assert build(tmp_path, error, TRIES - 1) == {}
    run_packer("build", source, tmp_path / "other", "--quiet")
    assert fingerprints(tmp_path / "out") == fingerprints(tmp_path / "other")
    assert len(read_log(tmp_path / "log")) == TRIES


def test_a_video_that_can_be_opened_at_last_is_packed(tmp_path: Path) -> None:
    write_video(tmp_path / "source" / "b.mp4", frames=5)
    assert build(tmp_path, "ETIMEDOUT", 1, name="b.mp4") == {}


def test_a_image_that_can_never_be_read_is_rejected_with_the_tries(tmp_path: Path) -> None:
    write_images(tmp_path / "source", ["a.png", "b.png", "c.png"])
    why = f"expected a readable file, found: Input/output error; tried {TRIES} times"
    assert build(tmp_path, "EIO", 99) == {"b.png": why}
    assert len(read_log(tmp_path / "log")) == TRIES


def test_what_does_not_pass_is_tried_once(tmp_path: Path) -> None:
    write_images(tmp_path / "source", ["a.png", "b.png", "c.png"])
    assert build(tmp_path, "EACCES", 99) == {"b.png": "expected a readable file, found: Permission denied"}
    assert len(read_log(tmp_path / "log")) == 1


def test_a_step_of_ones_own_is_tried_again_too_and_leaves_nothing_of_the_first_try(tmp_path: Path) -> None:
    source = write_images(tmp_path / "source", ["a.png", "b.png", "c.png"])
    tried: list[str] = []

    def twice(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for sample in samples:
            yield sample
            tried.append(sample["source"])
            if tried.count("b.png") == 1 and sample["source"] == "b.png":
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            yield sample

    result = packer.build(source, tmp_path / "out", steps=["decode", twice], engine="inline", progress=False)
    assert (result.counts.packed_items, result.counts.samples) == (3, 6)
    assert tried == ["a.png", "b.png", "b.png", "c.png"]
    check_whole(tmp_path / "out")


class Failing:
    """A container whose packets come to an end too early, with an error."""

    def __init__(self, container: Any, error: int, after: int) -> None:
        self._container, self._error, self._after = container, error, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._container, name)

    def __enter__(self) -> "Failing":
        return self

    def __exit__(self, *_: object) -> None:
        self._container.close()

    def demux(self, *streams: Any) -> Iterator[Any]:
        for number, packet in enumerate(self._container.demux(*streams)):
            if number == self._after:
                raise av.error.OSError(self._error, os.strerror(self._error))
            yield packet


def failing(monkeypatch: pytest.MonkeyPatch, *errors: tuple[int, int] | None) -> list[Any]:
    """Have each opening of a video give packets that end with an error after some; the errors that are left."""
    opened = timeline.open_video
    left = list(errors)

    def open_video(*values: Any, **more: Any) -> Any:
        container, stream = opened(*values, **more)
        error = left.pop(0) if left else None
        return (container if error is None else Failing(container, *error)), stream

    monkeypatch.setattr(timeline, "open_video", open_video)
    monkeypatch.setattr("packer.vision.decode.video.open_video", open_video)
    return left


def frames_of(path: Path) -> tuple[int, str | None]:
    with VideoReader(path, Sampling(every=1)) as video:
        return len([frame for frame in video if np.any(frame.image)]), video.damage


def test_a_video_that_cannot_be_read_to_its_end_for_a_moment_is_no_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_video(tmp_path / "a.mp4", frames=12)
    assert frames_of(tmp_path / "a.mp4") == (12, None)
    failing(monkeypatch, (errno.EIO, 5))  # the packets are read once more
    assert frames_of(tmp_path / "a.mp4") == (12, None)
    failing(monkeypatch, (errno.EIO, 5), (errno.EIO, 5))  # as it is with damage
    assert "reading stopped after 5 packets" in str(frames_of(tmp_path / "a.mp4")[1])
    for stopped in ([(errno.EIO, 5), (errno.EIO, 7)], [(errno.ESTALE, 5)], [None, (errno.EIO, 5)]):
        failing(monkeypatch, *stopped)
        with pytest.raises(VideoError, match=r"found: |reading stopped: ") as caught:
            frames_of(tmp_path / "a.mp4")
        assert may_pass(caught.value)


def test_a_file_that_cannot_be_looked_at_for_a_moment_is_no_reject_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(*_: object, **__: object) -> Any:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    (tmp_path / "a.png").write_bytes(b"")
    monkeypatch.setattr(LocalFiles, "stat", stale)
    with pytest.raises(BuildError, match=r"a\.png: cannot be examined: .*run the same command again"):
        describe_path(0, "a.png", tmp_path / "a.png", [tmp_path], {})
