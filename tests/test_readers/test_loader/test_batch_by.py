"""``Loader(batch_by=)``: all samples of a batch have one value of a field, and images of one shape are one tensor."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import packer
from readers import Loader, MixedDataset, open_dataset
from readers.loader import loader as loader_module
from readers.order.shuffle_choice import ShuffleChoice
from shardspec.errors import SchemaError, UsageError

SHAPES = ((24, 16), (16, 24), (20, 20))
ROWS = 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of three shapes: of 60, 30 and 10 %."""
    out = tmp_path_factory.mktemp("shapes") / "out"
    rng = np.random.default_rng(0)
    with packer.Writer(out, format="npy", shard_size="20kB", encode="png", progress=False) as writer:
        for number in range(ROWS):
            kind = int(rng.choice(3, p=[0.6, 0.3, 0.1]))
            image = np.full((*SHAPES[kind], 3), number, np.uint8)
            writer.write(image=image, bucket="x".join(map(str, SHAPES[kind])), number=number, kind=kind)
    return out


@pytest.fixture
def dataset(folder: Path) -> Any:
    return open_dataset(folder)


def numbers(batches: Any) -> list[list[int]]:
    return [batch["number"].tolist() for batch in batches]


@pytest.mark.parametrize("shuffle", ["auto", "full", "blocks", False])
def test_every_sample_comes_once_in_batches_of_one_shape(dataset: Any, shuffle: Any) -> None:
    loader = Loader(dataset, 16, batch_by="bucket", shuffle=shuffle, window=2)
    seen = Counter[int]()
    short = 0
    for batch in loader:
        assert len(set(batch["bucket"])) == 1
        image = batch["image"]
        assert image.shape == (len(batch["bucket"]), 3, *map(int, batch["bucket"][0].split("x")))
        assert image.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(image.amax((1, 2, 3)).long(), batch["number"] % 256)
        seen.update(batch["number"].tolist())
        short += len(image) < 16
    assert seen == Counter(range(ROWS))
    assert short <= len(SHAPES)
    assert len(loader) == sum(-(-n // 16) for n in Counter(dataset.column("bucket")).values())


def test_the_automatic_order_keeps_a_smaller_window(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_module, "choose_shuffle", lambda *_: ShuffleChoice("blocks", "in a store", 3))
    for window in (1, 2, 3, 8):
        found = Loader(dataset, 16, batch_by="bucket", window=window, seed=2)
        expected = Loader(dataset, 16, batch_by="bucket", shuffle="blocks", window=min(window, 3), seed=2)
        assert numbers(found) == numbers(expected)


def test_no_samples_are_no_batches(dataset: Any) -> None:
    assert list(Loader(dataset.subset([]), 16, batch_by="bucket")) == []


def test_epochs_are_shuffled_within_and_over_shapes(dataset: Any) -> None:
    loader = Loader(dataset, 8, batch_by="bucket", shuffle="full", seed=3)
    first, second = numbers(loader), numbers(loader)
    assert first != second
    assert first[0] != sorted(first[0])
    kinds = [dataset[batch[0]]["kind"] for batch in first]
    assert kinds != sorted(kinds)
    assert numbers(Loader(dataset, 8, batch_by="bucket", shuffle="full", seed=3)) == first


def test_drop_last_gives_full_batches_only(dataset: Any) -> None:
    loader = Loader(dataset, 16, batch_by="bucket", drop_last=True)
    sizes = [len(batch["number"]) for batch in loader]
    assert set(sizes) == {16}
    assert len(sizes) == len(loader) == sum(n // 16 for n in Counter(dataset.column("bucket")).values())


@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_get_equally_many_batches(dataset: Any, drop_last: bool) -> None:
    whole = numbers(Loader(dataset, 8, batch_by="bucket", seed=1, drop_last=drop_last))
    parts = [
        numbers(Loader(dataset, 8, batch_by="bucket", seed=1, rank=rank, world_size=3, drop_last=drop_last))
        for rank in range(3)
    ]
    assert len({len(part) for part in parts}) == 1
    joined = {tuple(batch) for part in parts for batch in part}
    assert joined <= set(map(tuple, whole))
    assert len(whole) - len(joined) == (len(whole) % 3 if drop_last else 0)


@pytest.mark.parametrize("taken", [0, 1, 7])
def test_a_run_resumes_at_any_batch(dataset: Any, taken: int) -> None:
    loader = Loader(dataset, 16, batch_by="bucket", seed=5)
    batches = iter(loader)
    head = [next(batches)["number"].tolist() for _ in range(taken)]
    state = loader.state_dict()
    batches.close()
    again = Loader(dataset, 16, batch_by="bucket", seed=5)
    again.load_state_dict(state)
    assert head + numbers(again) == numbers(Loader(dataset, 16, batch_by="bucket", seed=5))
    other = Loader(dataset, 16, batch_by="kind", seed=6)
    with pytest.raises(UsageError):
        other.load_state_dict(state)


def test_weights_decide_the_sequence(dataset: Any) -> None:
    weights = (np.asarray(dataset.column("kind")) == 2).astype(float)
    loader = Loader(dataset, 10, batch_by="bucket", weights=weights, draws=100)
    assert {kind for batch in loader for kind in batch["kind"].tolist()} == {2}


@pytest.fixture
def many(dataset: Any) -> Any:
    return MixedDataset([dataset, dataset.subset(np.arange(50))])


def test_mixtures_parts_and_further_fields(dataset: Any, many: Any) -> None:
    for source in (many, dataset.subset(np.arange(10, 100)), dataset.where("kind != 1")):
        for batch in Loader(source, 8, batch_by="kind"):
            assert len(set(batch["kind"].tolist())) == 1
            assert isinstance(batch["image"], torch.Tensor)


def test_clips_of_one_shape_are_batched(tmp_path: Path) -> None:
    """Eleven videos of three shapes, of 5 to 9 frames each, are cut into clips of 3."""
    with packer.Writer(tmp_path / "out", shard_size="20kB", encode="webp-lossless", progress=False) as writer:
        for video in range(11):
            for frame in range(5 + video % 5):
                image = np.full((*SHAPES[video % 3], 3), 16 * video + frame, np.uint8)
                bucket = "x".join(map(str, SHAPES[video % 3]))
                sample = {"source": f"{video}", "frame": frame, "bucket": bucket, "kind": video % 3}
                writer.write(key=f"{video:08d}-{frame:06d}", image=image, **sample)
    dataset = open_dataset(tmp_path / "out")
    clips = dataset.clips(3, stride=1, by=None)
    for field in ("bucket", "kind"):
        seen = Counter[tuple[str, int]]()
        loader = Loader(clips, 4, batch_by=field, seed=1)
        for batch in loader:
            (kind,) = batch["kind"].unique().tolist()
            assert batch["image"].shape == (len(batch["source"]), 3, 3, *SHAPES[kind])
            seen.update(zip(batch["source"], batch["frame"][:, 0].tolist(), strict=True))
        assert set(seen.values()) == {1}
        assert seen.total() == len(clips) == sum(3 + video % 5 for video in range(11))
        assert len(loader) == sum(-(-n // 4) for n in Counter(clips.column("kind")).values())


def test_a_dataloader_takes_the_batches(dataset: Any) -> None:
    loader = Loader(dataset, 16, batch_by="bucket", seed=2)
    expected = numbers(Loader(dataset, 16, batch_by="bucket", seed=2))
    torchs = DataLoader(dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn, num_workers=2)
    found = list(torchs)
    assert numbers(found) == expected
    assert all(isinstance(batch["image"], torch.Tensor) for batch in found)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_by": "nothing", "batch_size": 4},
        {"batch_by": "image", "batch_size": 4},
        {"batch_by": "bucket"},
        {"batch_by": "bucket", "batch_size": 4, "order": lambda epoch: [[1]]},
    ],
)
def test_wrong_arguments_are_one_line(dataset: Any, options: Any) -> None:
    with pytest.raises((SchemaError, UsageError)) as error:
        Loader(dataset, **options)
    assert "\n" not in str(error.value)
