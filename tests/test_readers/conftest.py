"""Datasets to read, and fixtures that count what a test leaves behind."""

import gc
import os
import threading
import time
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


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counts, and a Path would not make it clearer


@pytest.fixture
def no_leaks():
    """Fails if threads, child processes or descriptors are left that were not there before."""
    gc.collect()
    threads, descriptors = set(threading.enumerate()), open_descriptors()
    yield
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        gc.collect()
        left = set(threading.enumerate()) - threads
        if not left and open_descriptors() <= descriptors:
            return
        time.sleep(0.05)
    assert not left, f"threads left: {left}"
    assert open_descriptors() <= descriptors
