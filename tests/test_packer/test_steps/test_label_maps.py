"""What is a mask by its name keeps every value: from rows, from own steps, under any encoding, and at another size."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builds import QUIET
from support.command import run_packer
from support.errors import raises
from support.media import scene, write_image
from support.packed_files import samples_of

from packer import build
from shardspec.errors import UsageError

STEP = """
import numpy as np

def add_map(samples):
    for sample in samples:
        height, width = sample["image"].shape[:2]
        labels = np.add.outer(np.arange(height), np.arange(width)) % 5
        yield {**sample, "parts_image": np.repeat(labels[..., None], 3, axis=2).astype(np.uint8)}
"""


def label_maps(count: int) -> list[np.ndarray[Any, Any]]:
    """Maps of five classes, (18, 24), pixel by pixel at random."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, 5, (18, 24), np.uint8) for _ in range(count)]


def rows_of(maps: list[np.ndarray[Any, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of Python with a map under every name of a mask, in the dtypes and shapes that people have."""
    for number, labels in enumerate(maps):
        coloured = np.repeat(labels[..., None], 3, axis=2)
        yield {
            "image": scene(number, (24, 18)),
            "mask": labels,
            "mask_image": coloured,
            "skin_mask": coloured.copy(),
            "deep_image": labels.astype(np.uint16) * 9000,
            "flat_image": labels,
        }


@pytest.mark.parametrize("encode", ["jpeg", "webp", "png", "raw"])
def test_label_maps_of_rows_keep_their_values(tmp_path: Path, encode: str) -> None:
    rows = list(rows_of(label_maps(3)))
    schema = build(rows, tmp_path / "out", encode=encode, **QUIET).manifest.schema
    assert schema["image"].codec.name == encode
    assert schema["mask_image"].codec.name == ("raw" if encode == "raw" else "png")
    for sample, row in zip(samples_of(tmp_path / "out"), rows, strict=True):
        for name in set(row) - {"image"}:
            assert sample[name].dtype == row[name].dtype
            assert np.array_equal(sample[name], row[name]), name


def test_label_maps_of_custom_steps_keep_their_values(tmp_path: Path) -> None:
    (tmp_path / "my_maps.py").write_text(STEP)
    for number in range(3):
        write_image(tmp_path / "in" / f"{number}.jpg", scene(number, (24, 18)))
    run_packer("build", tmp_path / "in", tmp_path / "out", "--steps", "decode,my_maps:add_map", python_path=tmp_path)
    expected = np.add.outer(np.arange(18), np.arange(24)) % 5
    for sample in samples_of(tmp_path / "out"):
        assert all(np.array_equal(sample["parts_image"][..., channel], expected) for channel in range(3))


def test_label_maps_of_rows_are_not_averaged_without_also_resample(tmp_path: Path) -> None:
    rows = list(rows_of(label_maps(2)))
    with raises(UsageError, option="also_resample", found="neither"):
        build(rows, tmp_path / "out", size=9, **QUIET)
    assert not (tmp_path / "out").exists()
    build(rows, tmp_path / "out", size=9, also_resample="nearest", **QUIET)
    for sample, row in zip(samples_of(tmp_path / "out"), rows, strict=True):
        for name in set(row) - {"image"}:
            assert sample[name].dtype == row[name].dtype
            assert np.array_equal(sample[name], row[name][1::2, 1::2]), name
    build(rows, tmp_path / "as it is", **QUIET)


def test_maps_that_are_not_images_always_use_the_nearest_pixel(tmp_path: Path) -> None:
    maps = label_maps(2)
    rows = [{"image": scene(n, (24, 18)), "mask": labels, "deep_image": labels * 1.5} for n, labels in enumerate(maps)]
    rows[0]["small_mask"] = rows[1]["small_mask"] = np.arange(6).reshape(2, 3)  # not as large as the image
    build(rows, tmp_path / "out", size=9, also_resample="area", **QUIET)
    for sample, row in zip(samples_of(tmp_path / "out"), rows, strict=True):
        assert sample["image"].shape == (9, 12, 3)
        assert np.array_equal(sample["mask"], row["mask"][1::2, 1::2])
        assert np.array_equal(sample["deep_image"], row["deep_image"][1::2, 1::2])
        assert np.array_equal(sample["small_mask"], row["small_mask"])


def test_label_maps_of_custom_steps_are_not_averaged_without_also_resample(tmp_path: Path) -> None:
    (tmp_path / "my_maps.py").write_text(STEP)
    write_image(tmp_path / "in" / "a.jpg", scene(0, (24, 18)))
    call = (tmp_path / "in", tmp_path / "out", "--steps", "decode,my_maps:add_map,resize", "--size", 9)
    done = run_packer("build", *call, python_path=tmp_path, expect=3)
    assert "also_resample: expected area or nearest to resize 'parts_image' as well" in done.stderr
    run_packer("build", *call, "--also-resample", "nearest", "--overwrite", python_path=tmp_path)
    (sample,) = samples_of(tmp_path / "out")
    assert set(np.unique(sample["parts_image"])) <= set(range(5))
