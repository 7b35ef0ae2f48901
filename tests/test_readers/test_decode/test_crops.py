"""Decode plans."""

import io

import numpy as np
import PIL.Image
import pytest
import simplejpeg
import skimage.data
import torch
from support.crops import keys, write_crops
from support.datasets import picture, text, write_encoded
from torchvision.transforms import v2

from readers import CenterCrop, Loader, RandomResizedCrop, Resize, open_dataset
from readers.decode.crops import whole_pixels
from readers.seeding import sample_rng
from shardspec.codecs import codec_for, image_types, is_lossy
from shardspec.schema import Schema

PHOTOS = [skimage.data.astronaut(), skimage.data.chelsea(), skimage.data.coffee(), skimage.data.rocket()]
FIELD = picture("image", "jpeg")
JPEGS = [simplejpeg.encode_jpeg(np.ascontiguousarray(photo), quality=95, colorsubsampling="420") for photo in PHOTOS]


def area_weights(low, high, size, pixels):
    """The fractions of `pixels` pixels that each of `size` equal parts of low … high covers: (size, pixels)."""
    edges = np.linspace(low, high, size + 1)
    overlap = np.minimum(edges[1:, None], np.arange(1, pixels + 1)) - np.maximum(edges[:-1, None], np.arange(pixels))
    return np.maximum(overlap, 0) * size / (high - low)


def through_the_whole(plan, data, seed):
    """Decode everything at full size, then resize the plan's part, even if its edges are between pixels."""
    image = simplejpeg.decode_jpeg(data, "RGB")
    full = image.shape[:2]
    rng = sample_rng(seed, 0, 0)
    box = plan.box(*full, rng)
    eighths = plan.eighths(box)
    scale = eighths / 8
    left, top, right, bottom = (edge / scale for edge in whole_pixels(box, *full, eighths))
    assert max(abs(a - b) for a, b in zip((left, top, right, bottom), box, strict=True)) < 0.51 / scale
    height, width = plan.shape
    if bottom - top > height or right - left > width:
        rows, columns = area_weights(top, bottom, height, full[0]), area_weights(left, right, width, full[1])
        found = np.einsum("hy,yxc,wx->hwc", rows, image, columns, optimize=True)
    else:
        found = np.asarray(
            PIL.Image.fromarray(image).resize(
                (width, height), PIL.Image.Resampling.BILINEAR, (left, top, right, bottom)
            )
        )
    return found[:, ::-1] if plan.flips(rng) else found


@pytest.mark.parametrize(
    "plan",
    [
        Resize(64),
        Resize((50, 90)),
        Resize(400),
        CenterCrop(96),
        CenterCrop(96, fraction=0.5),
        RandomResizedCrop(64),
        RandomResizedCrop(112, flip=0.5),
    ],
    ids=str,
)
def test_scaled_decoding_differs_little_from_the_whole(plan):
    codec = codec_for(FIELD)
    differences = []
    for seed, data in enumerate(JPEGS * 3):
        found = plan.decode(data, FIELD, codec, sample_rng(seed, 0, 0), None)
        assert found.shape == (*plan.shape, 3)
        differences.append(np.abs(found.astype(int) - through_the_whole(plan, data, seed)).mean())
    assert np.mean(differences) < 2.0, differences
    assert max(differences) < 6.0, differences


@pytest.mark.parametrize(
    ("interpolation", "antialias", "share"),
    [
        ("bilinear", True, 0),
        ("bilinear", False, 0),
        ("bicubic", True, 1e-3),  # torch and Pillow cut off overshooting values after different passes
        ("bicubic", False, 1e-3),
        ("nearest", False, 4e-3),  # one row of 331 is midway between two, and both round floating numbers
    ],
)
@pytest.mark.parametrize("size", [(90, 140), 331])
def test_resampling_is_that_of_torchvision_and_pillow(interpolation, antialias, share, size):
    """Within one level in all but a share of the values; label maps have no values between."""
    levels = 0 if interpolation == "nearest" else 1
    for seed, data in enumerate(JPEGS[:3]):
        plan = RandomResizedCrop(size, (0.1, 0.9), interpolation=interpolation, antialias=antialias)
        image = np.array(PIL.Image.open(io.BytesIO(data)))
        left, top, right, bottom = map(int, plan.box(*image.shape[:2], sample_rng(seed, 0, 0)))
        averaged = bottom - top >= 2 * plan.shape[0] or right - left >= 2 * plan.shape[1]
        if averaged and not antialias and interpolation != "nearest":
            continue
        found = plan.decode(data, FIELD, codec_for(FIELD), sample_rng(seed, 0, 0), None).astype(int)
        part = torch.from_numpy(image[top:bottom, left:right]).permute(2, 0, 1)
        mode = v2.InterpolationMode({"nearest": "nearest-exact"}.get(interpolation, interpolation))
        expected = v2.functional.resize(part, plan.shape, mode, antialias=antialias).permute(1, 2, 0).numpy()
        assert (np.abs(found - expected) > levels).mean() <= (0 if antialias else share)
        if antialias or interpolation == "nearest":
            expected = v2.functional.resize(v2.functional.to_pil_image(part), plan.shape, mode)
            assert (np.abs(found - np.asarray(expected)) > levels).mean() <= share


def test_only_the_scale_that_is_needed_is_decoded(monkeypatch):
    shapes = []
    decode = simplejpeg.decode_jpeg
    monkeypatch.setattr(
        "readers.decode.plans.simplejpeg.decode_jpeg",
        lambda *a, **k: (shapes.append(decode(*a, **k).shape), decode(*a, **k))[1],
    )
    Resize(100).decode(JPEGS[0], FIELD, codec_for(FIELD), None, None)
    assert shapes == [(128, 128, 3)]  # a quarter of 512, the smallest eighth that is no smaller than 100
    Resize(100, antialias=True).decode(JPEGS[0], FIELD, codec_for(FIELD), None, None)
    assert shapes[1:] == [(512, 512, 3)]


@pytest.mark.parametrize("plan", [Resize(20), CenterCrop(20), RandomResizedCrop(20, flip=0.5)])
@pytest.mark.parametrize("codec", [None, *image_types()])
def test_plans_work_on_every_codec(tmp_path, plan, codec):
    write_crops(tmp_path / "d", "lmdb", codec, count=9)
    dataset = open_dataset(tmp_path / "d", ["key", "image"], decode={"image": plan})
    (batch,) = Loader(dataset, 9, shuffle=False, seed=3)
    assert batch["image"].shape == (9, 3, 20, 20)
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)
    if codec is not None and not is_lossy(codec):  # the same pixels as from raw
        raw = write_crops(tmp_path / "raw", "npy", None, count=9)
        (other,) = Loader(open_dataset(raw, ["key", "image"], decode={"image": plan}), 9, shuffle=False, seed=3)
        assert torch.equal(batch["image"], other["image"])


def test_random_crops_are_functions_of_seed_epoch_and_row(tmp_path):
    schema = Schema((text("key"), FIELD))
    write_encoded(tmp_path / "d", "lmdb", schema, {"key": [k.encode() for k in keys(4)], "image": JPEGS})
    dataset = open_dataset(tmp_path / "d", decode={"image": RandomResizedCrop(32)})

    def crops(epoch, **arguments):
        loader = Loader(dataset, seed=1, **arguments)
        loader.set_epoch(epoch)
        return {k: image for batch in loader for k, image in zip(batch["key"], batch["image"], strict=True)}

    first = crops(0, batch_size=4)
    for key, image in crops(0, batch_size=1, workers=3).items():
        assert torch.equal(image, first[key])
    assert not any(torch.equal(image, first[key]) for key, image in crops(1, batch_size=4).items())
    # An index that carries no epoch follows torch's generator instead.
    torch.manual_seed(0)
    one, other = dataset[0]["image"], dataset[0]["image"]
    torch.manual_seed(0)
    assert not np.array_equal(one, other)
    assert np.array_equal(dataset[0]["image"], one)


def test_random_boxes_have_the_distribution_asked_for():
    plan = RandomResizedCrop(10, scale=(0.2, 0.5), ratio=(0.5, 2.0))
    boxes = np.array([plan.box(300, 400, sample_rng(0, 0, i)) for i in range(2000)])
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area = width * height / (300 * 400)
    assert 0.19 < area.min() < 0.21
    assert 0.49 < area.max() < 0.51
    assert abs(np.log(width / height).mean()) < 0.05
    assert boxes[:, 0].min() == 0
    assert boxes[:, 2].max() == 400
    assert (boxes == np.round(boxes)).all()
    assert plan.box(1, 1000, sample_rng(0, 0, 0)) == (499.0, 0.0, 501.0, 1.0)
