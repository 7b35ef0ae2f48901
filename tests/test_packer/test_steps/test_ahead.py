import gc
import threading
import weakref
from contextlib import closing
from pathlib import Path

import pytest
from support.media import write_video as write_moving
from support.packed import read_samples
from support.video_files import MP4_INDEX_FIRST, write_video

import packer
from packer import Recipe
from packer.recipe import engines
from packer.sources.item import Item
from packer.steps import decode
from packer.steps.chain import ITEM, REPORT, Pipeline, StepError, StepResources
from packer.steps.decode import THREAD_NAME, run_ahead
from packer.steps.report import ItemReport
from packer.vision.decode.sampling import Sampling
from packer.vision.decode.video import VideoReader
from shardspec.errors import ItemError


def nothing():
    pass


def test_it_works_in_another_thread_and_no_further_than_its_depth():
    made, enough = [], threading.Event()

    def items():
        for number in range(100):
            made.append(threading.current_thread())
            if number == 3:
                enough.set()
            yield number

    with closing(run_ahead(items(), 4, nothing)) as ahead:
        assert next(ahead) == 0
        enough.wait()
    assert 4 <= len(made) <= 5
    assert threading.current_thread() not in made


def test_an_error_comes_after_the_items_before_it():
    def items():
        yield 1
        yield 2
        raise ValueError("the third")

    with closing(run_ahead(items(), 4, nothing)) as ahead:
        assert [next(ahead), next(ahead)] == [1, 2]
        with pytest.raises(ValueError, match="the third"):
            next(ahead)


def test_closing_ends_an_iterator_that_gives_nothing_more():
    stopped = threading.Event()

    def items():
        yield 0
        while not stopped.is_set():
            pass

    ahead = run_ahead(items(), 2, stopped.set)
    assert next(ahead) == 0
    ahead.close()
    assert not any(thread.name.startswith(THREAD_NAME) for thread in threading.enumerate())


def test_a_stopped_video_ends(tmp_path):
    path = write_video(tmp_path / "v.mp4", frames=60, codec="libx264")
    with VideoReader(path, Sampling(every=1)) as video:
        frames = iter(video)
        assert next(frames).index == 0
        video.stop()
        assert len(list(frames)) < 59


def decoded(path, *, ahead, **options):
    """What the step gives of a video, what it reports, and what it ends with."""
    report, frames, error = ItemReport(path.name), [], None
    step = decode.make(Recipe(**options), StepResources(decodes_ahead=ahead))
    item = Item(0, path.name, path=str(path))
    try:
        for sample in step(iter([{ITEM: item, REPORT: report}])):
            frames.append((sample["frame"], sample["time"], sample["image"].tobytes(), report.frames))
    except ItemError as raised:
        error = str(raised)
    return frames, report, error


@pytest.mark.parametrize("cut", [0.001, 0.3, 0.8, 1])
@pytest.mark.parametrize("options", [{}, {"every": 7}, {"frames": 3}, {"keyframes": True}])
def test_the_step_gives_and_reports_the_same(tmp_path, cut, options):
    path = write_video(tmp_path / "v.mp4", frames=40, codec="libx264", container=MP4_INDEX_FIRST)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(cut * len(whole))])
    in_turn = decoded(path, ahead=False, **options)
    assert decoded(path, ahead=True, **options) == in_turn
    assert bool(in_turn[0]) == (in_turn[2] is None)
    assert (cut == 1) == (in_turn[1].damage is None and in_turn[2] is None)


@pytest.mark.parametrize("ahead", [True, False])
def test_a_step_that_fails_closes_the_video_at_once(tmp_path, ahead):
    path = write_video(tmp_path / "v.mp4", frames=40)
    kept = []

    def fail(samples):
        for sample in samples:
            try:
                raise ValueError(sample["frame"])
            except ValueError as error:
                kept.append(error)  # as a pool's future keeps what its work raised
                raise

    pipeline = Pipeline(Recipe(steps=("decode", "fail")), {"fail": fail}, StepResources(decodes_ahead=ahead))
    with pytest.raises(StepError, match="ValueError: 0"):
        list(pipeline.run(Item(0, path.name, path=str(path)), ItemReport(path.name)))
    assert not any(thread.name.startswith(THREAD_NAME) for thread in threading.enumerate())
    if Path("/proc/self/fd").is_dir():
        assert str(path) not in [str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]


class OddError(Exception):
    """One that weak references can name."""


def test_nothing_holds_on_to_an_error():
    def items():
        yield from ()
        raise OddError

    gc.disable()
    try:
        with closing(run_ahead(items(), 2, nothing)) as ahead:
            try:
                next(ahead)
            except OddError as error:
                gone = weakref.ref(error)
        assert gone() is None
    finally:
        gc.enable()


def test_a_step_that_wants_no_more_ends_the_thread(tmp_path):
    path = write_video(tmp_path / "v.mp4", frames=40)
    step = decode.make(Recipe(), StepResources(decodes_ahead=True))
    samples = step(iter([{ITEM: Item(0, path.name, path=str(path)), REPORT: ItemReport(path.name)}]))
    assert next(samples)["frame"] == 0
    samples.close()
    assert not any(thread.name.startswith(THREAD_NAME) for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("cores", "workers", "spare"), [(1, 1, False), (2, 1, True), (2, 2, False), (5, 3, False), (16, 8, True)]
)
def test_a_worker_has_a_core_to_spare_if_there_are_two_for_each(monkeypatch, cores, workers, spare):
    monkeypatch.setattr(engines, "available_processors", lambda: cores)
    assert engines.has_core_to_spare(workers) == spare


def test_builds_decode_ahead_where_there_is_a_core_to_spare_and_give_the_same(monkeypatch, tmp_path):
    for number in range(3):
        write_moving(tmp_path / "in" / f"{number}.mp4", frames=12)
    asked, found = [], {}
    for spare in (False, True):
        for module in ("packer.builds.job", "packer.jobs.stages"):
            monkeypatch.setattr(
                f"{module}.has_core_to_spare", lambda workers, spare=spare: asked.append(workers) or spare
            )
        for engine in ("processes", "inline"):
            out = tmp_path / f"{engine}-{spare}"
            steps = ["decode", "support.steps:tell_ahead"]
            how = {"workers": 2} if engine == "processes" else {}
            packer.build(tmp_path / "in", out, steps=steps, every=2, engine=engine, progress=False, **how)
            samples = read_samples(out)
            assert len(samples) == 18
            # The thread of a short video may be through before its last samples are taken.
            assert [bool(sample["ahead"]) for sample in samples[::6]] == [spare] * 3
            found[engine, spare] = [(sample["key"], sample["frame"], sample["image"].tobytes()) for sample in samples]
    assert all(samples == found["inline", False] for samples in found.values())
    assert set(asked) == {1, 2}  # of one engine, and of the other
