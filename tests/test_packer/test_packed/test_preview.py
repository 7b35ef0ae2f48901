"""``packer preview``: the sheet shows the samples that it says, with their geometry."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.datasets import fixed, text, write_dataset
from support.packed_files import face_columns, write_faces

from packer import preview
from packer.cli import main
from readers.drawing.draw import draw
from shardspec.errors import ShardCorruptError, UsageError
from shardspec.schema import Schema

CELL, GAP, CAPTION = 64, 6, 32


def _cells(sheet: Path, across: int, count: int) -> list[np.ndarray]:
    """The pictures of a sheet."""
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
        valid = bool(columns["landmarks_valid"][row])
        geometry = [columns[name][row] for name in ("landmarks", "hull", "regions")] if valid else []
        assert np.array_equal(cell, draw(columns["image"][row], *geometry, valid=valid, scale=2)), row


def test_plain_shows_the_pictures_alone(tmp_path: Path) -> None:
    write_faces(tmp_path / "faces", 4)
    columns = face_columns(4)
    preview(str(tmp_path / "faces"), str(tmp_path / "s.png"), columns=2, cell=CELL, plain=True)
    for row, cell in enumerate(_cells(tmp_path / "s.png", 2, 4)):
        valid = bool(columns["landmarks_valid"][row])
        assert np.array_equal(cell, draw(columns["image"][row], valid=valid, scale=2))


def test_rows_can_be_drawn_at_random_by_a_seed(tmp_path: Path) -> None:
    write_faces(tmp_path / "faces", 40)
    first = preview(tmp_path / "faces", tmp_path / "a.png", count=5, seed=1, cell=CELL).rows
    again = preview(tmp_path / "faces", tmp_path / "b.png", count=5, seed=1, cell=CELL).rows
    assert again == first == tuple(sorted(set(first)))
    assert preview(tmp_path / "faces", tmp_path / "b.png", count=5, seed=2, cell=CELL).rows != first
    assert preview(tmp_path / "faces", tmp_path / "b.png", all=True, cell=CELL).rows == tuple(range(40))


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


def test_large_pictures_are_fitted_into_their_cell(tmp_path: Path) -> None:
    image = np.full((1, 30, 200, 3), 255, np.uint8)
    write_dataset(tmp_path / "wide", "npy", Schema((fixed("image", "|u1", 30, 200, 3),)), {"image": image})
    preview(tmp_path / "wide", tmp_path / "s.png", cell=CELL)
    (cell,) = _cells(tmp_path / "s.png", 1, 1)
    assert np.array_equal(np.flatnonzero((cell == 255).all(axis=(1, 2))), np.arange(27, 37))


def test_what_cannot_be_shown_is_an_error(tmp_path: Path) -> None:
    manifest = write_faces(tmp_path / "faces", 4)
    sheet = tmp_path / "s.png"
    for options, message in (
        ({"start": 4}, "found 4 in all"),
        ({"count": 0}, "count >= 1"),
        ({"cell": 40000}, "megapixels"),
    ):
        with pytest.raises(UsageError, match=message):
            preview(tmp_path / "faces", sheet, **options)
    with pytest.raises(UsageError, match=r"\.png"):
        preview(tmp_path / "faces", tmp_path / "s.jpg")
    write_dataset(tmp_path / "text", "npy", Schema((text("key"),)), {"key": ["a"]})
    with pytest.raises(UsageError, match="field with pictures"):
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
