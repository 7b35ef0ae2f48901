"""``packer preview``: the sheet shows the samples that it says, with their geometry."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.command import run_packer
from support.datasets import fixed, text, write_dataset
from support.errors import raises
from support.packed_files import face_columns, write_faces

from packer import preview
from packer.cli import main
from readers import Loader, open_dataset
from readers.augment import Compose
from readers.drawing.draw import draw_frame
from shardspec.errors import ShardCorruptError, UsageError
from shardspec.registry import import_target
from shardspec.schema import Schema

CELL, GAP, CAPTION = 64, 6, 32


def _cells(sheet: Path, across: int, count: int) -> list[np.ndarray]:
    """The images of a sheet."""
    with Image.open(sheet) as picture:
        pixels = np.asarray(picture)
    corners = [(GAP + n // across * (CELL + CAPTION + GAP), GAP + n % across * (CELL + GAP)) for n in range(count)]
    return [pixels[top : top + CELL, left : left + CELL] for top, left in corners]


def test_each_cell_is_its_sample_with_the_geometry_drawn_in(tmp_path: Path) -> None:
    write_faces(tmp_path / "faces", 10)
    columns = face_columns(10)
    made = preview(tmp_path / "faces", tmp_path / "s.png", start=2, count=5, columns=3, cell=CELL)
    assert made.rows == (2, 3, 4, 5, 6)
    for row, cell in zip(made.rows, _cells(tmp_path / "s.png", 3, 5), strict=True):
        sample = {name: values[row] for name, values in columns.items()}
        assert np.array_equal(cell, draw_frame(sample["image"], sample, scale=2)), row


def test_rows_can_be_drawn_at_random_by_a_seed(tmp_path: Path) -> None:
    write_faces(tmp_path / "faces", 40)
    first = preview(tmp_path / "faces", tmp_path / "a.png", count=5, seed=1, cell=CELL).rows
    again = preview(tmp_path / "faces", tmp_path / "b.png", count=5, seed=1, cell=CELL).rows
    assert again == first == tuple(sorted(set(first)))
    assert preview(tmp_path / "faces", tmp_path / "b.png", count=5, seed=2, cell=CELL).rows != first
    assert preview(tmp_path / "faces", tmp_path / "b.png", all=True, cell=CELL).rows == tuple(range(40))


def test_samples_are_drawn_over_all_classes_and_the_whole_dataset(tmp_path: Path) -> None:
    columns = face_columns(300, size=8)
    columns["label"][:] = 0
    columns["label"][-6:] = 1
    schema = Schema((text("key"), fixed("image", "|u1", 8, 8, 3), fixed("label", "<i8", classes=("real", "fake"))))
    write_dataset(tmp_path / "d", "npy", schema, {name: columns[name] for name in schema.names})
    rows = preview(tmp_path / "d", tmp_path / "s.png", count=8, cell=CELL, progress=False).rows
    assert (rows[0], rows[-1], len(rows), sum(row >= 294 for row in rows)) == (0, 299, 8, 4)
    few = preview(tmp_path / "d", tmp_path / "s.png", count=20, cell=CELL, progress=False).rows
    assert (len(few), sum(row >= 294 for row in few)) == (20, 6)  # the other class has what this one does not use
    adjacent = preview(tmp_path / "d", tmp_path / "s.png", count=8, start=0, cell=CELL, progress=False).rows
    assert adjacent == tuple(range(8))


def test_the_caption_depends_on_the_key(tmp_path: Path) -> None:
    columns = face_columns(2)
    columns["key"] = ["00000001-000007", "k" * 200]
    schema = Schema((text("key"), fixed("image", "|u1", 32, 32, 3)))
    for name, keys in (("a", columns["key"]), ("b", ["other", "keys"])):
        write_dataset(tmp_path / name, "npy", schema, {"key": keys, "image": columns["image"]})
        preview(tmp_path / name, tmp_path / f"{name}.png", columns=2, cell=CELL)
    a, b = (np.asarray(Image.open(tmp_path / f"{name}.png")) for name in "ab")
    rows = np.flatnonzero((a != b).any(axis=(1, 2)))
    assert rows.min() >= GAP + CELL
    gap = a[:, GAP + CELL : GAP + CELL + GAP]
    assert (gap == gap[0, 0]).all()  # the long key stays within its cell


def test_large_images_are_fitted_into_their_cell(tmp_path: Path) -> None:
    image = np.full((1, 30, 200, 3), 255, np.uint8)
    write_dataset(tmp_path / "wide", "npy", Schema((fixed("image", "|u1", 30, 200, 3),)), {"image": image})
    preview(tmp_path / "wide", tmp_path / "s.png", cell=CELL)
    (cell,) = _cells(tmp_path / "s.png", 1, 1)
    assert np.array_equal(np.flatnonzero((cell == 255).all(axis=(1, 2))), np.arange(27, 37))


def test_values_that_cannot_be_drawn_are_an_error(tmp_path: Path) -> None:
    manifest = write_faces(tmp_path / "faces", 4)
    sheet = tmp_path / "s.png"
    write_dataset(tmp_path / "text", "npy", Schema((text("key"),)), {"key": ["a"]})
    with raises(UsageError, expected="a field with images or sound", found="key"):
        preview(tmp_path / "text", sheet)
    shard = tmp_path / "faces" / manifest.shards[0].files[0].name
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ShardCorruptError):
        preview(tmp_path / "faces", sheet)
    assert not sheet.exists()


def test_the_command_writes_the_sheet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_faces(tmp_path / "faces", 4)
    sheet = tmp_path / "s.png"
    assert main(["preview", str(tmp_path / "faces"), "-o", str(sheet), "--count", "3", "--cell", "64"]) == 0
    assert "3 samples, rows 0 to 2" in capsys.readouterr().out
    with Image.open(sheet) as picture:
        assert picture.format == "PNG"


def test_one_sample_of_each_value_is_drawn(tmp_path: Path) -> None:
    write_faces(tmp_path / "faces", 30, groups=4)
    columns = face_columns(30, groups=4)
    one = preview(tmp_path / "faces", tmp_path / "s.png", one_per="source", cell=CELL).rows
    by_source = [[row for row in range(30) if columns["source"][row] == columns["source"][first]] for first in range(4)]
    assert one == tuple(sorted(rows[(len(rows) - 1) // 2] for rows in by_source))
    with raises(UsageError, option="one_per", found="'sauce'; did you mean 'source'?"):
        preview(tmp_path / "faces", tmp_path / "s.png", one_per="sauce")
    with raises(UsageError, expected="samples from row 30 on", found="30 in all"):
        preview(tmp_path / "faces", tmp_path / "s.png", start=30)


def test_masks_tint_the_image(tmp_path: Path) -> None:
    schema = Schema((fixed("image", "|u1", 32, 32, 3), fixed("mask", "|u1", 32, 32, 1)))
    mask = np.zeros((1, 32, 32, 1), np.uint8)
    mask[:, 8:16, 8:16] = 255
    image = np.full((1, 32, 32, 3), 100, np.uint8)
    write_dataset(tmp_path / "d", "npy", schema, {"image": image, "mask": mask})
    cells = {}
    for plain in (False, True):
        preview(tmp_path / "d", tmp_path / "s.png", plain=plain, cell=CELL, progress=False)
        (cells[plain],) = _cells(tmp_path / "s.png", 1, 1)
    assert (cells[True] == 100).all()
    red = cells[False][..., 0] > cells[False][..., 1]
    assert np.array_equal(red, np.kron(mask[0, :, :, 0] > 0, np.ones((2, 2))) > 0)


def test_a_label_map_of_equal_channels_tints_each_class_in_a_separate_colour(tmp_path: Path) -> None:
    schema = Schema((fixed("image", "|u1", 32, 32, 3), fixed("parts_image", "|u1", 32, 32, 3)))
    parts = np.repeat(np.repeat(np.arange(4, dtype=np.uint8), 8)[None, None, :, None], 32, axis=1).repeat(3, axis=3)
    image = np.full((1, 32, 32, 3), 100, np.uint8)
    write_dataset(tmp_path / "d", "npy", schema, {"image": image, "parts_image": parts})
    preview(tmp_path / "d", tmp_path / "s.png", cell=CELL, progress=False)
    (cell,) = _cells(tmp_path / "s.png", 1, 1)
    colours = [np.unique(cell[:, 16 * value : 16 * value + 16].reshape(-1, 3), axis=0) for value in range(4)]
    assert [len(found) for found in colours] == [1] * 4
    assert colours[0].tolist() == [[100] * 3]
    assert len(np.unique(np.concatenate(colours), axis=0)) == 4


def test_a_transform_is_shown_with_the_draws_of_a_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = ["key", "label", "image", "landmarks", "landmarks_valid", "regions"]
    columns = face_columns(5)
    schema = Schema((*(f for f in write_faces(tmp_path / "all", 5).schema if f.name in fields),))
    write_dataset(tmp_path / "faces", "npy", schema, {name: columns[name] for name in fields})
    (tmp_path / "my_aug.py").write_text(
        "from readers.augment import ColorJitter, Compose, CropJitter, HorizontalFlip, Normalize\n"
        "steps = [HorizontalFlip(), CropJitter(p=1), ColorJitter(0.5, 0.5, 0.5)]\n"
        "train = Compose([*steps, Normalize((0.9, 0.5, 0.1), (0.1, 0.5, 0.9))])\n"
        "from torchvision.transforms import v2\nbare = v2.RandomHorizontalFlip()\n"
        "def broken(sample):\n    raise ValueError('x' * 5000)\n"
        "def forgets(sample):\n    sample['image'] = 1\n"
    )
    how = ("--seed", 7, "--count", 5, "--columns", 5, "--cell", CELL, "--quiet")
    call = ("preview", tmp_path / "faces", "-o", tmp_path / "s.png")
    run_packer(*call, *how, "--transform", "my_aug:train", python_path=tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    steps = import_target("my_aug:steps", what="the test")
    dataset = open_dataset(tmp_path / "faces", transform=Compose(steps))
    batch = next(iter(Loader(dataset, batch_size=5, seed=7, shuffle=False)))
    for row, cell in enumerate(_cells(tmp_path / "s.png", 5, 5)):
        geometry = {name: batch[name][row].numpy() for name in ("landmarks", "landmarks_valid", "regions")}
        image = np.ascontiguousarray(batch["image"][row].movedim(0, -1).numpy())
        expected = draw_frame(image, geometry, scale=2)
        assert np.abs(cell.astype(int) - expected).max() <= 1, row
    for transform, message in (
        ("my_aug:broken", "transform: ValueError: xxx"),
        ("my_aug:forgets", "end it with 'return sample'"),
        ("my_aug:HorizontalFlip", "a made transform"),
        (lambda sample: {"key": "a"}, "with the field 'image', found key"),
        (5, "expected a callable from sample to sample, found 5"),
        ("my_aug:bare", r"takes images: write transform=readers.augment.Torchvision\("),
        ("./my_aug.py:train", "expected a module such as 'my_aug:train'"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            preview(tmp_path / "faces", tmp_path / "s.png", transform=transform)
        assert len(str(caught.value)) < 500
