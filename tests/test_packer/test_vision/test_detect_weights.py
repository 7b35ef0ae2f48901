"""The detector's weights are facenet-pytorch's, and no other files are taken for them."""

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.errors import raises

from packer.vision.detect.networks import load_weights
from shardspec.errors import MissingDependencyError

HEADS = {"pnet": ("conv4_2", "conv4_1"), "rnet": ("dense5_2", "dense5_1"), "onet": ("dense6_2", "dense6_3", "dense6_1")}
"""Names that facenet-pytorch gives to the heads of each network, in the order of the files."""


def folder_of(package: str) -> Path:
    return Path(importlib.util.find_spec(package).submodule_search_locations[0])


@pytest.mark.parametrize("name", ["pnet", "rnet", "onet"])
def test_the_numbers_are_those_of_facenet_pytorch(name):
    torch = pytest.importorskip("torch")
    state = torch.load(folder_of("facenet_pytorch") / "data" / f"{name}.pt", weights_only=True)
    layers = [key for key in state if key.split(".")[0] not in HEADS[name]]
    heads = [f"{head}.{kind}" for head in HEADS[name] for kind in ("weight", "bias")]
    expected = [state[key].numpy() for key in [*layers, *heads]]
    found = load_weights().nets[name]
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        if theirs.ndim == 4:
            theirs = theirs.transpose(2, 3, 1, 0)
        elif theirs.ndim == 2:
            theirs = theirs.T
        assert ours.dtype == np.float32
        assert np.array_equal(ours.reshape(theirs.shape), theirs)


@pytest.mark.parametrize("damage", ["other", "missing"])
def test_other_files_are_not_loaded(tmp_path, monkeypatch, damage):
    shutil.copytree(folder_of("mtcnn") / "assets", tmp_path / "mtcnn" / "assets")
    (tmp_path / "mtcnn" / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_weights().declared["name"] == "mtcnn 1.0.0"
    path = tmp_path / "mtcnn" / "assets" / "weights" / "rnet.lz4"
    if damage == "missing":
        path.unlink()
    else:
        raw = bytearray(path.read_bytes())
        raw[-1000] ^= 1
        path.write_bytes(raw)
    with raises(
        MissingDependencyError,
        expected=f"the weights of mtcnn==1.0.0 in {path.parent}",
        found="other files" if damage == "other" else "none",
        hint="pip install --force-reinstall --no-deps mtcnn==1.0.0",
    ):
        load_weights()
