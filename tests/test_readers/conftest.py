"""Datasets to read."""

from pathlib import Path

import pytest
import torch
from support.crops import write_crops
from support.datasets import face_schema, values_for, write_dataset

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
