"""Decode plans and fields that lie on the stored image: refused at once, unless these lie on the decoded one too."""

import re
from dataclasses import replace

import numpy as np
import pytest
from support.crops import astronaut_crops, keys
from support.datasets import fixed, picture, text, write_dataset

import packer
from readers import CenterCrop, Loader, PackedDataset, RandomResizedCrop, Resize, Whole, open_dataset
from shardspec.codecs import image_types, is_lossy
from shardspec.errors import UsageError
from shardspec.schema import Field, NamedConfig, Schema

MOVING = [Resize(20), CenterCrop(20), RandomResizedCrop(20, flip=0.5)]
RANDOM = RandomResizedCrop(24, scale=(0.2, 0.4), flip=0.5)


@pytest.mark.parametrize("plan", MOVING)
def test_geometry_of_the_stored_image_is_refused(face_path, plan):
    for fields in (None, ["image", "landmarks", "hull", "regions", "matrix"]):
        with pytest.raises(UsageError) as caught:
            open_dataset(face_path, fields=fields, decode={"image": plan})
        assert f"found landmarks, hull, regions, matrix with {{'image': {plan}}}: leave them out" in str(caught.value)
        assert "transform of readers.augment, such as CropJitter" in str(caught.value)
    dataset = open_dataset(face_path, fields=["key", "image", "box", "score", "frame", "time"], decode={"image": plan})
    assert dataset[0]["image"].shape == (20, 20, 3)


def test_plans_that_decode_the_whole_image_may_read_geometry(face_path):
    plain, planned = open_dataset(face_path), open_dataset(face_path, decode={"image": Whole()})
    assert np.array_equal(plain[3]["image"], planned[3]["image"])
    assert np.array_equal(plain[3]["landmarks"], planned[3]["landmarks"])


def test_columns_of_unread_fields_are_available(face_path):
    dataset = open_dataset(face_path, fields=["image"], decode={"image": Resize(20)})
    assert dataset.column("landmarks").shape == (len(dataset), 5, 2)


@pytest.fixture
def masked(tmp_path):
    """Images whose masks are the very same pixels, one of them stored in another way, beside what is no mask."""
    crops = astronaut_crops(8, 48)
    schema = Schema(
        (
            text("key"),
            picture("image", "png", 48),
            text("mask"),
            fixed("mask_image", "|u1", 48, 48, 3),
            fixed("skin_mask", "|u1", 48, 48),
            fixed("small_image", "|u1", 8, 8, 3),
            fixed("matrix", "<i8", 2, 3),
        )
    )
    columns = {
        "key": keys(8),
        "image": crops,
        "mask": ["a.png"] * 8,
        "mask_image": np.stack(crops),
        "skin_mask": np.zeros((8, 48, 48), np.uint8),
        "small_image": np.zeros((8, 8, 8, 3), np.uint8),
        "matrix": np.zeros((8, 2, 3), np.int64),
    }
    write_dataset(tmp_path / "d", "lmdb", schema, columns)
    return tmp_path / "d"


@pytest.mark.parametrize(
    ("decode", "found"),
    [
        ({"mask_image": CenterCrop(20)}, "mask_image with {'mask_image': CenterCrop("),
        ({"image": Resize(20), "mask_image": Resize(21)}, "mask_image with {'image': Resize("),
        ({"image": CenterCrop(20), "mask_image": Resize(20)}, "mask_image with {'image': CenterCrop("),
        ({"image": RANDOM, "mask_image": replace(RANDOM, flip=0.4)}, "mask_image with {'image': RandomResizedCrop("),
    ],
)
def test_masks_with_another_plan_are_refused(masked, decode, found):
    with pytest.raises(UsageError, match=re.escape(f"found {found}") + ".*or give the same plan to image and "):
        open_dataset(masked, decode=decode)


@pytest.mark.parametrize("plan", [*MOVING, RANDOM])
def test_masks_with_the_images_plan_stay_on_it(masked, plan):
    fields = ["image", "mask", "mask_image", "small_image", "matrix"]
    dataset = open_dataset(masked, fields=fields, decode={"image": plan, "mask_image": plan})
    for batch in Loader(dataset, 4, seed=3):
        assert batch["image"].shape[-1] in (20, 24)
        assert batch["image"].equal(batch["mask_image"])


@pytest.mark.parametrize("plan", [CenterCrop(20), Resize((60, 30)), replace(RANDOM, antialias=True)])
def test_masks_follow_the_image_by_their_nearest_pixels(tmp_path, plan):
    """The images and the label maps say where each pixel was; label maps say it exactly, whatever their type."""
    y, x = np.mgrid[:48, :64]
    places = (x + 64 * y).astype(np.uint16)
    image = np.stack([4 * x, 4 * y, 0 * x], axis=2).astype(np.uint8)
    flags = np.stack([x < 32, y < 24], axis=2)
    schema = Schema(
        (
            text("key"),
            Field("image", "bytes", "|u1", (None, None, 3), NamedConfig("png")),
            Field("label_image", "bytes", "|u1", (None, None, 3), NamedConfig("png")),
            fixed("place_mask", "<u2", 48, 64),
            fixed("mask", "|b1", 48, 64, 2),
        )
    )
    columns = {
        "key": keys(6),
        "image": [image] * 6,
        "label_image": [image] * 6,
        "place_mask": np.stack([places] * 6),
        "mask": np.stack([flags] * 6),
    }
    write_dataset(tmp_path / "d", "lmdb", schema, columns)
    batches = list(Loader(open_dataset(tmp_path / "d", decode={"image": plan}), 3, seed=5))
    for batch in batches:
        assert batch["image"].shape == batch["label_image"].shape == (3, 3, *plan.shape)
        found = batch["place_mask"].numpy().astype(int)
        assert found.shape == (3, *plan.shape)
        where = np.stack([found % 64, found // 64], axis=1)
        assert np.array_equal(batch["label_image"].numpy()[:, :2], 4 * where)
        assert np.array_equal(batch["mask"].numpy(), np.stack([where[:, 0] < 32, where[:, 1] < 24], axis=-1))
        away = np.abs(batch["image"].numpy()[:, :2] / 4 - where)
        assert away.max() <= max(1, 64 / plan.shape[1] / 2, 48 / plan.shape[0] / 2) + 0.5
    if plan.random:
        assert not batches[0]["place_mask"].equal(batches[1]["place_mask"])


@pytest.mark.parametrize(
    "plan", [CenterCrop((30, 40)), Resize((60, 30)), RandomResizedCrop(40, scale=(0.1, 1.0), flip=0.5)]
)
@pytest.mark.parametrize("mask_codec", [name for name in image_types() if not is_lossy(name)])
@pytest.mark.parametrize("kind", [*image_types(), "raw"])
def test_masks_of_other_sides_are_cropped_in_proportion(tmp_path, plan, kind, mask_codec):
    """The mask has pixels of 3 x 2 of the image's, and says where they are; so does the image, up to its codec."""
    y, x = np.mgrid[:96, :120]
    image = np.stack([2 * x, 2 * y, 0 * x], axis=2).astype(np.uint8)
    rows, columns = np.mgrid[:48, :40]
    places = np.stack([columns, rows, 0 * rows], axis=2).astype(np.uint8)
    sides, codec = (None, None), NamedConfig("png" if kind == "raw" else kind)
    schema = Schema(
        (
            text("key"),
            Field("image", "bytes", "|u1", (*sides, 3), codec),
            Field("label_image", "bytes", "|u1", (*sides, 3), NamedConfig(mask_codec)),
            fixed("raw_mask", "<u2", *((48, 40) if kind == "raw" else (1, 1))),
        )
    )
    values = {
        "key": keys(12),
        "image": [image] * 12,
        "label_image": [places] * 12,
        "raw_mask": np.stack([(columns + 40 * rows) if kind == "raw" else np.zeros((1, 1))] * 12).astype(np.uint16),
    }
    write_dataset(tmp_path / "d", "lmdb", schema, values)
    names = ["image", "label_image"] + ["raw_mask"] * (kind == "raw")
    for batch in Loader(open_dataset(tmp_path / "d", names, decode={"image": plan}), 4, seed=2):
        found = batch["label_image"].numpy()[:, :2].astype(float)
        if kind == "raw":
            flat = batch["raw_mask"].numpy()
            assert np.array_equal(found, np.stack([flat % 40, flat // 40], axis=1))
        # the nearest pixel is half a pixel away at most, the image's own edges are whole pixels of the image
        sides = np.array([3, 2])
        away = np.abs((batch["image"].numpy()[:, :2] / 2 + 0.5) / sides.reshape(2, 1, 1) - (found + 0.5))
        assert (
            away.max((0, 2, 3)) <= 0.5 + (2 if kind in image_types() and is_lossy(kind) else 1) / sides + 1e-6
        ).all()
        assert away.mean() < 0.4


def test_raw_masks_of_varying_sides_follow_raw_images_of_varying_sides(tmp_path):
    sides = [(40, 60), (50, 30), (64, 64)]
    raw, rng = NamedConfig("raw"), np.random.default_rng(0)
    schema = Schema(
        (
            text("key"),
            Field("image", "bytes", "|u1", (None, None, 3), raw),
            Field("mask", "bytes", "|u1", (None, None), raw),
            Field("wide_mask", "ragged", "|u1", (None, 64), raw),
        )
    )
    masks = [rng.integers(0, 256, side, dtype=np.uint8) for side in sides]
    columns = {
        "key": keys(3),
        "image": [np.stack([mask] * 3, axis=-1) for mask in masks],
        "mask": masks,
        "wide_mask": [np.full((height, 64), height, np.uint8) for height, _ in sides],
    }
    write_dataset(tmp_path / "d", "npy", schema, columns)
    plan = RandomResizedCrop(24, flip=0.5, interpolation="nearest")
    (batch,) = Loader(open_dataset(tmp_path / "d", decode={"image": plan}), 3, shuffle=False)
    assert batch["image"][:, 0].equal(batch["mask"])
    assert [mask.unique().tolist() for mask in batch["wide_mask"]] == [[40], [50], [64]]


@pytest.mark.parametrize("plan", MOVING)
def test_a_missing_mask_is_0_everywhere(tmp_path, plan):
    with packer.Writer(tmp_path / "d", progress=False) as writer:
        for mask in (None, np.ones((30, 40), np.uint8), None):
            writer.write(image=np.zeros((30, 40, 3), np.uint8), mask=mask)
    (batch,) = Loader(open_dataset(tmp_path / "d", decode={"image": plan}), 3, shuffle=False)
    assert batch["mask"].shape == (3, 20, 20)
    assert batch["mask"].float().mean((1, 2)).tolist() == batch["mask_valid"].tolist() == [0, 1, 0]


class Inverted(Whole):
    """A plan of a caller's own, whose pixels stay where they are, and which says so as `Whole` does."""

    def decode(self, data, field, codec, rng, out):
        out[...] = 255 - super().decode(data, field, codec, rng, None)
        return out


class Unsaid:
    """A plan of a caller's own that says nothing."""

    random = False

    def layout(self, field):
        return Whole().layout(field)

    def decode(self, data, field, codec, rng, out):
        return Whole().decode(data, field, codec, rng, out)


def test_custom_plans_declare_whether_they_move_pixels(face_path):
    plain, inverted = PackedDataset(face_path), PackedDataset(face_path, decode={"image": Inverted()})
    assert np.array_equal(inverted[0]["image"], 255 - plain[0]["image"])
    with pytest.raises(UsageError, match="landmarks, hull, regions, matrix with"):
        PackedDataset(face_path, decode={"image": Unsaid()})
    assert PackedDataset(face_path, fields=["image"], decode={"image": Unsaid()})[0]["image"].any()
