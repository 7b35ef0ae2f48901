"""The commands and code of the README, run from top to bottom."""

import json
import re
import shlex
from pathlib import Path

import pytest
from support.command import REPOSITORY, run_packer
from support.face_source import views, write_frames
from support.media import scene, write_image
from support.ranks import run_script

from readers import open_dataset

README = (REPOSITORY / "README.md").read_text("utf-8").partition("\n## What you can rely on\n")[2]
"""The README below its summary, whose command is shown again with more options."""

VIDEOS, FRAMES, EVERY = 10, 21, 10
SAMPLES = VIDEOS * len(range(0, FRAMES, EVERY))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sources that the README names, in which all of its commands have run."""
    root = tmp_path_factory.mktemp("readme")
    images = list(views(FRAMES + VIDEOS))
    for number in range(VIDEOS):
        path = root / "videos" / ("real", "fake")[number % 2] / f"{number}.mp4"
        write_frames(path, images[number : number + FRAMES])
    for number in range(4):
        write_image(root / "photos" / ("cats", "dogs")[number % 2] / f"{number}.jpg", scene(number, (320, 280)))
    for line in re.findall(r"^ {4}packer (.*)$", README, re.MULTILINE):
        run_packer(*shlex.split(line, comments=True), cwd=root)
    return root


def test_the_commands_make_what_they_name(folder: Path) -> None:
    made = {path.name for path in folder.iterdir()}
    assert made == {"videos", "photos", "faces", "images", "report.html", "faces-parquet", "parts"}
    assert [len(open_dataset(folder / name)) for name in ("faces", "faces-parquet")] == [SAMPLES] * 2
    assert open_dataset(folder / "images")[0]["image"].shape == (256, 256, 3)
    assert sum(len(open_dataset(folder / "parts" / name)) for name in ("train", "val", "test")) == SAMPLES


def test_the_python_reads_what_the_commands_made(folder: Path) -> None:
    shown = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    check = (
        "import json; print(json.dumps([list(batch['image'].shape), batch['label'].tolist(), loader.dataset is ds]))"
    )
    done = run_script("-c", "\n".join([*shown, check]), cwd=folder)
    shape, labels, same = json.loads(done.stdout.splitlines()[-1])
    assert shape == [SAMPLES, 3, 224, 224]
    assert sorted(labels) == sorted([0, 1] * (SAMPLES // 2))
    assert same
