"""The examples, as a user runs them: a few steps each, on data that `examples/make_data.py` makes."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.command import REPOSITORY, run_packer
from support.ranks import run_script

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
