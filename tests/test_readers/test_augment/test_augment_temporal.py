"""Transforms of clips: one draw for all frames, a draw for each, parts in time and masks, with their sound."""

import albumentations as A  # noqa: N812 -- as its own documentation does
import kornia.augmentation as K  # noqa: N812 -- as its own documentation does
import numpy as np
import pytest
import torch
from support.datasets import face_schema, fixed, values_for, write_dataset
from support.faces import face_sample, portrait
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from readers import Loader, open_dataset
from readers.augment import (
    Albumentations,
    BatchCompose,
    BatchCrop,
    BatchCutMix,
    BatchDropRegion,
    BatchFlip,
    BatchMixUp,
    BatchNormalize,
    BlackoutHull,
    ColorJitter,
    Compose,
    CropJitter,
    DropRegion,
    GaussianBlur,
    HorizontalFlip,
    KeepHull,
    LandmarkCutout,
    Normalize,
    PerFrame,
    RandAugment,
    RandomErasing,
    TimeCrop,
    TimeMask,
    Torchvision,
    TrivialAugment,
    VerticalFlip,
)
from readers.seeding import sample_rng
from shardspec.schema import Schema

SOUND = 10


def clip_of(frames=12, size=32):
    """A clip whose frames are all the same portrait, with sound that counts."""
    image = portrait()[: size * 4 : 4, : size * 4 : 4]
    points = np.random.default_rng(0).random((5, 2), np.float32) * size
    return {
        "key": "00000000-000000",
        "image": np.stack([image] * frames),
        "landmarks": np.stack([points] * frames),
        "frame": np.arange(frames),
        "name": [f"frame {i}" for i in range(frames)],
        "audio": np.arange(frames * SOUND, dtype=np.int16),
        "label": np.int64(1),
    }


COLOURS, CROP = ColorJitter(0.4, 0.4, 0.4), CropJitter((0.5, 0.9), size=24)
FIELDS = ("image", "landmarks", "hull", "regions", "boxes", "matrix", "mask")


@pytest.mark.parametrize(
    "transform",
    [
        HorizontalFlip(1), CROP, COLOURS, RandomErasing(p=1), Compose([CROP, COLOURS, Normalize()]), RandAugment(3, 20),
        TrivialAugment(), DropRegion(p=1), BlackoutHull(p=1), KeepHull(p=1), LandmarkCutout(p=1),
        Compose([VerticalFlip(), GaussianBlur(3)]), Torchvision([v2.RandomAffine(20), v2.ColorJitter(0.4)]),
        Albumentations([A.Rotate((-20, 20), p=1), A.HorizontalFlip(), A.ColorJitter(p=1)]),
    ],
    ids=repr,
)  # fmt: skip
def test_a_clip_is_transformed_as_each_of_its_frames(transform):
    for row in range(3):
        single = transform(face_sample("68"), sample_rng(3, 1, row))
        clip = transform(face_sample("68", frames=3), sample_rng(3, 1, row))
        for name in FIELDS:
            for frame in clip[name]:
                assert np.array_equal(frame, single[name]), name


@pytest.mark.parametrize("transform", [CROP, COLOURS, Compose([CROP, COLOURS, Normalize()])])
def test_every_frame_may_have_separate_draws(transform):
    sample = clip_of()
    out = PerFrame(transform)(sample, np.random.default_rng(0))
    assert out["image"].dtype == transform(sample, np.random.default_rng(0))["image"].dtype
    assert (out["frame"].tolist(), out["name"]) == (sample["frame"].tolist(), sample["name"])
    assert (out["key"], out["label"], len(out["audio"])) == (sample["key"], 1, 120)
    rng = np.random.default_rng(0)
    for at in range(3):
        expected = transform(sample | {n: sample[n][at] for n in ("image", "landmarks")}, rng)
        np.testing.assert_array_equal(out["image"][at], expected["image"])
        np.testing.assert_array_equal(out["landmarks"][at], expected["landmarks"])
    assert not np.array_equal(out["image"][0], out["image"][1])


def test_a_crop_in_time_cuts_frames_and_sound_alike():
    sample, rng = clip_of(), np.random.default_rng(0)
    starts = set()
    for _ in range(60):
        out = TimeCrop(5)(sample, rng)
        start = int(out["frame"][0])
        starts.add(start)
        assert out["frame"].tolist() == [*range(start, start + 5)]
        assert out["audio"].tolist() == [*range(start * SOUND, (start + 5) * SOUND)]
        assert out["name"] == sample["name"][start : start + 5]
        assert (len(out["image"]), len(out["landmarks"]), out["label"]) == (5, 5, 1)
    assert starts == {*range(8)}
    assert len(TimeCrop(40)(sample, rng)["image"]) == 12
    odd = sample | {"audio": np.arange(125, dtype=np.int16)}  # frames of 10 and 11 samples
    cut = TimeCrop(6)(odd, rng)
    assert abs(cut["audio"][0] - cut["frame"][0] * 125 / 12) <= 0.5
    assert len(cut["audio"]) in (62, 63)


def blank(image):
    return [bool((frame == image.dtype.type(0)).all()) for frame in image]


def test_masks_in_time():
    sample, rng = clip_of(50), np.random.default_rng(0)
    lengths = set()
    for _ in range(60):
        out = TimeMask(4, fields=("image", "audio"))(sample, rng)
        masked = np.flatnonzero(blank(out["image"]))
        lengths.add(len(masked))
        assert masked.tolist() == [*range(masked[0], masked[0] + len(masked))]
        silent = np.flatnonzero(out["audio"] == 0)
        assert {*silent} - {0} == {*range(masked[0] * SOUND, (masked[-1] + 1) * SOUND)} - {0}
    assert lengths == {1, 2, 3, 4}
    assert not any(blank(sample["image"]))
    many = [sum(blank(TimeMask(2, every=10)(sample, rng)["image"])) for _ in range(40)]
    assert 5 <= np.mean(many) <= 10
    assert max(many) <= 10
    only = TimeMask(50, fields=("audio",))(sample, rng)
    np.testing.assert_array_equal(only["image"], sample["image"])
    normal = Compose([Normalize(dtype="float16"), TimeMask(4, fill=0.5)])(sample, rng)["image"]
    assert 1 <= sum(bool((frame == 0.5).all()) for frame in normal) <= 4


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Six clips of four faces, with landmarks, regions and sound."""
    schema = Schema((*face_schema(32).fields, fixed("audio", "<i2", SOUND)))
    rng = np.random.default_rng(0)
    columns = values_for(schema, 24) | {
        "landmarks": rng.random((24, 5, 2), np.float32) * 32,
        "regions": rng.random((24, 4, 4), np.float32) * 32,
        "matrix": rng.random((24, 2, 3), np.float32),
        "key": [f"{i // 4:08d}-{i % 4:06d}" for i in range(24)],
        "label": np.arange(24) // 4 % 2,
        "frame": np.arange(24) % 4,
        "audio": np.arange(240, dtype=np.int16).reshape(24, SOUND),
    }
    root = tmp_path_factory.mktemp("clips") / "d"
    write_dataset(root, "npy", schema, columns)
    fields = ["image", "label", "landmarks", "landmarks_valid", "regions", "matrix", "frame", "audio"]
    return open_dataset(root, fields=fields).clips(4, stride=4, by=None)


def test_the_draws_of_clips_are_functions_of_seed_epoch_and_row(clips):
    augmented = clips.with_transform(
        Compose([TimeCrop(3), PerFrame(COLOURS), HorizontalFlip(), TimeMask(2, fields=("image", "audio"))])
    )
    ours = next(iter(Loader(augmented, 6, seed=4, workers=2)))
    assert ours["image"].shape == (6, 3, 3, 32, 32)
    assert ours["audio"].shape == (6, 3 * SOUND)
    loader = DataLoader(
        augmented, 6, sampler=augmented.sampler(seed=4), num_workers=2, collate_fn=augmented.collate
    )  # fmt: skip
    (theirs,) = loader
    for name in ("image", "audio", "landmarks", "frame"):
        assert torch.equal(ours[name], theirs[name])
    parts = [next(iter(Loader(augmented, 3, seed=4, rank=rank, world_size=2))) for rank in range(2)]
    assert torch.equal(ours["image"][1::2], parts[1]["image"])


def test_batch_transforms_draw_once_for_a_clip(clips):
    (batch,) = Loader(clips, 6, shuffle=False)
    batch["image"] = batch["image"][:, :1].expand_as(batch["image"]).clone()
    batch["regions"] = batch["regions"][:, :1].expand_as(batch["regions"])
    batch["landmarks_valid"] = torch.ones_like(batch["landmarks_valid"])
    seeds = torch.arange(6) * 7919
    chain = BatchCompose([BatchFlip(), BatchCrop(24, (0.5, 1)), BatchDropRegion(p=0.5), BatchNormalize()])
    out = chain(batch, seeds)
    assert out["image"].shape == (6, 4, 3, 24, 24)
    for at in range(4):
        frame = {
            n: v[:, at] if n not in ("label", "audio") else v for n, v in batch.items() if isinstance(v, torch.Tensor)
        }
        expected = chain(frame, seeds)
        for name in ("image", "landmarks", "regions", "matrix"):
            torch.testing.assert_close(out[name][:, at], expected[name])
    assert torch.equal(out["audio"], batch["audio"])
    assert len({tuple(image.flatten().tolist()) for image in out["image"][:, 0]}) == 6
    torch.manual_seed(0)
    alone = BatchCrop(24)(batch)["image"]
    assert all(torch.equal(alone[:, 0], alone[:, at]) for at in range(4))

    for mix in (BatchMixUp(2), BatchCutMix(2)):
        mixing = BatchCompose([BatchFlip(), mix, K.RandomGrayscale(p=0.0)])
        mixed = mixing(batch, seeds)
        for at in (0, 3):
            plain = mixing({"image": batch["image"][:, at], "label": batch["label"]}, seeds)
            torch.testing.assert_close(mixed["label"], plain["label"])
            torch.testing.assert_close(mixed["image"][:, at], plain["image"])
