"""The messages of wrong calls in Python (see `support.messages`).

After a change of wording, write the files again with ``UPDATE_MESSAGES=1 pytest tests/test_readers/test_readers_messages.py``
and read their difference.
"""

from pathlib import Path
from typing import Any

import albumentations as A  # noqa: N812 -- as its own documentation does
import kornia.augmentation as K  # noqa: N812 -- as its own documentation does
import numpy as np
import pytest
import torch
from support.faces import face_sample
from support.messages import check_messages
from torch.utils.data import DistributedSampler
from torchvision import transforms as v1
from torchvision.transforms import v2

import readers
from readers import augment
from readers.lightning import PackedDataModule
from readers.order.order import Blocks, Order
from readers.seeding import sample_rng

MESSAGES = Path(__file__).parent / "messages"


@pytest.fixture(scope="module")
def names(raw_path: Path, face_path: Path) -> dict[str, Any]:
    """Names that the expressions may use."""
    public = {name: getattr(package, name) for package in (readers, augment) for name in package.__all__}
    used = (np, torch, v1, v2, A, K, DistributedSampler, PackedDataModule, Blocks, Order)
    datasets = {"dataset": readers.open_dataset(raw_path), "faces": readers.open_dataset(face_path), "raw": raw_path}
    samples = {"face": face_sample(), "rng": sample_rng(0, 0, 0)}
    samples |= {"batch": {"image": torch.zeros(3, 3, 8, 8), "label": torch.arange(3)}, "rows_of": lambda epoch: [epoch]}
    return {**public, **dict(zip(("np", "torch", "v1", "v2", "A", "K"), used, strict=False)), **datasets, **samples} | {
        kind.__name__: kind for kind in used[6:]
    }


@pytest.mark.parametrize("path", sorted(MESSAGES.glob("*.txt")), ids=lambda path: path.stem)
def test_messages(path: Path, names: dict[str, Any]) -> None:
    check_messages(path, names, {str(names["raw"]): "/raw"})
