"""Samples that were read as one batch, and what a caller may do to them on the way to `collate`."""

import warnings

import numpy as np
import pytest
import torch
from support.batches import keys_of
from support.crops import astronaut_crops, keys
from support.datasets import fixed, ragged, text, write_dataset
from torch.utils.data import DataLoader

from packer import Writer
from readers import Loader, RandomResizedCrop, open_dataset
from readers.dataset.collate import warn_of_sizes
from shardspec.errors import SchemaError
from shardspec.schema import Field, NamedConfig, Schema


def changed(samples):
    for sample in samples:
        sample["label"] = sample["label"] + 10


def added(samples):
    for sample in samples:
        sample["more"] = 1


def renamed(samples):
    for sample in samples:
        sample["class"] = sample.pop("label")


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_changed_before_collate_are_taken_as_they_are(raw_path, workers):
    dataset = open_dataset(raw_path)
    collate = dataset.collate
    plain = next(iter(DataLoader(dataset, 6, collate_fn=collate)))

    def batch(change):
        def changing(samples):
            found = change(samples)
            return collate(samples if found is None else found)

        return next(iter(DataLoader(dataset, 6, collate_fn=changing, num_workers=workers)))

    assert batch(changed)["label"].tolist() == [10, 11, 12, 10, 11, 12]
    assert batch(added)["more"].tolist() == [1] * 6
    assert set(batch(renamed)) == {"key", "image", "class", "landmarks"}
    assert batch(lambda samples: samples.reverse())["key"] == keys(6)[::-1]
    assert batch(lambda samples: samples.pop() and None)["key"] == keys(5)
    assert batch(lambda samples: samples[2:4])["key"] == keys(4)[2:]
    for name in ("image", "landmarks"):
        assert torch.equal(batch(changed)[name], plain[name])


@pytest.mark.parametrize("workers", [0, 1])
def test_images_that_became_tensors_keep_their_axes(raw_path, workers):
    dataset = open_dataset(raw_path, fields=["image"])
    collate = dataset.collate

    def as_tensors(samples):
        return collate([{"image": torch.from_numpy(sample["image"]).permute(2, 0, 1)[:, :9]} for sample in samples])

    stored = next(iter(DataLoader(dataset, 4, collate_fn=collate)))["image"]
    found = next(iter(DataLoader(dataset, 4, collate_fn=as_tensors, num_workers=workers)))["image"]
    assert torch.equal(found, stored[:, :, :9])


def batch_of(path, first, second, **options):
    """A batch of six, the first of which gets `first` for further fields, and the others `second`."""

    def transform(sample):
        return {**sample, **(first if sample["key"] == keys(1)[0] else second)}

    dataset = open_dataset(path, fields=["key", "label"], transform=transform)
    return next(iter(DataLoader(dataset, 6, collate_fn=dataset.collate, **options)))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("first", "second"), [({}, {"more": 1}), ({"more": 1}, {})])
def test_samples_of_a_batch_have_the_same_fields(raw_path, first, second, workers):
    with pytest.raises(SchemaError, match=rf"found key, label.* in the sample with key '{keys(2)[1]}'"):
        batch_of(raw_path, first, second, num_workers=workers)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.int8(3), 300),
        (np.int8(3), np.int64(300)),
        (np.float32(1), np.float64(0.1)),
        (np.float64(0.1), np.float32(1)),
        (0, 0.5),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2), np.zeros(2)),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
    ],
)
def test_a_batch_refuses_numbers_that_would_change(raw_path, first, second):
    with pytest.raises(
        SchemaError, match=r"expected field 'more' as .*, as in the first sample of the batch, found "
    ) as caught:
        batch_of(raw_path, {"more": first}, {"more": second})
    assert caught.value.__notes__ == [f"found in the sample with key '{keys(2)[1]}'"]


@pytest.mark.parametrize(
    ("first", "second", "dtype"),
    [(0.5, 1, torch.float64), (np.uint8(3), 4, torch.uint8), (torch.tensor(3), np.int64(4), torch.int64)],
)
def test_python_numbers_take_the_dtype_of_the_others(raw_path, first, second, dtype):
    more = batch_of(raw_path, {"more": first}, {"more": second})["more"]
    assert (more.dtype, more.tolist()) == (dtype, [first, *[second] * 5])


def loaders_of(path, value_of):
    """A Loader and a DataLoader of six samples, whose field `more` is a function of the sample's number."""

    def transform(sample):
        return {**sample, "more": value_of(int(sample["key"][:8]))}

    dataset = open_dataset(path, fields=["key"], transform=transform).subset(range(6))
    return Loader(dataset, 6, shuffle=False), DataLoader(dataset, 6, collate_fn=dataset.collate)


@pytest.mark.parametrize("values", [np.array(["even", "odd"]), np.array([b"a", b"b"]), ["even", np.str_("odd")]])
def test_text_of_numpy_is_listed_as_any_text(raw_path, values):
    for loader in loaders_of(raw_path, lambda number: values[number % 2]):
        assert next(iter(loader))["more"] == [*values] * 3


@pytest.mark.parametrize(
    "value",
    [
        np.array(["a", "b"]),
        np.array([b"a"]),
        np.array("a"),
        np.array([{}, None], object),
        np.datetime64("2020-01-01"),
        np.arange(3, dtype=">i4"),
        np.longdouble(1),
        [np.zeros(2), np.array(["a"])],
    ],
    ids=str,
)
@pytest.mark.parametrize("every", [True, False])
def test_arrays_that_torch_lacks_are_refused(raw_path, value, every):
    """In every sample, and so in those that are tried first, or in one only, of a field of varying shape."""
    for loader in loaders_of(raw_path, lambda number: value if every or number == 2 else np.zeros(number % 2)):
        with pytest.raises(SchemaError, match=r"expected field 'more' to have a dtype that torch has, found") as caught:
            next(iter(loader))
        assert any(keys(6)[0 if every else 2] in note for note in caught.value.__notes__)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_transforms_tensors_of_bfloat16(raw_path, workers):
    value = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    dataset = open_dataset(raw_path, fields=["key"], transform=lambda sample: {**sample, "value": value})
    for loader in (Loader(dataset, 6), DataLoader(dataset, 6, collate_fn=dataset.collate, num_workers=workers)):
        assert torch.equal(next(iter(loader))["value"], value.expand(6, 2))


def test_a_tensor_with_a_gradient_is_stored_without_it(raw_path):
    value = torch.ones(2, requires_grad=True)
    dataset = open_dataset(raw_path, fields=["key"], transform=lambda sample: {**sample, "value": value * 2})
    for loader in (Loader(dataset, 6), DataLoader(dataset, 6, collate_fn=dataset.collate)):
        assert torch.equal(next(iter(loader))["value"], torch.full((6, 2), 2.0))


@pytest.mark.parametrize("change", [lambda value: value[::-1], lambda value: np.broadcast_to(value[:1], value.shape)])
def test_values_of_varying_shape_may_be_any_views(tmp_path, change):
    """Flipped, or read-only: torch takes neither as it is."""
    arrays = [np.arange(2 * (1 + row % 3), dtype=np.float32).reshape(-1, 2) + row for row in range(6)]
    schema = Schema((text("key"), ragged("more", "<f4", 2)))
    write_dataset(tmp_path / "d", "npy", schema, {"key": keys(6), "more": arrays})
    dataset = open_dataset(tmp_path / "d", transform=lambda sample: {**sample, "more": change(sample["more"])})
    for loader in (Loader(dataset, 6, shuffle=False), DataLoader(dataset, 6, collate_fn=dataset.collate)):
        found = next(iter(loader))["more"]
        assert [value.tolist() for value in found] == [change(array).tolist() for array in arrays]


def test_images_of_varying_size_in_clips_are_tensors_as_elsewhere(tmp_path):
    sizes = [16 + i % 2 for i in range(8)]
    image = Field("image", "bytes", "|u1", (None, None, 3), NamedConfig("png"))
    schema = Schema((text("key"), fixed("frame", "<i8"), image))
    images = [astronaut_crops(1, size)[0] for size in sizes]
    columns = {"key": [f"00000000-{i:06d}" for i in range(8)], "frame": np.arange(8), "image": images}
    write_dataset(tmp_path / "d", "npy", schema, columns)
    clips = open_dataset(tmp_path / "d").clips(4, stride=4, by=None)
    for dataset in (clips, clips.with_transform(lambda sample: sample)):
        (batch,) = Loader(dataset, 2, shuffle=False)
        assert keys_of([batch]) == [columns["key"][0], columns["key"][4]]
        for clip, expected in zip(batch["image"], (images[:4], images[4:]), strict=True):
            assert [np.array_equal(a.permute(1, 2, 0), b) for a, b in zip(clip, expected, strict=True)] == [True] * 4


@pytest.mark.parametrize("reads", ["loader", "dataloader"])
def test_the_first_batch_of_images_of_different_sizes_warns_once(tmp_path, reads):
    with Writer(tmp_path / "out", progress=False) as writer:
        for side in (20, 24, 28, 32):
            writer.write(image=np.zeros((side, 30, 3), np.uint8), label=0)

    def batches(**options):
        dataset = open_dataset(tmp_path / "out", **options)
        if reads == "loader":
            return list(Loader(dataset, 2))
        return list(DataLoader(dataset, 2, collate_fn=dataset.collate))

    warn_of_sizes.cache_clear()
    with pytest.warns(UserWarning, match=r"--resize exact.*RandomResizedCrop") as found:
        assert all(isinstance(batch["image"], list) for batch in batches())
    assert len(found) == 1
    warn_of_sizes.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in batches(decode={"image": RandomResizedCrop(16)}):
            assert batch["image"].shape == (2, 3, 16, 16)
