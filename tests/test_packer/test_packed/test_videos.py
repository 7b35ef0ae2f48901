"""Commands on packed datasets whose samples are videos."""

import io
import re
import wave
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient
from support.builds import QUIET
from support.command import run_packer
from support.packed import read_samples
from support.sound import write_talk

import packer
from packer.packed.browse.dataset import BrowsedDataset
from packer.packed.browse.tracks import sound_of_sample
from packer.page.dataset_view import DatasetView
from packer.page.view import make_app


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two videos of fifty frames with sound."""
    root = tmp_path_factory.mktemp("videos")
    for name in ("a", "b"):
        write_talk(root / "in" / "real" / f"{name}.mp4")
    options: dict[str, Any] = {"sample": "item", "size": 32, "audio": 16000, "label_from": "folder"}
    packer.build(root / "in", root / "out", **options, **QUIET)
    return root / "out"


def test_inspect_tells_how_long_the_videos_are(videos: Path) -> None:
    facts = packer.inspect(videos).to_json()
    assert (facts["frames"], facts["seconds"]) == (100, pytest.approx(4.0, abs=0.01))
    assert re.search(r"videos: 100 frames, 4\.0 s, [\d.]+ kB a second", run_packer("inspect", videos).stdout)


def test_export_writes_the_videos_and_their_sound(videos: Path, tmp_path: Path) -> None:
    call = ("export", videos, tmp_path / "files", "--table", "jsonl")
    assert run_packer(*call).stdout.endswith(": 2 samples, 4 files, table.jsonl\n")
    assert run_packer(*call).stdout.endswith(": 2 samples, 4 files, table.jsonl\n")
    samples = read_samples(videos)
    assert len(list((tmp_path / "files").rglob("*.mp4"))) == len(list((tmp_path / "files").rglob("*.wav"))) == 2
    for sample in samples:
        path = tmp_path / "files" / "real" / f"{sample['key']}.mp4"
        with av.open(str(path)) as container:
            assert sum(1 for _ in container.decode(video=0)) == sample["frames"]
        with wave.open(str(path.with_suffix(".wav"))) as sound:
            assert sound.getframerate() == 16000
            assert np.array_equal(np.frombuffer(sound.readframes(-1), "<i2"), sample["audio"])


def test_a_sheet_has_a_strip_of_each_video(videos: Path, tmp_path: Path) -> None:
    run_packer("preview", videos, "-o", tmp_path / "sheet.png", "--cell", 64)
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > sheet.height


def test_pages_play_the_videos(videos: Path, tmp_path: Path) -> None:
    run_packer("report", videos, "-o", tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text("utf-8").count('<video controls loop muted src="data:video/mp4') == 2
    dataset = BrowsedDataset(videos)
    found = dataset.played(0, "video")
    assert found is not None
    with av.open(io.BytesIO(found.data)) as container:
        assert sum(1 for _ in container.decode(video=0)) == 50
    with Image.open(io.BytesIO(dataset.stored(0).data)) as middle:
        assert middle.size == dataset.sizes([0])[0]
    sound = sound_of_sample(dataset, 0)
    assert sound is not None
    assert len(sound.samples) == 32000
    assert DatasetView(dataset).cards([0, 1])[0].size == dataset.sizes([0])[0]
    pages = TestClient(make_app([DatasetView(dataset)], "token", "127.0.0.1"), base_url="http://127.0.0.1:8017")
    shown = pages.get("/token/0/row/0").text
    for part in ("/token/0/row/0/video/play", "/token/0/row/0/sound.wav"):
        assert part in shown
        assert pages.get(part).status_code == 200
    assert pages.get("/token/0/row/0/video/play").content == found.data
    assert pages.get("/token/0/row/0/label/play").status_code == 404


def test_verify_decodes_videos(videos: Path) -> None:
    run_packer("verify", videos)
