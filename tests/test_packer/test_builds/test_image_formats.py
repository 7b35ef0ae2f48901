"""Images of further formats, as they are listed and stored."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
from PIL import Image
from support.media import scene
from support.packed import read_samples, stored_images

import packer
from packer.vision.decode.jpeg import decode_strict

HOW: dict[str, Any] = {"engine": "inline", "progress": False, "format": "npy"}
FIRST, SECOND = scene(0, (64, 48)), scene(1, (64, 48))


def saved(image: np.ndarray[Any, Any], kind: str, **options: Any) -> bytes:
    file = BytesIO()
    Image.fromarray(image).save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("encode", ["jpeg", "png"])
@pytest.mark.parametrize("steps", [("decode", "resize"), ("decode", "support.steps:add_field", "resize")])
def test_enlarged_images_and_unequal_sizes_are_reported(tmp_path: Path, encode: str, steps: tuple[str, ...]) -> None:
    for number, shape in enumerate([(30, 40), (64, 64), (90, 120), (50, 200)]):
        path = tmp_path / "in" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(saved(scene(number, shape), "PNG"))
    options: dict[str, Any] = {"encode": encode, "steps": steps, "engine": "inline", "progress": False}
    made = packer.build(tmp_path / "in", tmp_path / "out", size=64, **options)
    assert made.enlarged == made.to_json()["enlarged"] == 2  # 30 x 40 and 50 x 200
    assert "enlarged to --size 64: 2 images" in made.describe()
    assert "batches hold them as lists: pack them with --size 64 --resize exact" in made.describe()
    exact = packer.build(tmp_path / "in", tmp_path / "exact", size=20, resize="exact", **options)
    assert exact.enlarged == 0
    assert len(exact.describe().splitlines()) == 1
    whole = packer.build(tmp_path / "in", tmp_path / "whole", **options)
    assert whole.enlarged is None
    assert "different sizes" in whole.describe()


def test_avif_heic_and_mpo_are_packed(tmp_path: Path) -> None:
    root = tmp_path / "in"
    root.mkdir()
    Image.fromarray(FIRST).save(root / "a.avif", quality=100, subsampling="4:4:4")
    for name in ("b.heic", "c.HEIF"):
        pillow_heif.from_pillow(Image.fromarray(FIRST)).save(root / name, quality=-1, chroma=444)
    several = {"save_all": True, "append_images": [Image.fromarray(SECOND)]}
    Image.fromarray(FIRST).save(root / "d.mpo", quality=95, subsampling=0, **several)
    packer.build(root, tmp_path / "out", encode="png", **HOW)
    samples = read_samples(tmp_path / "out")
    assert [sample["source"] for sample in samples] == ["a.avif", "b.heic", "c.HEIF", "d.mpo"]
    for sample in samples:
        assert np.abs(sample["image"].astype(int) - FIRST).mean() < 3, sample["source"]


@pytest.mark.parametrize("shape", ["plain", "chain"])
def test_a_kept_jpeg_ends_at_its_end_marker(tmp_path: Path, shape: str) -> None:
    root, jpeg = tmp_path / "in", saved(FIRST, "JPEG")
    root.mkdir()
    for number, trailer in enumerate((b"", b"ftypmp42" * 900, jpeg)):
        (root / f"{number}.{'jpg' if shape == 'plain' else 'jfif'}").write_bytes(jpeg + trailer)
    packer.build(root, tmp_path / "out", **HOW)
    assert stored_images(tmp_path / "out") == [jpeg] * 3


@pytest.mark.parametrize("size", [None, 24])
def test_jpegs_with_stray_bytes_give_the_pixels_of_the_whole_one(tmp_path: Path, size: int | None) -> None:
    root, jpeg = tmp_path / "in", saved(FIRST, "JPEG", quality=90)
    root.mkdir()
    at = 2
    while jpeg[at + 1] != 0xDA:
        (root / f"{at:03d}.jpg").write_bytes(jpeg[:at] + b"\x00\x11\x22\x33\x44" + jpeg[at:])
        at += 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
    (root / "whole.jpg").write_bytes(jpeg)
    packer.build(root, tmp_path / "out", size=size, **HOW)
    *others, whole = map(decode_strict, stored_images(tmp_path / "out"))
    assert len(others) > 5
    assert all(np.array_equal(other, whole) for other in others)
