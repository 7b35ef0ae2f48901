"""Datasets in a notebook: images, geometry and fields as HTML that is harmless; text elsewhere."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.packed_files import face_columns, write_faces
from support.pages import HOSTILE, Page, assert_harmless, write_hostile

from readers import open_dataset
from readers.augment import HorizontalFlip, Normalize, ToFloat
from readers.drawing.draw import draw_frame
from readers.drawing.notebook import SampleRow


def images_of(page: Page) -> list[np.ndarray]:
    found = []
    for image in page.find("img"):
        kind, data = image.attributes["src"].split(",")
        assert kind == "data:image/png;base64"
        with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
            found.append(np.asarray(picture))
    return found


def test_rows_are_shown_with_their_pixels_points_and_fields(tmp_path: Path) -> None:
    write_faces(tmp_path / "faces", 20)
    columns, dataset = face_columns(20), open_dataset(tmp_path / "faces")
    strip = dataset.show([3, 17])
    page = Page(strip._repr_html_())
    for row, found in zip((3, 17), images_of(page), strict=True):
        sample = {name: values[row] for name, values in columns.items()}
        assert np.array_equal(found, draw_frame(sample["image"], sample, scale=5))
    cells = {line.children[0].text: [cell.text for cell in line.children[1:]] for line in page.find("tr")}
    assert cells["label"] == [("real", "fake")[columns["label"][row]] for row in (3, 17)]
    assert cells["key"] == [columns["key"][row] for row in (3, 17)]
    assert len(images_of(Page(dataset.subset([1, 2])._repr_html_()))) == 2
    assert len(images_of(Page(dataset._repr_html_()))) == 8
    assert repr(dataset).startswith("LMDBDataset(")
    assert repr(strip).startswith("<2 samples of LMDBDataset(")
    with pytest.raises(IndexError):
        dataset.show([20])


def test_samples_are_shown_as_the_transform_gives_them(tmp_path: Path) -> None:
    write_faces(tmp_path / "faces", 4)
    dataset = open_dataset(tmp_path / "faces", fields=["image"], transform=HorizontalFlip(p=1))
    (found,) = images_of(Page(dataset.show([1])._repr_html_()))
    assert np.array_equal(found[2::5, 2::5], face_columns(4)["image"][1][:, ::-1])


def test_normalised_samples_and_clips_are_shown_as_they_are_packed(tmp_path: Path) -> None:
    write_faces(tmp_path / "faces", 4)
    geometry = ["landmarks", "landmarks_valid", "hull"]
    plain = open_dataset(tmp_path / "faces", fields=["image", *geometry])
    expected = images_of(Page(plain.show([1, 3])._repr_html_()))
    assert (expected[0] != expected[0][2::5, 2::5].repeat(5, 0).repeat(5, 1)).any()  # it has geometry
    for numbers in (Normalize(), Normalize(dtype="bfloat16"), ToFloat("float16")):
        page = Page(plain.with_transform(numbers).show([1, 3])._repr_html_())
        for drawn, found in zip(expected, images_of(page), strict=True):
            assert np.abs(found.astype(int) - drawn).max() <= 1
    clip = {name: np.stack([plain[row][name] for row in (1, 3)]) for name in plain[1]}
    page = Page(SampleRow((0,), (clip,), "clips")._repr_html_())
    assert np.array_equal(images_of(page), [np.concatenate(expected, axis=1)])


def test_hostile_texts_are_escaped(tmp_path: Path) -> None:
    write_hostile(tmp_path / "<b>d", 6)
    dataset = open_dataset(tmp_path / "<b>d")
    page = Page(f"<body>{dataset._repr_html_()}</body>")
    assert_harmless(page)
    assert HOSTILE[0] in page.text
    assert "<b>d" in page.text
