"""The commands and code of the README, run from top to bottom."""

import json
import re
import shlex
from pathlib import Path

import pytest
from support.command import REPOSITORY, run_packer
from support.face_source import views, write_frames
from support.known_trees import make_faceforensics
from support.media import scene, write_image
from support.ranks import run_script

from readers import open_dataset

README = (REPOSITORY / "README.md").read_text("utf-8")
VIDEOS, FRAMES, EVERY = 10, 21, 10
STEP_FILE = "my_steps.py"


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def commands() -> list[list[str]]:
    """The arguments of the indented lines that call ``packer``."""
    lines = re.findall(r"^ {4}packer (.*)$", README, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the README takes for granted, in which all of its commands have run."""
    root = tmp_path_factory.mktemp("readme")
    images = list(views(FRAMES + VIDEOS))
    for number in range(VIDEOS):
        path = root / "videos" / ("real", "fake")[number % 2] / f"{number}.mp4"
        write_frames(path, images[number : number + FRAMES])
    for number in range(4):
        write_image(root / "photos" / ("cats", "dogs")[number % 2] / f"{number}.jpg", scene(number, (320, 280)))
    make_faceforensics(root / "FaceForensics++")
    (root / "table.csv").write_text("path,age\nphotos/cats/0.jpg,31\nphotos/dogs/1.jpg,4\n", "utf-8")
    (root / "recipe.toml").write_text("\n".join(blocks("toml")), "utf-8")
    (step,) = (code for code in blocks("python") if code.startswith(f"# {STEP_FILE},"))
    (root / STEP_FILE).write_text(step, "utf-8")
    for command, *words in commands():
        if command == "add":
            keys = open_dataset(root / "faces").column("key")
            table = "key,fake_score\n" + "".join(f"{key},0.5\n" for key in keys)
            (root / "predictions.csv").write_text(table, "utf-8")
        run_packer(command, *words, cwd=root)
    return root


def test_the_commands_make_what_they_name(folder: Path) -> None:
    made = {path.name for path in folder.iterdir()}
    assert {
        "faces",
        "images",
        "out",
        "report.html",
        "faces-parquet",
        "parts",
        "all",
        "small",
        "plain",
        "ff.csv",
    } <= made
    samples = VIDEOS * len(range(0, FRAMES, EVERY))
    assert open_dataset(folder / "faces").column("fake_score").tolist() == [0.5] * samples
    assert [len(open_dataset(folder / name)) for name in ("faces", "faces-parquet", "small")] == [samples] * 3
    assert len(open_dataset(folder / "images")) == 4
    assert open_dataset(folder / "small")[0]["image"].shape == (112, 112, 3)
    parts = [len(open_dataset(folder / "parts" / name)) for name in ("train", "val", "test")]
    assert sum(parts) == samples
    assert len(open_dataset(folder / "all")) == sum(parts[:2])


def test_the_recipe_runs_the_step_of_ones_own(folder: Path) -> None:
    out = open_dataset(folder / "out")
    assert [sample["age"] for sample in out] == [31, 4]
    manifest = json.loads((folder / "out" / "manifest.json").read_bytes())
    assert "my_steps:denoise" in json.dumps(manifest["generations"][0]["recipe"]["steps"])


def test_the_python_reads_what_the_commands_made(folder: Path) -> None:
    shown = [code for code in blocks("python") if not code.startswith(f"# {STEP_FILE},")]
    check = (
        "import json; print(json.dumps([list(batch['image'].shape), batch['label'].tolist(), loader.dataset is ds]))"
    )
    before = (folder / "faces" / "manifest.json").stat()
    done = run_script("-c", "\n".join([*shown, check]), cwd=folder)
    shape, labels, same = json.loads(done.stdout.splitlines()[-1])
    samples = VIDEOS * len(range(0, FRAMES, EVERY))
    assert shape == [samples, 3, 224, 224]
    assert sorted(labels) == sorted([0, 1] * (samples // 2))
    assert same
    assert (
        folder / "faces" / "manifest.json"
    ).stat().st_mtime_ns == before.st_mtime_ns  # the same build, finished already
