"""`Encoded`: the stored bytes of an image field, through every format, loader and view, and into other decoders."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.command import REPOSITORY
from support.media import photograph, write_image
from support.packed_files import read_all, write_faces
from torch.utils.data import DataLoader
from torchvision.io import decode_jpeg

from packer import build
from readers import ClipDataset, Encoded, Loader, MixedDataset, open_dataset
from readers.seeding import SampledIndex
from shardspec.formats import FORMATS

OLD_NAME = pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities:DeprecationWarning")

PLAN = {"image": Encoded()}
ROWS = 7


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("encoded")
    for format in sorted(FORMATS):
        write_faces(root / format, ROWS, format, codec="jpeg")
    write_faces(root / "png", ROWS, codec="png")
    write_faces(root / "raw", ROWS)
    return root


def as_bytes(values: Any) -> list[bytes]:
    return [bytes(value.tolist()) for value in values]


@pytest.mark.parametrize("format", [*sorted(FORMATS), "png"])
def test_a_batch_has_the_stored_bytes(faces: Path, format: str) -> None:
    stored = read_all(faces / format)["image"]
    dataset = open_dataset(faces / format, decode=PLAN)
    assert dataset[2]["image"].dtype == np.uint8
    assert as_bytes([dataset[2]["image"], dataset.read_batch([5])["image"][0]]) == [stored[2], stored[5]]
    batches = list(Loader(dataset, batch_size=4, shuffle=False, workers=2))
    assert as_bytes(value for batch in batches for value in batch["image"]) == stored
    assert batches[0]["landmarks"].shape == (4, 5, 2)  # no pixel was moved
    loader = DataLoader(dataset, 4, collate_fn=dataset.collate, num_workers=1 if format == "lmdb" else 0)
    assert as_bytes(value for batch in loader for value in batch["image"]) == stored


@OLD_NAME
def test_they_decode_to_the_images(faces: Path) -> None:
    (batch,) = Loader(open_dataset(faces / "lmdb", decode=PLAN), batch_size=ROWS, shuffle=False)
    (decoded,) = Loader(open_dataset(faces / "lmdb"), batch_size=ROWS, shuffle=False)
    assert all(value.dtype == torch.uint8 and value.ndim == 1 for value in batch["image"])
    found = torch.stack(decode_jpeg(batch["image"]))
    assert (found.int() - decoded["image"].int()).abs().float().mean() < 1


def test_they_stay_in_the_memory_of_the_cpu(faces: Path) -> None:
    seen: list[Any] = []

    def look(batch: dict[str, Any]) -> dict[str, Any]:
        seen.append([value.device.type for value in (*batch["image"], batch["landmarks"])])
        return batch

    dataset = open_dataset(faces / "npy", decode=PLAN, transform=lambda sample: sample)
    next(iter(Loader(dataset, batch_size=2, device="meta", batch_transform=look)))
    assert seen[0] == ["cpu", "cpu", "meta"]


def test_views_clips_parts_and_mixtures_hold_encoded_bytes(faces: Path) -> None:
    stored = read_all(faces / "lmdb")["image"]
    plain = open_dataset(faces / "lmdb", ["key", "frame", "image"])
    dataset = plain.with_decode(PLAN)
    assert as_bytes([dataset.subset([6, 1])[0]["image"]]) == [stored[6]]
    (batch,) = Loader(dataset, batch_size=ROWS, shuffle=False, views=2)
    assert [as_bytes(views) for views in batch["image"]] == [[data, data] for data in stored]
    clips = ClipDataset(dataset, 2, by=None)
    batch = next(iter(Loader(clips, batch_size=2, shuffle=False, device="meta")))
    assert [len(clip) for clip in batch["image"]] == [2, 2]
    assert all(data in stored for clip in batch["image"] for data in as_bytes(clip))
    mixed = MixedDataset([dataset, dataset])
    assert as_bytes([mixed[SampledIndex(0, 0, 0)]["image"]])[0] in stored


@OLD_NAME
def test_the_gpu_example_of_the_docs_runs_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(("coffee", "chelsea", "rocket", "astronaut")):
        write_image(tmp_path / "photos" / "ab"[number % 2] / f"{name}.jpg", photograph(name))
    build(tmp_path / "photos", tmp_path / "packed", label_from="folder", engine="inline", progress=False)
    page = (REPOSITORY / "docs" / "howto" / "train_photos.md").read_text("utf-8")
    (example,) = [code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "Encoded()" in code]
    if not torch.cuda.is_available():
        example = example.replace('"cuda"', '"cpu"')
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["batch"]["image"].shape == (4, 3, 224, 224)
    assert names["batch"]["image"].dtype == torch.float32
