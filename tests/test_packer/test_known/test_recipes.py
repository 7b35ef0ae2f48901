"""The recipes of docs/howto/datasets.md, run: from a dataset as it is published to a batch."""

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import known_trees as trees
from support.command import REPOSITORY, run_packer

from packer.cli import main
from packer.known.listing import recognise
from readers import Loader, class_balanced_weights, open_dataset

PAGE = REPOSITORY / "docs" / "howto" / "datasets.md"

TREES: Mapping[str, Callable[[Path], object]] = {
    "FaceForensics++": lambda here: trees.make_faceforensics(here / "FaceForensics++"),
    "DFDC": lambda here: trees.make_dfdc(here / "dfdc"),
    "Celeb-DF": lambda here: trees.make_celeb_df(here / "Celeb-DF-v2"),
    "LAV-DF": lambda here: trees.make_lav_df(here / "LAV-DF"),
    "AV-Deepfake1M": lambda here: trees.make_av_deepfake1m(here / "AV-Deepfake1M"),
    "FakeAVCeleb": lambda here: trees.make_fakeavceleb(here / "FakeAVCeleb_v1.2"),
    "VoxCeleb2": lambda here: trees.make_voxceleb2(here / "VoxCeleb2"),
    "DeepfakeBench": lambda here: trees.make_deepfakebench(here / "datasets/rgb", here / "dataset_json"),
    "DF40": lambda here: trees.make_df40(here / "datasets", here / "dataset_json", published=False),
    "ImageNet": lambda here: trees.make_imagenet(here / "ILSVRC2012"),
    "LRW": lambda here: trees.make_lrw(here / "lipread_mp4"),
    "LRS2 and LRS3": lambda here: trees.make_lrs2(here / "LRS2"),
    "Folders train, val, test": lambda here: trees.make_imagefolder(here / "photos"),
}
"""What each recipe starts from."""


def recipe(title: str) -> list[list[str]]:
    """The commands below a heading of the page."""
    body = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert body is not None
    lines = body[1].replace("\\\n", " ")
    return [shlex.split(line, comments=True) for line in re.findall(r"^ {4}packer (.*)$", lines, re.MULTILINE)]


def code(number: int) -> str:
    """One of the page's blocks of Python."""
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)[number]


def run(title: str, here: Path, run_one: Callable[..., str]) -> dict[str, str]:
    """Run a recipe and return the output of its commands by their names and what they write."""
    TREES[title](here)
    said: dict[str, str] = {}
    printed: list[str] = []
    for command, *words in recipe(title):
        if command == "build":
            table, out, *options = words
            assert [table, "OUT"] == printed[:2]
            assert options == printed[2:]
            words = [table, out, *printed[2:]]
        inline = ["--engine", "inline"] if command in ("build", "split") else []
        text = said[f"{command} {words[1]}"] = run_one(command, *words, *inline, "--quiet")
        if command == "list":
            printed = shlex.split(text.split("; to pack it: packer build ")[1])
    return said


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], dict[str, str]]:
    """Run a recipe in an empty folder, which becomes the current one, and in this process, which saves starts."""
    monkeypatch.chdir(tmp_path)

    def run_one(*words: str) -> str:
        assert main(list(words)) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return lambda title: run(title, tmp_path, run_one)


@pytest.mark.parametrize("title", [title for title in TREES if title != "Folders train, val, test"])
def test_a_build_of_a_published_tree_says_how_to_list_it(
    tmp_path: Path, title: str, capsys: pytest.CaptureFixture[str]
) -> None:
    TREES[title](tmp_path)
    name = next(command[1] for command in recipe(title) if command[0] == "list")
    root = tmp_path if title == "DeepfakeBench" else next(iter(tmp_path.iterdir()))
    main(["build", str(root), str(tmp_path / "out"), "--every", "99", "--limit", "1", "--engine", "inline", "--quiet"])
    assert f"packer list {name} {root} -o {name}.csv" in capsys.readouterr().err


def test_other_folders_are_not_published_trees(tmp_path: Path) -> None:
    trees.make_imagefolder(tmp_path / "photos")
    assert recognise(tmp_path / "photos") is None
    assert recognise(tmp_path) is None


def rows_of(dataset: Path, *fields: str) -> set[tuple[object, ...]]:
    """The values of some fields, over all samples."""
    ds = open_dataset(dataset, fields=list(fields))
    return {tuple(v.item() if isinstance(v, np.generic) else v for v in map(ds[i].get, fields)) for i in range(len(ds))}


def test_every_heading_with_commands_is_run() -> None:
    titles = re.findall(r"^## (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert [title for title in titles if recipe(title)] == list(TREES)


def test_faceforensics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = run("FaceForensics++", tmp_path, lambda *words: run_packer(*words, cwd=tmp_path).stdout)
    assert said["inspect ff-parts/val"].startswith(
        "ff-parts/train, ff-parts/val, ff-parts/test: no group occurs in more"
    )
    train = tmp_path / "ff-parts/train"
    video = "original_sequences/youtube/c23/videos/071.mp4"
    # The forgeries have no face that a detector would find: they are cut where the target's is.
    assert rows_of(train, "source", "label", "original", "method", "mask_image_valid") >= {
        (video, 0, video, "real", True),  # a mask of zeros
        ("manipulated_sequences/Deepfakes/c23/videos/071_054.mp4", 1, video, "Deepfakes", True),
    }
    ds = open_dataset(train, fields=["original", "frame", "box"])
    boxes: dict[tuple[str, int], set[bytes]] = {}
    for i in range(len(ds)):
        boxes.setdefault((ds[i]["original"], int(ds[i]["frame"])), set()).add(ds[i]["box"].tobytes())
    assert {len(found) for found in boxes.values()} == {1}
    # Drawn with the page's weights, a batch has as many originals as forgeries, though there are twice as many of these.
    ds = open_dataset(train, fields=["image", "label"])
    labels = ds.column("label")
    assert 2 * len(labels) == 3 * labels.sum() > 0
    batch = next(iter(Loader(ds, batch_size=400, seed=0, draws=400, weights=class_balanced_weights(labels))))
    assert 150 < batch["label"].sum() < 250
    assert tuple(batch["image"].shape) == (400, 3, 256, 256)
    monkeypatch.chdir(tmp_path)
    shown: dict[str, Any] = {}
    exec(code(1), shown)
    assert tuple(shown["batch"]["image"].shape[1:]) == (3, 256, 256)


def test_dfdc(tmp_path: Path, here: Callable[[str], dict[str, str]]) -> None:
    said = here("DFDC")
    assert "no original occurs in more than one" in said["inspect dfdc-train/val"]
    together = [rows_of(tmp_path / f"dfdc-train/{split}", "original", "label") for split in ("train", "val")]
    assert {label for _, label in together[0]} == {0, 1}
    assert {name for name, _ in together[0]} | {name for name, _ in together[1]} == {
        f"{part}/{name}.mp4"
        for part, names in (("dfdc_train_part_00/dfdc_train_part_0", "ab"), ("dfdc_train_part_1", "cd"))
        for name in names
    }
    assert {label for _, label in rows_of(tmp_path / "dfdc-parts/test", "source", "label")} == {0, 1}


def test_celeb_df(tmp_path: Path, here: Callable[[str], dict[str, str]]) -> None:
    said = here("Celeb-DF")
    assert "no original occurs in more than one" in said["inspect celeb-parts/test"]
    assert rows_of(tmp_path / "celeb-parts/test", "source", "label", "person") == {
        ("YouTube-real/00170.mp4", 0, "youtube-00170"),
        ("Celeb-real/id2_0000.mp4", 0, "id2"),
        ("Celeb-synthesis/id2_id1_0000.mp4", 1, "id2"),
    }
    batch = next(iter(Loader(open_dataset(tmp_path / "celeb-parts/train", fields=["image"]), batch_size=4, seed=0)))
    assert tuple(batch["image"].shape) == (4, 3, 256, 256)
    exec(code(0), {})
    parts = [rows_of(tmp_path / name, "source", "label") for name in ("celeb-test", "celeb-parts/test")]
    assert parts[0] == parts[1]


def test_lav_df(tmp_path: Path, here: Callable[[str], dict[str, str]]) -> None:
    said = here("LAV-DF")
    assert "no original occurs in more than one" in said["inspect lav-parts/val"]
    test = open_dataset(tmp_path / "lav-parts/test", fields=["source", "frame", "label", "modified", "fake_periods"])
    forged = {(str(s["source"]), int(s["frame"])) for s in test if s["fake_periods"]}
    assert forged == {
        (f"test/{name}.mp4", frame) for name in ("000005", "000006") for frame in (1, 3)
    }  # 2 shows no face
    assert set(test.where("modified != 'audio'").column("label").tolist()) == {0, 1}
    assert len(test.where("modified != 'audio'")) < len(test)


def test_av_deepfake1m(tmp_path: Path, here: Callable[[str], dict[str, str]]) -> None:
    said = here("AV-Deepfake1M")
    assert "no person occurs in more than one" in said["inspect av1m-parts/val"]
    fields = ("frame", "modified", "fake_segments", "visual_fake_segments", "audio_fake_segments")
    found = rows_of(tmp_path / "av1m-parts/val", *fields)
    assert {row for row in found if row[2]} == {
        (1, "video", True, True, False),
        (1, "audio", True, False, True),
        (1, "both", True, True, True),
    }


def test_fakeavceleb(tmp_path: Path, here: Callable[[str], dict[str, str]]) -> None:
    said = here("FakeAVCeleb")
    assert "no person occurs in more than one" in said["inspect fav-parts/test"]
    for part in ("train", "test"):
        found = rows_of(tmp_path / f"fav-parts/{part}", "label", "modified")
        assert found == {(0, "none"), (1, "audio"), (1, "video"), (1, "both")}


def test_voxceleb2(tmp_path: Path, here: Callable[[str], dict[str, str]]) -> None:
    said = here("VoxCeleb2")
    assert "no person occurs in more than one" in said["inspect vox-parts/test"]
    assert rows_of(tmp_path / "vox-parts/test", "person", "gender", "clip") == {("id00017", "m", "id00017/_raOc3-IRsw")}


def test_df40(tmp_path: Path, here: Callable[[str], dict[str, str]]) -> None:
    said = here("DF40")
    assert "no clip occurs in more than one" in said["inspect df40-parts/test"]
    assert rows_of(tmp_path / "df40-parts/train", "label", "method") == {(1, "VQGAN")}
    found = rows_of(tmp_path / "df40-parts/test", "label", "method", "group")
    assert found >= {(0, "real", "ff"), (1, "simswap", "ff"), (1, "mobileswap", "cdf")}


def test_imagenet(tmp_path: Path, here: Callable[[str], dict[str, str]]) -> None:
    said = here("ImageNet")
    assert "no source occurs in more than one" in said["inspect imagenet-parts/val"]
    base = "ILSVRC/Data/CLS-LOC/val/ILSVRC2012_val_0000000"
    assert rows_of(tmp_path / "imagenet-parts/val", "source", "label") == {
        (f"{base}{number}.JPEG", label) for number, label in ((1, 2), (2, 0), (3, 1), (4, 0))
    }
    train = open_dataset(tmp_path / "imagenet-parts/train", fields=["image", "label"])
    assert train.schema["label"].classes == trees.WNIDS
    batch = next(iter(Loader(train, batch_size=6, seed=0)))
    assert sorted(batch["label"].tolist()) == [0, 0, 1, 1, 2, 2]


def test_deepfakebench(tmp_path: Path, here: Callable[[str], dict[str, str]]) -> None:
    said = here("DeepfakeBench")
    assert "no clip occurs in more than one" in said["inspect bench-parts/val"]
    test = open_dataset(tmp_path / "bench-parts/test", fields=["label"])
    assert (len(test), test.classes) == (6, ("real", "fake"))


def test_lrw(tmp_path: Path, here: Callable[[str], dict[str, str]]) -> None:
    here("LRW")
    train = open_dataset(tmp_path / "lrw-parts/train", fields=["image", "label", "key", "frame", "duration"])
    assert train.schema["label"].classes == ("ABOUT", "WHICH")
    clips = train.clips(4, by=None)
    assert (len(clips), clips[0]["image"].shape[0], float(clips[0]["duration"][0])) == (4, 4, 0.13)


def test_lrs(tmp_path: Path, here: Callable[[str], dict[str, str]]) -> None:
    said = here("LRS2 and LRS3")
    assert "no clip occurs in more than one" in said["inspect lrs-parts/val"]
    assert rows_of(tmp_path / "lrs-parts/val", "text", "clip") == {("SAID IN VAL", "5535415699068794046")}


def test_imagefolder(tmp_path: Path, here: Callable[[str], dict[str, str]]) -> None:
    here("Folders train, val, test")
    assert rows_of(tmp_path / "parts/test", "source", "label") == {
        (f"test/{label}/{number}.png", place) for place, label in enumerate(("cat", "dog")) for number in (1, 2)
    }
