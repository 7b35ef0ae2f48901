"""The examples, as a user runs them: a few steps each, on data that `examples/make_data.py` makes."""

import io
import json
import re
import shlex
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from support.command import REPOSITORY, run_packer
from support.ranks import run_script
from support.stores import serving

from packer.packed.browse.dataset import BrowsedDataset
from packer.page.dataset_view import DatasetView
from packer.page.view import make_app

EXAMPLES = REPOSITORY / "examples"


def run(*words: object, cwd: Path) -> Any:
    """Run Python in a process of its own; the JSON in the last line that it prints."""
    done = run_script(*words, cwd=cwd)
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout else None


@pytest.fixture(scope="module")
def raw(tmp_path_factory) -> Path:
    """The demo's images and videos."""
    folder = tmp_path_factory.mktemp("demo")
    run(EXAMPLES / "make_data.py", "raw", cwd=folder)
    return folder / "raw"


@pytest.fixture(scope="module")
def packed(raw) -> Path:
    """The images and some frames, packed small, without looking for faces: 44 samples."""
    out = raw.parent / "packed"
    run_packer("build", raw, out, "--size", 64, "--every", 10, "--label-from", "folder", "--quiet", "--workers", 1)
    return out


def test_made_data_is_whole(raw, packed):
    assert sorted(path.name for path in raw.iterdir()) == ["altered", "real"]
    facts = json.loads(run_packer("inspect", packed, "--json").stdout)
    assert (facts["items"], facts["rejected_items"], facts["samples"]) == (34, 0, 2 * (16 + 6))


def test_plain_training(packed, tmp_path):
    epochs = run(EXAMPLES / "train_plain.py", packed, "--workers", 1, cwd=tmp_path)
    assert [epoch["samples"] for epoch in epochs] == [44, 44]
    assert all(epoch["loss"] < 2 for epoch in epochs)


def test_two_ranks_train_from_a_bucket(packed, tmp_path):
    with serving() as server:
        run_packer("copy", packed, server.url("packed"), "--quiet", env=server.env)
        cache = tmp_path / "cache"
        env = {**server.env, "FACEPACK_CACHE": str(cache), "FACEPACK_CACHE_SIZE": "1GB"}
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        script = [str(EXAMPLES / "train_plain.py"), server.url("packed"), "--workers", "1"]
        done = subprocess.run([*command, *script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
    epochs = json.loads(done.stdout.splitlines()[-1])
    assert [epoch["samples"] for epoch in epochs] == [22, 22]
    assert list(cache.rglob("shard-*"))


@pytest.fixture(scope="module")
def lips(tmp_path_factory) -> Path:
    """Mouth crops with sound of four videos for each of two words, packed by the command of docs/howto/video.md."""
    folder = tmp_path_factory.mktemp("lips")
    run_script(EXAMPLES / "make_talking.py", "videos", cwd=folder)
    page = (REPOSITORY / "docs" / "howto" / "video.md").read_text("utf-8")
    command = re.search(r"^    packer build videos/ lips/ (.*?)$(?!\\)", page.replace("\\\n", " "), re.MULTILINE)
    assert command is not None
    options = (*shlex.split(command[1]), "--workers", 1, "--quiet")
    run_packer("build", folder / "videos", folder / "lips", *options)
    return folder / "lips"


def test_lip_reading(lips, tmp_path):
    epochs = run(EXAMPLES / "train_lips.py", lips, cwd=tmp_path)
    assert all(epoch["clips"] == 40 for epoch in epochs)
    assert epochs[-1]["loss"] < epochs[0]["loss"] - 0.05
    assert epochs[-1]["accuracy"] > 0.75


def test_a_track_is_seen_and_heard(lips):
    app = make_app([DatasetView(BrowsedDataset(lips))], "token", "127.0.0.1")
    pages = TestClient(app, base_url="http://127.0.0.1:8017")
    assert 'class="waveform"' in pages.get("/token/0/row/0/track").text
    with wave.open(io.BytesIO(pages.get("/token/0/row/0/track.wav").content)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (16000, 1, 40 * 640)
        heard = np.abs(np.frombuffer(file.readframes(40 * 640), np.int16).astype(int))
    # The mouth opens once, and the tone is as loud as the mouth is open.
    quarters = [int(part.max()) for part in np.split(heard, 4)]
    assert max(quarters[1:3]) > 10_000 > 10 * quarters[3]
