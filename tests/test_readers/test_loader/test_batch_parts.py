"""Batches that take long are put together by several threads, and are the same batches."""

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.processes import wait_for

import packer
from readers import Loader, open_dataset
from readers.loader.threads import ReadStage, ThreadJob
from shardspec.errors import ReadTimeoutError


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("divided") / "set"
    fields = {"image": packer.Array("u1", (4, 4, 3)), "name": str, "label": int}
    with packer.Writer(root, fields=fields, progress=False) as out:
        for row in range(50):
            out.write(image=np.full((4, 4, 3), row, np.uint8), name=f"sample {row}", label=row)
    return root


class Slow:
    """Draws, and takes 2 ms for each sample; notes which thread has worked on which sample."""

    seeded = True

    def __init__(self, seen: dict[int, int], fails: int = -1) -> None:
        self.seen = seen
        self.fails = fails

    def __deepcopy__(self, memo: Any) -> "Slow":
        return self

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        time.sleep(0.002)
        if sample["label"] == self.fails:
            raise ValueError("this one fails")
        self.seen[int(sample["label"])] = threading.get_ident()
        return {**sample, "drawn": rng.random(3)}


def test_batches_are_the_same_however_many_threads_share_them(dataset: Path) -> None:
    found = []
    for workers in (1, 3):
        seen: dict[int, int] = {}
        loader = Loader(open_dataset(dataset, transform=Slow(seen)), 20, workers=workers, seed=3)
        found.append([batch for _ in range(2) for batch in loader])
        shared = [len({seen[label] for label in batch["label"].tolist()}) for batch in found[-1][3:]]
        assert shared == [1, 1, 1] if workers == 1 else max(shared) > 1
    for one, other in zip(*found, strict=True):
        assert one.keys() == other.keys()
        assert one["name"] == other["name"]
        for name in ("image", "label", "drawn"):
            assert torch.equal(one[name], other[name])


def test_an_error_in_a_part_is_the_batch_s(dataset: Path) -> None:
    loader = Loader(open_dataset(dataset, transform=Slow({}, fails=33)), 20, workers=3, shuffle=False)
    loader._pace.sample_s = 0.002
    batches = iter(loader)
    assert next(batches)["label"].tolist() == list(range(20))
    with pytest.raises(ValueError, match="this one fails") as raised:
        next(batches)
    assert any("row 33" in note for note in raised.value.__notes__)


def stage(work: Callable[[int], Any], jobs: int, threads: int, timeout_s: float = 60.0) -> ReadStage[Any]:
    return ReadStage(work, jobs, threads, threads, timeout_s, lambda thread: "busy")


def test_parts_are_done_once_each_and_in_order() -> None:
    done: list[tuple[int, int]] = []

    def work(number: int) -> ThreadJob[int | None]:
        parts = [partial(done.append, (number, part)) for part in range(5)]
        return ThreadJob(parts, lambda: None if number == 3 else number)

    assert list(stage(work, 40, 4)) == [None if number == 3 else number for number in range(40)]
    assert sorted(done) == [(number, part) for number in range(40) for part in range(5)]
    done.clear()
    assert len(list(stage(work, 7, 1))) == 7
    assert done == sorted(done)


def test_a_hanging_part_is_named() -> None:
    release = threading.Event()

    def wait() -> None:
        release.wait(120)

    hanging = stage(lambda number: ThreadJob([lambda: None, wait], lambda: number), 2, 2, 0.3)
    with pytest.raises(ReadTimeoutError, match=r"batch 0: .* its thread has worked for \d+\.\d s and is busy"):
        next(hanging)
    release.set()
    hanging.stop()


def test_no_thread_ends_while_another_works() -> None:
    both, release = threading.Barrier(2, timeout=120), threading.Event()

    def meet() -> None:
        both.wait()

    def meet_and_wait() -> None:
        both.wait()
        release.wait(120)

    parts = [[lambda: None], [meet, meet_and_wait]]
    begun = stage(lambda number: ThreadJob(parts[number], lambda: number), 2, 2)
    try:
        waiters = begun._room._waiters  # type: ignore[attr-defined]  # whether a thread waits is shown nowhere else
        wait_for("the other to end, or to wait", lambda: waiters or not all(t.is_alive() for t in begun._threads))
        assert all(thread.is_alive() for thread in begun._threads)
    finally:
        release.set()
    assert list(begun) == [0, 1]
    for thread in begun._threads:
        thread.join(120)
        assert not thread.is_alive()


def test_a_thread_that_returns_after_the_end_of_its_job_continues() -> None:
    ended, both = threading.Event(), threading.Barrier(2, timeout=120)

    class Late(ReadStage[int]):
        def _do_part(self, job: ThreadJob[int], part: Callable[[], None]) -> Any:
            done = super()._do_part(job, part)
            if done is None:
                ended.wait(120)
            return done

    def meet() -> None:
        both.wait()

    late = Late(lambda number: ThreadJob([meet] * 2, lambda: number), 2, 2, 1, 60.0, lambda thread: "busy")
    assert next(late) == 0
    ended.set()
    assert next(late) == 1  # for which both threads are needed
    late.stop()
