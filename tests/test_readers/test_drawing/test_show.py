"""``readers.show``: the sheet is that of the samples, in whatever form the network gets them."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.media import photograph
from support.packed_files import face_columns, write_faces

import readers
from readers import Loader, open_dataset
from readers.augment import BatchNormalize, Compose, HorizontalFlip, Normalize, ToFloat
from readers.drawing.draw import draw_frame
from readers.drawing.geometry import MASKS
from readers.drawing.sheet import Sheet
from shardspec.errors import UsageError

MEAN, STD = (0.1, 0.5, 0.9), (0.4, 0.2, 0.6)


@pytest.fixture(autouse=True)
def _no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)


def pixels(drawing: Any) -> np.ndarray:
    return np.asarray(drawing.image).astype(int)


def photos(count: int = 3, side: int = 64) -> np.ndarray:
    """(N, side, side, 3), cut from a photograph."""
    photo = photograph("coffee")
    return np.stack([photo[40 * n : 40 * n + side, 90 * n : 90 * n + side] for n in range(count)])


def sheet_of(cells: list[np.ndarray], captions: list[list[str]], across: int) -> np.ndarray:
    sheet = Sheet(across, -(-len(cells) // across), cells[0].shape[:2])
    for place, (cell, caption) in enumerate(zip(cells, captions, strict=True)):
        sheet.put(place, cell, caption)
    return np.asarray(sheet.image).astype(int)


FORMS = {
    "tensor": lambda x: torch.from_numpy(x).movedim(-1, 1),
    "0 to 1": lambda x: torch.from_numpy(x).movedim(-1, 1) / 255,
    "0 to 255": lambda x: torch.from_numpy(x).movedim(-1, 1).float(),
    "ImageNet": lambda x: BatchNormalize()({"image": torch.from_numpy(x).movedim(-1, 1)})["image"],
    "half": lambda x: (torch.from_numpy(x).movedim(-1, 1) / 255).half(),
    "bfloat16": lambda x: (torch.from_numpy(x).movedim(-1, 1) / 255).bfloat16(),
    "array": lambda x: x.astype(np.float32) / 255,
    "grad": lambda x: (torch.from_numpy(x).movedim(-1, 1) / 255).requires_grad_(),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_images_of_every_form_are_those_of_the_samples(form: str) -> None:
    images = photos()
    expected = sheet_of(
        [draw_frame(image, {}, scale=3) for image in images], [[f"sample {n}", str(n)] for n in range(3)], 2
    )
    found = pixels(readers.show({"image": FORMS[form](images), "label": torch.arange(3)}))
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= {"bfloat16": 1, "tensor": 0}.get(form, 1)


def test_other_means_are_undone_if_passed() -> None:
    images = photos()
    given = [Normalize(MEAN, STD)({"image": image}, np.random.default_rng(0)) for image in images]
    plain = pixels(readers.show([{"image": image} for image in images]))
    assert np.abs(pixels(readers.show(given, mean=MEAN, std=STD)) - plain).max() <= 1
    assert np.abs(pixels(readers.show(given)) - plain).max() > 20
    large = [{"image": (image - 127.5).astype(np.float32) / 127.5} for image in images]
    assert np.abs(pixels(readers.show(large, mean=127.5, std=127.5)) - plain).max() <= 1


def test_a_loader_s_batch_shows_its_augmented_faces_with_their_geometry(tmp_path: Path) -> None:
    write_faces(tmp_path / "faces", 6)
    fields = ["key", "label", "image", "landmarks", "landmarks_valid", "regions"]
    dataset = open_dataset(tmp_path / "faces", fields, Compose([HorizontalFlip(p=1), Normalize()]))
    batch = next(iter(Loader(dataset, batch_size=6, shuffle=False, workers=1)))
    found = pixels(readers.show(batch, columns=6, cell=64, classes=dataset.classes))
    columns, cells, captions = face_columns(6), [], []
    for row in range(6):
        face = {name: columns[name][row] for name in fields}
        face = HorizontalFlip(p=1)(face, np.random.default_rng(0))
        cells.append(draw_frame(face["image"], face, scale=2))
        captions.append([face["key"], dataset.classes[int(face["label"])]])
    assert np.abs(found - sheet_of(cells, captions, 6)).max() <= 1
    assert np.array_equal(pixels(readers.show(dataset, count=6, columns=6, cell=64)), found)
    assert not np.array_equal(pixels(readers.show(batch, columns=6, cell=64, plain=True)), found)


def test_clips_and_views_are_strips_whose_frames_have_their_own_geometry() -> None:
    images, points = photos(6, 56).reshape(2, 3, 56, 56, 3), np.zeros((2, 3, 5, 2), np.float32)
    points += np.arange(6).reshape(2, 3, 1, 1) * 5 + 10
    valid = np.array([[True, False, True], [True, True, True]])
    columns = {"image": images, "landmarks": points, "landmarks_valid": valid}
    batch = {name: torch.from_numpy(values) for name, values in columns.items()}
    batch["image"] = batch["image"].movedim(-1, 2)
    cells = [
        np.concatenate([
            draw_frame(images[row, t], {"landmarks": points[row, t], "landmarks_valid": valid[row, t]}, scale=2)
            for t in range(3)
        ], axis=1)
        for row in range(2)
    ]  # fmt: skip
    expected = sheet_of(cells, [["sample 0", ""], ["sample 1", ""]], 1)
    assert np.array_equal(pixels(readers.show(batch)), expected)
    clip = {name: values[0] for name, values in columns.items()}
    alone = {**clip, "image": list(clip["image"]), "key": "sample 0"}
    assert np.array_equal(pixels(readers.show(alone)), expected[: len(pixels(readers.show(alone)))])
    long = torch.zeros(1, 40, 3, 8, 8)
    assert readers.show(long).image.width < 40 * 112


def test_masks_tint_what_they_cover() -> None:
    image = np.full((32, 32, 3), 100, np.uint8)
    labels = np.zeros((32, 32), np.uint8)
    labels[:16], labels[16:24] = 1, 2
    expected = [np.rint(100 * 0.55 + np.array(MASKS[k]) * 0.45) for k in (0, 1)] + [np.full(3, 100)]
    three = np.repeat(labels[..., None], 3, axis=2)
    soft = np.linspace(0, 255, 32 * 32).reshape(32, 32).astype(np.uint8)
    samples = [{"image": image, "mask": labels}, {"image": image, "parts_image": three}, {"image": image}]
    samples += [{"image": image, "other_image": photograph("coffee")[:32, :32]}, {"image": image, "mask": labels[:16]}]
    found = pixels(readers.show([*samples, {"image": image, "mask": soft}], cell=32, columns=6))
    cells = [found[6:38, 6 + 38 * n : 38 + 38 * n] for n in range(6)]
    for cell in cells[:2]:
        for row, colour in zip((8, 20, 28), expected, strict=True):
            assert (cell[row] == colour).all()
    assert all((cell == 100).all() for cell in cells[2:5])
    assert (np.diff(cells[5][:, 16, 0]) >= 0).all()
    assert abs(cells[5][31, 31, 0] - expected[0][0]) <= 1
    tensors = {"image": torch.full((1, 3, 32, 32), 100, dtype=torch.uint8), "mask": torch.from_numpy(labels)[None]}
    assert np.array_equal(pixels(readers.show(tensors, cell=32))[6:38, 6:38], cells[0])


def test_boxes_pairs_lists_and_soft_labels() -> None:
    images = torch.from_numpy(photos()).movedim(-1, 1)
    box = torch.tensor([[[10.0, 10.0, 50.0, 50.0]]] * 3)
    boxed = pixels(readers.show({"image": images, "boxes": box}))
    assert (boxed != pixels(readers.show(images))).any()
    pair = pixels(readers.show([images, torch.arange(3)], classes=["a", "b", "c"]))
    assert np.array_equal(pair, pixels(readers.show([(images[n], n) for n in range(3)], classes=["a", "b", "c"])))
    assert not np.array_equal(pair, pixels(readers.show((images, torch.arange(3)))))
    mixed = {"image": images, "label": torch.tensor([[0.3, 0.7], [1.0, 0.0], [0.5, 0.5]])}
    soft = pixels(readers.show(mixed, classes=["real", "fake"]))
    cells = [draw_frame(image, {}, scale=3) for image in photos()]
    captions = [["sample 0", "0.70 fake, 0.30 real"], ["sample 1", "1.00 real"], ["sample 2", "0.50 real, 0.50 fake"]]
    assert np.array_equal(soft, sheet_of(cells, captions, 2))
    small = [{"image": photos(1, side)[0]} for side in (20, 33)]
    assert readers.show(small).samples == 2
    assert readers.show([ToFloat("bfloat16")(sample, np.random.default_rng(0)) for sample in small]).samples == 2


def test_it_is_written_and_shown_in_a_notebook(tmp_path: Path) -> None:
    drawing = readers.show(photos(), tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as written, Image.open(io.BytesIO(drawing._repr_png_())) as shown:
        assert np.array_equal(np.asarray(written), np.asarray(drawing.image))
        assert np.array_equal(np.asarray(shown), np.asarray(drawing.image))


@pytest.mark.parametrize(
    ("given", "how", "message"),
    [
        ({"label": np.zeros(3)}, {}, "field: expected the field of the images, one of label, found 'image'"),
        ([], {}, "expected one or more, found none"),
        (iter([]), {}, "of a Loader give a batch"),
        ({"image": ["a", "b"]}, {}, "expected images"),
        ({"image": np.zeros((2, 8, 8, 5), np.uint8)}, {}, "one channel or three"),
        ({"image": np.zeros((2, 0, 8, 3), np.uint8)}, {}, "one pixel or more"),
        ({"image": np.zeros((2, 8, 8, 3))}, {"mean": (0, 0)}, "mean, std"),
        (np.zeros((2, 8, 8, 3), np.uint8), {"count": 0}, "count"),
        (np.zeros((2, 8, 8, 3), np.uint8), {"cell": 40000}, "megapixels"),
        (np.zeros((2, 8, 8, 3), np.uint8), {"path": "nowhere/x.png"}, "can be written"),
        (np.zeros((2, 8, 8, 3), np.uint8), {"path": "x.odd"}, "can be written"),
    ],
)
def test_values_that_cannot_be_drawn_are_an_error(given: Any, how: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        readers.show(given, **how)


def test_nan_and_huge_values_can_be_drawn() -> None:
    image = np.array([np.nan, np.inf, -np.inf, 0.5] * 48, np.float32).reshape(8, 8, 3)
    points = np.array([[np.nan, 3], [1e30, -1e30], [3, 3], [4, 4], [np.inf, 2]], np.float32)
    sample = {"image": image, "landmarks": points, "regions": np.zeros((2, 4)), "hull": "none", "label": {"a": 1}}
    assert readers.show([sample, sample]).samples == 2


def test_the_error_for_a_loader_shows_a_working_line(raw_path: Path) -> None:
    with pytest.raises(UsageError, match=r"found Loader: of a Loader give a batch, next\(iter\(loader\)\)"):
        readers.show(Loader(open_dataset(raw_path), batch_size=2))
