"""Datasets to read."""

from pathlib import Path

import pytest
import torch
from support.crops import write_crops
from support.datasets import face_schema, values_for, write_dataset

from readers.formats import machine

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def raw_path(tmp_path_factory) -> Path:
    return write_crops(tmp_path_factory.mktemp("raw") / "npy", "npy", None)


@pytest.fixture(scope="session")
def jpeg_path(tmp_path_factory) -> Path:
    return write_crops(tmp_path_factory.mktemp("jpeg") / "lmdb", "lmdb", "jpeg")


@pytest.fixture(scope="session")
def face_path(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("face") / "lmdb"
    schema = face_schema(24)
    write_dataset(root, "lmdb", schema, values_for(schema, 40), shard_rows=9)
    return root


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A made-up /proc and /sys/fs/cgroup."""
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    monkeypatch.setattr(machine, "_PROC", proc)
    monkeypatch.setattr(machine, "_CGROUP", cgroup)

    def make(groups: str = "", mounts: str = "", **limits: str) -> None:
        (proc / "self").mkdir(parents=True, exist_ok=True)
        (proc / "self/cgroup").write_text(groups)
        (proc / "self/mounts").write_text(mounts)
        for place, content in limits.items():
            path = cgroup / place.replace("__", "/").replace("_DOT_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    return make
