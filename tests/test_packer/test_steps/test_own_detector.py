"""Detectors of users: the same faces, tracks and bytes as MTCNN's, the check of what they return, and two examples."""

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command import REPOSITORY, file_of, read_jsonl
from support.detectors import WEIGHTS
from support.face_source import FACELESS_FRAMES, pair, views, write_frames
from support.media import photograph, write_image
from support.models import write_scrfd, write_yunet
from support.packed import fingerprints, read_samples

import packer
from packer import Recipe
from packer.builds.provenance import describe_runtime
from packer.vision.detect.interface import BadDetectionsError, CheckedDetector
from shardspec.errors import ItemError, UsageError
from shardspec.layout import Layout

QUIET: dict[str, Any] = {"engine": "inline", "progress": False, "max_rejects": 1}
FACES: dict[str, Any] = {**QUIET, "preset": "faces", "size": 48}
OWN = "support.detectors:Wrapped"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two faces in an image, an image without one, and a video in which the face is away for some frames."""
    root = tmp_path_factory.mktemp("source")
    write_image(root / "pair.png", pair())
    write_image(root / "coffee.png", photograph("coffee"))
    write_frames(root / "video.mp4", views(20, faceless=FACELESS_FRAMES))
    return root


def same(found: Path, expected: Path) -> bool:
    """Whether two datasets hold the same samples and rejects."""
    ours, theirs = read_samples(found), read_samples(expected)
    assert len(theirs) > 2
    return (
        [sample.keys() for sample in ours] == [sample.keys() for sample in theirs]
        and all(np.array_equal(a[name], b[name]) for a, b in zip(ours, theirs, strict=True) for name in a)
        and file_of(found, "rejects.jsonl").read_bytes() == file_of(expected, "rejects.jsonl").read_bytes()
    )


class TestPart:
    @pytest.mark.parametrize(
        "options",
        [{"every": 2, "choose": "track"}, {"frames": 5, "choose": "largest", "align": True}],
        ids=lambda options: "-".join(options),
    )
    def test_it_takes_part_in_all_that_mtcnn_does(self, source: Path, tmp_path: Path, options: dict[str, Any]) -> None:
        packer.build(source, tmp_path / "mtcnn", **FACES, **options)
        packer.build(source, tmp_path / "own", **FACES, **options, detector=OWN)
        assert same(tmp_path / "own", tmp_path / "mtcnn")

    def test_its_faces_are_chosen_by_size_and_score(self, source: Path, tmp_path: Path) -> None:
        least = {"min_face": 80, "min_score": 0.999}
        packer.build(source, tmp_path / "all", **FACES, every=3, detector=OWN)
        packer.build(source, tmp_path / "few", **FACES, every=3, detector=OWN, **least)
        faces = read_samples(tmp_path / "all")
        sides = [min(face["box"][2:] - face["box"][:2]) for face in faces]
        wanted = [face["key"] for face, side in zip(faces, sides, strict=True) if side >= 80 and face["score"] >= 0.999]
        assert 0 < len(wanted) < len(faces)
        assert len(read_samples(tmp_path / "few")) == len(wanted)

    def test_packer_detect_runs_it(self, source: Path, tmp_path: Path) -> None:
        for name, detector in (("mtcnn", "auto"), ("own", OWN)):
            packer.detect(source, tmp_path / name, every=4, detector=detector, **QUIET)
        assert same(tmp_path / "own", tmp_path / "mtcnn")

    def test_workers_may_share_it(self, source: Path, tmp_path: Path) -> None:
        packer.build(source, tmp_path / "inline", **FACES, every=4, detector=OWN)
        processes = {**FACES, "engine": "processes", "workers": 2, "every": 4, "detector": OWN}
        packer.build(source, tmp_path / "shared", shared_detector=True, **processes)
        assert fingerprints(tmp_path / "shared") == fingerprints(tmp_path / "inline")


class TestPlan:
    def test_it_knows_the_module_and_what_the_detector_declares(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = tmp_path / "declared_here.py"
        module.write_text("from support.detectors import Declaring\n")
        monkeypatch.syspath_prepend(tmp_path)
        recipe = Recipe(preset="faces", detector="declared_here:Declaring")
        monkeypatch.setenv(WEIGHTS, "a")
        first = describe_runtime(recipe)
        assert first["detector"] == "declared_here:Declaring"
        assert first["detector version"] == "3.1"
        weights = {name: first[f"detector weights {name}"] for name in ("name", "sha256", "license")}
        assert weights == {"name": "none", "sha256": "a", "license": "MIT"}
        assert not {"openvino", "torch"} & first.keys()
        monkeypatch.setenv(WEIGHTS, "b")
        second = describe_runtime(recipe)
        assert {name for name in first if first[name] != second[name]} == {"detector weights sha256"}
        module.write_text("from support.detectors import Declaring  # changed\n")
        third = describe_runtime(recipe)
        assert {name for name in first if second[name] != third[name]} == {"file of detector declared_here:Declaring"}

    def test_mtcnn_declares_its_weights_too(self) -> None:
        runtime = describe_runtime(Recipe(preset="faces"))
        assert runtime["detector weights name"] == "mtcnn 1.0.0"
        assert runtime["detector weights license"] == "MIT"
        assert re.fullmatch("[0-9a-f]{64}", runtime["detector weights sha256"])

    @pytest.mark.parametrize(
        ("detector", "message"),
        [
            ("support.detectors:FailingAtOnce", r"FailingAtOnce: ZeroDivisionError: never \(detectors\.py, line \d+\)"),
            ("support.detectors:Unable", r"Unable: cannot be made on cpu: OSError: no weights for cpu \(detectors\.py"),
            ("support.detectors:WEIGHTS", "WEIGHTS: cannot be made on cpu: TypeError"),
            ("builtins:len", "builtins:len: expected an object with a method detect, found int"),
            ("support.detectors:Missing", "no attribute 'Missing'"),
            ("support.no_such_module:make", "no module"),
        ],
    )
    def test_a_broken_detector_stops_the_build_before_planning(
        self, source: Path, tmp_path: Path, detector: str, message: str
    ) -> None:
        with pytest.raises(UsageError, match=message):
            packer.build(source, tmp_path / "out", **FACES, detector=detector)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "reason", "shared"),
    [
        (
            "NotANumber",
            "expected finite boxes with left < right and top < bottom, found [10.0, 10.0, nan, 60.0]",
            False,
        ),
        ("Failing", "ZeroDivisionError: no light (detectors.py, line ", False),
        ("Failing", "ZeroDivisionError: no light (detectors.py, line ", True),
    ],
)
def test_an_error_in_a_detector_rejects_the_item_and_names_both(
    tmp_path: Path, name: str, reason: str, shared: bool, leaks_allowed: None
) -> None:
    for number, picture in enumerate((np.zeros((64, 64, 3), np.uint8), photograph("astronaut"))):
        write_image(tmp_path / "in" / f"{number}.png", picture)
    how = {**QUIET, **({"engine": "processes", "workers": 1, "shared_detector": True} if shared else {})}
    packer.detect(tmp_path / "in", tmp_path / "out", detector=f"support.detectors:{name}", **how)
    (reject,) = (line for line in read_jsonl(file_of(tmp_path / "out", "rejects.jsonl")) if line["kind"] == "item")
    assert (reject["item"], reject["step"]) == ("1.png", "detect")
    assert reject["reason"].startswith(f"detector support.detectors:{name}: {reason}")


BOX, POINTS = [10, 10, 50, 60], np.full((1, 5, 2), 20)
GOOD = ([BOX], [0.5], POINTS)


class Tracked:
    """Fails as a tensor of torch does that requires gradients."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


class TestCheck:
    @staticmethod
    def check(returned: Any, frames: int = 1) -> packer.Detections:
        """What a detector's answer becomes, for frames of 80 x 100 pixels."""

        class Answering:
            def detect(self, frames: Any) -> Any:
                return returned

        made = CheckedDetector("my:make", lambda device: Answering(), "cpu")
        return made.detect([np.zeros((80, 100, 3), np.uint8)] * frames)

    @pytest.mark.parametrize(
        "returned",
        [
            None,
            7,
            [],
            [GOOD, GOOD],
            [None],
            [GOOD[:2]],
            [([BOX], [0.5], POINTS[0])],
            [([BOX], [0.5], Tracked())],
            [(BOX, [0.5], POINTS)],
            [([BOX], 0.5, POINTS)],
            [([BOX], [0.5, 0.5], POINTS)],
            [([BOX], [0.5], np.zeros((1, 5, 3)))],
            [([], [0.5], [])],
            [([BOX, [1, 2]], [0.5, 0.5], np.zeros((2, 5, 2)))],
            [([["a"] * 4], [0.5], POINTS)],
            [([[10, 10, np.nan, 60]], [0.5], POINTS)],
            [([[10, 10, np.inf, 60]], [0.5], POINTS)],
            [([[10, 10, 1e300, 60]], [0.5], POINTS)],
            [([[10, 10, 10, 60]], [0.5], POINTS)],
            [([[50, 10, 10, 60]], [0.5], POINTS)],
            [([[100, 10, 120, 60]], [0.5], POINTS)],
            [([[10, 80, 50, 90]], [0.5], POINTS)],
            [([[-30, 10, 0, 60]], [0.5], POINTS)],
            [([BOX], [1.01], POINTS)],
            [([BOX], [-0.1], POINTS)],
            [([BOX], [np.nan], POINTS)],
            [([BOX], [0.5], POINTS * np.nan)],
            [([BOX], [0.5], POINTS * 1e9)],
        ],
    )
    def test_anything_else_is_refused_by_name(self, returned: Any) -> None:
        with pytest.raises(BadDetectionsError, match=r"^detector my:make: expected "):
            self.check(returned)

    def test_an_error_in_the_detector_is_not_reported_as_a_bad_answer(self) -> None:
        """It may mean that the process is broken, such as a GPU after an illegal access."""

        def failing() -> Any:
            yield GOOD
            raise RuntimeError("illegal memory access")

        with pytest.raises(ItemError, match="my:make: RuntimeError: illegal memory access") as caught:
            self.check(failing(), frames=2)
        assert not isinstance(caught.value, BadDetectionsError)

    def test_what_is_right_becomes_arrays_with_the_largest_face_first(self) -> None:
        small, large = [90, 70, 130, 100], [-20, -20, 60, 60]
        points = np.arange(20).reshape(2, 5, 2) - 5.0
        found = self.check(iter([([], [], []), ([small, large], (0, 1), points), GOOD]), frames=3)
        assert [array.dtype.str for array in found[0]] == ["<f4"] * 3
        assert [array.shape for array in found[0]] == [(0, 4), (0,), (0, 5, 2)]
        assert found[1].boxes.tolist() == [large, small]
        assert found[1].scores.tolist() == [1, 0]
        assert np.array_equal(found[1].points, points[::-1])
        assert found[2].boxes.tolist() == [BOX]

    @pytest.mark.parametrize(
        "declared",
        [{"version": 3}, {"weights": "yunet"}, {"weights": {"digest": "a"}}, {"weights": {"sha256": None}}],
        ids=repr,
    )
    def test_it_declares_texts(self, declared: dict[str, Any]) -> None:
        made = type("Declared", (), {**declared, "detect": lambda self, frames: [GOOD]})
        with pytest.raises(UsageError, match=r"^detector my:make: expected "):
            CheckedDetector("my:make", lambda device: made(), "cpu")


class TestExamples:
    """The examples of the page, with networks that see a face in every bright square of 8 x 8 pixels."""

    PAGE = (REPOSITORY / "docs" / "howto" / "own_detector.md").read_text("utf-8")

    def detect(self, name: str, model: Path, picture: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        """The faces of an image, and what the manifest says of the detector."""
        module, _, variable = name.partition(":")
        (code,) = re.findall(rf"^```python\n(# {module}\.py\n.*?)^```$", self.PAGE, re.DOTALL | re.MULTILINE)
        assert f"--detector {name}" in self.PAGE
        (tmp_path / f"{module}.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv(f"{variable.upper()}_MODEL", str(model))
        write_image(tmp_path / "in" / "a.png", picture)
        packer.detect(tmp_path / "in", tmp_path / "out", detector=name, min_score=0.5, min_face=1, **QUIET)
        runtime = Layout(tmp_path / "out").load().generations[0].runtime
        assert runtime["detector weights name"] == model.name
        assert runtime["detector weights sha256"] == hashlib.sha256(model.read_bytes()).hexdigest()
        return [sample for sample in read_samples(tmp_path / "out") if sample["box_valid"]], runtime

    def test_yunet(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        model = write_yunet(tmp_path / "yunet.onnx", [0.5, 0.25, np.log(4), np.log(5)], range(10))
        picture = np.zeros((90, 130, 3), np.uint8)
        picture[24:32, 40:48] = 255
        (face,), runtime = self.detect("yunet:YuNet", model, picture, tmp_path, monkeypatch)
        centre, half = np.array([5.5, 3.25]) * 8, np.array([4, 5]) * 4
        np.testing.assert_allclose(face["box"], [*(centre - half), *(centre + half)], atol=1e-3)
        np.testing.assert_allclose(face["landmarks"], np.add(np.arange(10).reshape(5, 2), (5, 3)) * 8, atol=1e-3)
        assert face["score"] > 0.9
        assert runtime["detector weights license"] == "MIT"

    def test_scrfd(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        model = write_scrfd(tmp_path / "scrfd.onnx", [2, 3, 4, 5], range(10))
        picture = np.zeros((960, 1280, 3), np.uint8)  # the network sees half of it in each direction
        picture[48:64, 80:96] = 255
        picture[640:656, 1024:1040] = 255
        faces, runtime = self.detect("scrfd:SCRFD", model, picture, tmp_path, monkeypatch)
        assert len(faces) == 2
        for face, cell in zip(sorted(faces, key=lambda face: float(face["box"][0])), [(5, 3), (64, 40)], strict=True):
            anchor = np.array(cell) * 16
            np.testing.assert_allclose(
                face["box"], [*np.subtract(anchor, (32, 48)), *np.add(anchor, (64, 80))], atol=1e-3
            )
            np.testing.assert_allclose(face["landmarks"], anchor + np.arange(10).reshape(5, 2) * 16, atol=1e-3)
        assert "non-commercial" in runtime["detector weights license"]
