"""Tar files as the webdataset package streams them."""

import gc
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest


def stream_tars(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The samples of tar files in order, decoded as that package does by default, images as arrays."""
    webdataset = pytest.importorskip("webdataset")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves its files to the garbage collector
        rows = list(webdataset.WebDataset(list(map(str, paths)), shardshuffle=False).decode("rgb8"))
        gc.collect()
    return rows
