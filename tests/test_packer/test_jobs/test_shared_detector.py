"""One process that detects for all workers: the same bytes as without it, and nothing lost, blamed or left when it dies."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.builds import TESTS
from support.command import environment, file_of, read_jsonl, run_packer, start_packer
from support.face_source import FACELESS_FRAMES, pair, views, write_frames
from support.hooks import at_start_of
from support.media import photograph, write_image
from support.packed import check_whole, fingerprints
from support.processes import is_alive, kill, wait_for, workers_in, workers_of
from support.steps import LOG, read_log

import packer
from packer.builds.planning.plan import TASK_ITEMS
from packer.jobs.engines import processes as detector_module
from packer.jobs.engines.processes import DetectorChild, DetectorTimeout
from shardspec.errors import UsageError

DETECTOR = b"packer.jobs.detector"
FACES = ("--preset", "faces", "--size", "48", "--every", "3", "--max-rejects", "100%", "--quiet")
OPTIONS = (*FACES, "--detector", "torch")
SHARED = (*FACES, "--shared-detector", "--workers", 2)
"""With the runtime that starts fastest."""
OURS: dict[str, Any] = {"preset": "faces", "size": 48, "max_rejects": 1, "progress": False}
OURS |= {"shared_detector": True, "workers": 2}
"""The same for builds of this process."""
STEPS = ("--steps", "decode,support.steps:log_items,support.steps:slow,faces")
VIEWS = 34
"""Two tasks of images, beside those of the videos."""

BAD_SIZE = (250, 201)
"""Width and height of the one image that spoilt detectors do not take."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of faces, small and large, one without, and two videos."""
    root = tmp_path_factory.mktemp("source")
    write_image(root / "astronaut.png", photograph("astronaut"))
    write_image(root / "coffee.png", photograph("coffee"))
    write_image(root / "pair.png", pair())
    write_frames(root / "a.mp4", views(20, faceless=FACELESS_FRAMES))
    write_frames(root / "b.mp4", views(13, size=(200, 160)))
    for number, view in enumerate(views(VIEWS, size=(160, 160))):
        write_image(root / f"view-{number:02d}.png", view)
    return root


@pytest.fixture(scope="module")
def reference(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a detector in each worker makes of it."""
    out = tmp_path_factory.mktemp("reference") / "out"
    run_packer("build", source, out, *OPTIONS)
    assert check_whole(out).samples > VIEWS // 2
    return out


def starting(folder: Path, module: str, code: str) -> dict[str, str]:
    """An environment in which processes of a module run some code before their own."""
    return environment(python_path=at_start_of(folder, module, code))


def spoilt(folder: Path, deed: str) -> dict[str, str]:
    """An environment in which the detector does something else than detect in an image of `BAD_SIZE`."""
    code = (
        "import signal, time\n"
        "from packer.vision.detect.detector import Detector\n"
        "detect = Detector.detect\n"
        "def spoilt(self, frames):\n"
        f"    if any(frame.shape[:2] == {BAD_SIZE[::-1]} for frame in frames):\n"
        f"        {deed}\n"
        "    return detect(self, frames)\n"
        "Detector.detect = spoilt"
    )
    return starting(folder, "packer.jobs.detector", code)


def with_bad(root: Path) -> Path:
    """Images, one of them of `BAD_SIZE`."""
    for number, view in enumerate(views(2, size=(160, 160))):
        write_image(root / f"{number}.png", view)
    write_image(root / "1-bad.png", next(views(1, size=BAD_SIZE)))
    return root


def rejects(out: Path) -> dict[str, str]:
    """Reasons by item."""
    return {
        line["item"]: line["reason"] for line in read_jsonl(file_of(out, "rejects.jsonl")) if line["kind"] == "item"
    }


class TestBytes:
    def test_are_those_of_the_inline_engine(self, source: Path, reference: Path, tmp_path: Path) -> None:
        log = tmp_path / "started"
        code = f"open({str(log)!r}, 'a').write(f'{{os.getpid()}}\\n')"
        env = starting(tmp_path / "site", "packer.jobs.detector", code)
        run_packer("build", source, tmp_path / "out", *OPTIONS, "--shared-detector", "--workers", 2, env=env)
        assert len(log.read_text().splitlines()) == 1
        check_whole(tmp_path / "out")
        assert fingerprints(tmp_path / "out") == fingerprints(reference)
        assert not workers_in(tmp_path / "out", DETECTOR)

    def test_workers_load_no_detector(self, tmp_path: Path) -> None:
        code = "import importlib.abc\nclass No(importlib.abc.MetaPathFinder):\n    def find_spec(self, name, *_):\n"
        code += "        if name == 'torch': raise ImportError('a worker loads torch')\nsys.meta_path.insert(0, No())"
        env = starting(tmp_path / "site", "packer.jobs.worker", code)
        write_image(tmp_path / "in" / "a.png", photograph("astronaut"))
        run_packer("build", tmp_path / "in", tmp_path / "out", *OPTIONS, "--shared-detector", env=env)
        assert not rejects(tmp_path / "out")
        done = run_packer(
            "build", tmp_path / "in", tmp_path / "own", *OPTIONS, "--no-shared-detector", env=env, expect=1
        )
        assert "a worker loads torch" in done.stderr


class TestOption:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"preset": "faces", "engine": "inline"}, "expected the processes or ray engine, found inline"),
            ({"preset": "images"}, "expected a detector"),
            ({"preset": "faces", "shared_detector": 1.5}, "expected true or false"),
            ({"preset": "faces", "shared_detector": 1}, "expected true or false, found 1"),
        ],
    )
    def test_an_invalid_call_is_refused(self, tmp_path: Path, options: dict[str, Any], words: str) -> None:
        write_image(tmp_path / "in" / "a.png", photograph("astronaut"))
        with pytest.raises(UsageError, match=words):
            packer.build(tmp_path / "in", tmp_path / "out", progress=False, **{"shared_detector": True, **options})
        assert not (tmp_path / "out").exists()

    def test_help_shows_the_default(self) -> None:
        reported = " ".join(run_packer("build", "--help").stdout.split())
        assert "--shared-detector, --no-shared-detector" in reported
        assert "(default: for any --device but cpu)" in reported


def running(source: Path, folder: Path) -> Any:
    """Start a build that takes some seconds, and wait until its workers and its detector are at work."""
    env = environment(python_path=TESTS, **{LOG: str(folder / "log")})
    build = start_packer(
        "build", source, folder / "out", *OPTIONS, *STEPS, "--shared-detector", "--workers", 2, env=env
    )
    wait_for("work", lambda: len(read_log(folder / "log")) > 4 or build.poll() is not None)
    return build


class TestEnd:
    def test_a_detector_killed_from_outside_costs_nothing(
        self, source: Path, reference: Path, tmp_path: Path, builds: list[Any]
    ) -> None:
        build = running(source, tmp_path)
        builds.append(build)
        killed = 0
        for _ in range(2):  # on a fast machine the build may be over before the second
            wait_for("the detector", lambda: workers_of(build.pid, DETECTOR) or build.poll() is not None)
            logged = len(read_log(tmp_path / "log"))
            for victim in workers_of(build.pid, DETECTOR):
                kill(victim)
                killed += 1
                wait_for(
                    "another detector",
                    lambda v=victim: set(workers_of(build.pid, DETECTOR)) - {v} or build.poll() is not None,
                )
            wait_for("work", lambda n=logged: len(read_log(tmp_path / "log")) > n + 4 or build.poll() is not None)
        assert killed
        _, reported = build.communicate(timeout=300)
        assert build.returncode == 0, reported
        check_whole(tmp_path / "out")
        found, expected = fingerprints(tmp_path / "out"), fingerprints(reference)
        assert {name: found[name] for name in found if name != "manifest.json"} == {
            name: expected[name] for name in expected if name != "manifest.json"
        }
        assert not workers_in(tmp_path / "out", DETECTOR)

    def test_it_ends_with_a_build_that_is_killed(self, source: Path, tmp_path: Path, builds: list[Any]) -> None:
        builds.append(running(source, tmp_path))
        everyone = [*workers_of(builds[0].pid), *workers_of(builds[0].pid, DETECTOR)]
        assert len(everyone) == 3
        os.kill(builds[0].pid, signal.SIGKILL)
        builds[0].wait()
        wait_for("the end of all", lambda: not any(map(is_alive, everyone)))

    def test_an_interrupt_ends_it(self, source: Path, tmp_path: Path, builds: list[Any]) -> None:
        builds.append(running(source, tmp_path))
        everyone = [*workers_of(builds[0].pid), *workers_of(builds[0].pid, DETECTOR)]
        assert len(everyone) == 3
        os.killpg(builds[0].pid, signal.SIGINT)
        _, reported = builds[0].communicate(timeout=300)
        assert builds[0].returncode == 130
        assert "run the same command again to resume" in reported
        wait_for("the end of all", lambda: not any(map(is_alive, everyone)))

    def test_one_that_cannot_start_ends_the_build_with_its_last_words(self, source: Path, tmp_path: Path) -> None:
        env = starting(tmp_path / "site", "packer.jobs.detector", "sys.exit('no graphics card today')")
        out = tmp_path / "out"
        done = run_packer("build", source, out, *OPTIONS, "--shared-detector", "--workers", 2, env=env, expect=1)
        assert "the detector process does not start: the detector process died, exit status 1: " in done.stderr
        assert "no graphics card today" in done.stderr


class TestFaults:
    def test_an_error_rejects_the_item_that_asked(self, tmp_path: Path) -> None:
        env = spoilt(tmp_path / "site", "raise RuntimeError('the frame has no such shape')")
        out, source = tmp_path / "out", with_bad(tmp_path / "in")
        run_packer("build", source, out, *SHARED, env=env)
        assert rejects(out) == {"1-bad.png": "detector MTCNN: RuntimeError: the frame has no such shape"}

    def test_an_item_that_its_memory_is_short_for_is_tried_again_by_itself(self, tmp_path: Path) -> None:
        env = spoilt(tmp_path / "site", "raise RuntimeError('CUDA out of memory')")
        out, source = tmp_path / "out", with_bad(tmp_path / "in")
        run_packer("build", source, out, *SHARED, env=env)
        (why,) = rejects(out).values()
        assert why.startswith("brought down a worker 3 times, by itself (exit status 1: MemoryError: memory ran out at")
        assert why.endswith("in faces: detector MTCNN: RuntimeError: CUDA out of memory)")

    def test_an_item_that_brings_it_down_is_the_one_that_is_rejected(self, tmp_path: Path) -> None:
        env = spoilt(tmp_path / "site", "os.kill(os.getpid(), signal.SIGSEGV)")
        out, source = tmp_path / "out", with_bad(tmp_path / "in")
        for number, view in enumerate(views(TASK_ITEMS, size=(120, 120))):  # another task, for the other worker
            write_image(source / f"0-{number:02d}.png", view)
        run_packer("build", source, out, *SHARED, env=env)
        assert list(rejects(out)) == ["1-bad.png"]
        assert (
            "brought down a worker 3 times, by itself (the detector process died, signal 11"
            in rejects(out)["1-bad.png"]
        )

    def test_one_that_is_no_good_after_an_error_is_replaced(self, tmp_path: Path) -> None:
        """A GPU after an illegal access takes nothing more."""
        env = spoilt(tmp_path / "site", "global detect; detect = None; raise RuntimeError('illegal memory access')")
        out, source = tmp_path / "out", with_bad(tmp_path / "in")
        run_packer("build", source, out, *SHARED, env=env)
        assert list(rejects(out)) == ["1-bad.png"]
        assert "the detector process died, exit status 1" in rejects(out)["1-bad.png"]

    @pytest.mark.parametrize("status", [1, 75])
    def test_a_step_that_ends_its_process_is_not_taken_for_a_lost_detector(self, tmp_path: Path, status: int) -> None:
        source, out = with_bad(tmp_path / "in"), tmp_path / "out"
        steps = [{"use": "decode"}, {"use": "support.steps:exit_hard", "status": status}, {"use": "faces"}]
        packer.build(source, out, steps=steps, **OURS)
        assert list(rejects(out)) == ["1-bad.png"]
        assert f"brought down a worker 3 times, by itself (exit status {status}" in rejects(out)["1-bad.png"]

    def test_a_hang_costs_the_item_that_hangs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        hanging, real = tmp_path / "hanging", DetectorChild.overdue

        def overdue(self: DetectorChild, now_s: float) -> DetectorTimeout | None:
            """The limit is short for the request that hangs, and for no other, however slow the machine is."""
            monkeypatch.setattr(detector_module, "_REQUEST_LIMIT_S", 0.25 if hanging.exists() else 1e6)
            late = real(self, now_s)
            if late is not None:
                hanging.unlink()
            return late

        monkeypatch.setattr(DetectorChild, "overdue", overdue)
        spoilt(tmp_path / "site", f"open({str(hanging)!r}, 'x').close(); time.sleep(10_000)")
        monkeypatch.syspath_prepend(tmp_path / "site")
        packer.build(with_bad(tmp_path / "in"), tmp_path / "out", item_timeout=1e6, **OURS)
        assert rejects(tmp_path / "out") == {"1-bad.png": "the detector process took longer than 0.25 s over 1 frame"}
