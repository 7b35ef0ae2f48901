"""Augmentation is a function of (seed, epoch, row), at any number of threads, processes and workers."""

import hashlib
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import albumentations as A  # noqa: N812 -- as its own documentation does
import numpy as np
import pytest
import torch
from support.datasets import fixed, text, write_dataset
from support.faces import face_sample
from torch.utils.data import DataLoader

from readers import Loader, open_dataset
from readers.augment import (
    Albumentations,
    BatchCompose,
    BatchCrop,
    BatchFlip,
    BatchNormalize,
    BlackoutHull,
    ColorJitter,
    Compose,
    CropJitter,
    DropRegion,
    HorizontalFlip,
    KeepHull,
    LandmarkCutout,
    OneOf,
)
from readers.seeding import sample_rng, sample_rngs
from readers.transforms import is_seeded
from shardspec.schema import Schema


def pipeline():
    return Compose(
        [
            HorizontalFlip(),
            CropJitter((0.7, 1.0), size=200, p=0.8),
            OneOf(
                [DropRegion(p=1), BlackoutHull(p=1), KeepHull(p=1), LandmarkCutout(p=1)], weights=[1, 1, 1, 2], p=0.7
            ),
            Albumentations(
                [
                    A.HorizontalFlip(),
                    A.Affine(rotate=(-15, 15), scale=(0.9, 1.1)),
                    A.OneOf([A.GaussNoise(p=1), A.RandomBrightnessContrast(p=1)], p=0.7),
                    A.CoarseDropout(p=0.5),
                ]
            ),
        ]
    )


def digest(sample):
    state = hashlib.sha256()
    for name in sorted(sample):
        state.update(name.encode())
        state.update(np.asarray(sample[name]).tobytes() if not isinstance(sample[name], str) else sample[name].encode())
    return state.hexdigest()


def digest_of(row):
    """Called in other processes: everything is made there."""
    return digest(pipeline()(face_sample("68", seed=row), sample_rng(5, 2, row)))


ROWS = range(24)


@pytest.fixture(scope="module")
def expected():
    transform = pipeline()
    return [digest(transform(face_sample("68", seed=row), sample_rng(5, 2, row))) for row in ROWS]


def test_every_sample_differs_and_repeats(expected):
    assert len(set(expected)) == len(expected)
    assert [digest_of(row) for row in reversed(ROWS)] == expected[::-1]


def test_one_object_serves_many_threads_and_so_do_its_copies(expected):
    transform = pipeline()
    transform(face_sample("68"), sample_rng(0, 0, 0))
    for one in (transform, deepcopy(transform), pickle.loads(pickle.dumps(transform))):

        def run(row, one=one):
            return digest(one(face_sample("68", seed=row), sample_rng(5, 2, row)))

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(run, ROWS)) == expected


def test_a_fresh_interpreter_draws_the_same(expected):
    """With another hash seed, and with nothing inherited."""
    folder = Path(__file__).parent
    code = "import test_augment_seeded as t; print(*[t.digest_of(row) for row in (3, 17)])"
    paths = os.pathsep.join([str(folder), str(folder.parent), *sys.path])
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": paths, "PYTHONHASHSEED": "11"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split() == [expected[3], expected[17]]


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    sample = face_sample("5")
    schema = Schema(
        (
            text("key"),
            fixed("image", "|u1", 224, 224, 3),
            fixed("landmarks", "<f4", 5, 2),
            fixed("landmarks_valid", "|b1"),
            fixed("hull", "<f4", 27, 2),
            fixed("regions", "<f4", 4, 4),
            fixed("matrix", "<f4", 2, 3),
        )
    )
    columns = {name: [sample[name]] * 20 for name in schema.names if name != "key"}
    columns |= {"key": [f"{row:08d}-000000" for row in range(20)]}
    root = tmp_path_factory.mktemp("faces") / "npy"
    write_dataset(root, "npy", schema, {n: v if n == "key" else np.stack(v) for n, v in columns.items()}, shard_rows=7)
    return root


def loaded(packed, workers, epoch):
    dataset = open_dataset(packed, transform=pipeline())
    sampler = dataset.sampler(seed=3)
    sampler.set_epoch(epoch)
    loader = DataLoader(dataset, batch_size=6, sampler=sampler, num_workers=workers, collate_fn=dataset.collate)
    found = {}
    for batch in loader:
        for at, key in enumerate(batch["key"]):
            found[key] = {name: value[at] for name, value in batch.items() if isinstance(value, torch.Tensor)}
    return found


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_a_data_loader_yields_the_same_with_any_number_of_workers(packed):
    alone = loaded(packed, 0, 1)
    assert len(alone) == 20
    found = loaded(packed, 2, 1)
    assert found.keys() == alone.keys()
    for key, values in alone.items():
        assert all(torch.equal(found[key][name], value) for name, value in values.items())
    another = loaded(packed, 0, 2)
    assert sum(not torch.equal(another[key]["image"], alone[key]["image"]) for key in alone) > 15


def test_the_loader_yields_the_same_with_any_number_of_threads(packed):
    """Sample by sample in the threads, and whole batches behind them."""
    batched = BatchCompose([BatchFlip(), BatchCrop(160, (0.7, 1)), BatchNormalize()])
    found = []
    for workers, size in ((1, 8), (3, 8), (2, 5)):
        dataset = open_dataset(packed, transform=pipeline())
        batches = list(Loader(dataset, size, workers=workers, seed=4, shuffle=False, batch_transform=batched))
        found.append({name: torch.cat([batch[name] for batch in batches]) for name in ("image", "landmarks", "matrix")})
    for other in found[1:]:
        for name, value in found[0].items():
            assert torch.equal(other[name], value), name


def test_one_of_draws_by_weight():
    transform = OneOf(
        [lambda s: {"which": 0}, lambda s: {"which": 1}, lambda s: {"which": 2}], weights=[1, 0, 3], p=0.8
    )
    found = [transform({"which": 9}, sample_rng(0, 0, row))["which"] for row in range(4000)]
    shares = [found.count(which) / 4000 for which in (0, 1, 2, 9)]
    np.testing.assert_allclose(shares, [0.2, 0, 0.6, 0.2], atol=0.03)


def test_compose_calls_in_order_and_gives_only_seeded_ones_the_generator():
    chain = Compose([lambda s: {"x": s["x"] + 1}, lambda s: {"x": s["x"] * 2}, HorizontalFlip(p=0)])
    assert is_seeded(chain)
    assert chain({"x": 1}, sample_rng(0, 0, 0)) == {"x": 4}
    assert repr(Compose([HorizontalFlip(p=0.25)])) == "Compose([HorizontalFlip(p=0.25, masks=None)])"


def test_generators_of_many_samples_are_those_of_each():
    seeds, rows = [0, 7, 7, 2**64 - 1], [0, 3, 2**40 - 1, 5]
    for epoch in (0, 9, 2**24 - 1):
        found = sample_rngs(np.array(seeds, np.uint64), epoch, np.array(rows))
        for one, seed, row in zip(found, seeds, rows, strict=True):
            assert one.random(9).tolist() == sample_rng(seed, epoch, row).random(9).tolist()


def test_numbers_drawn_one_by_one_are_those_drawn_together():
    """So images stay what they were when all numbers were drawn together."""
    for row in range(300):
        one, other = sample_rng(1, 2, row), sample_rng(1, 2, row)
        order, shares = other.permutation(4).tolist(), other.random(4).tolist()
        found = ColorJitter((0.0, 1.0), (0.0, 1.0), (0.0, 1.0), (0.0, 0.5)).draw({}, one)
        assert (list(found.order), list(found.factors)) == (order, [*shares[:3], shares[3] / 2])
        assert one.random() == other.random()
