"""Caches that hold less than an order reads at a time: refusals, warnings, and resumes on another machine."""

import errno
import io
import json
import os
import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.staged import COUNT, SHARD_ROWS, shard_bytes

from readers import Loader, MixedDataset, PackedDataset, open_dataset
from readers.dataset.base import SampleDataset
from readers.order.order import WINDOW_BLOCKS
from readers.order.sampler import OrderSampler
from readers.staging.folder import CacheFolder, write
from readers.staging.server import Stager, settings

pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.parametrize("window", [1, 2])
def test_an_accepted_window_downloads_every_shard_once(server, datasets, tmp_path, caplog, window) -> None:
    size = 2 * window * shard_bytes(datasets["lmdb"])
    remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size=size)
    loader = Loader(remote, 2, seed=1, workers=1, shuffle="blocks", window=window, timeout_s=60.0)
    local = open_dataset(datasets["lmdb"])
    for _ in range(3):
        assert sorted(key for batch in loader for key in batch["key"]) == sorted(local.column("key"))
    stored = local.manifest.stored_bytes
    assert loader.stats()["fetched_bytes"] <= 1.1 * 3 * stored + size
    assert warnings_of(caplog) == []


def test_a_cache_that_holds_everything_limits_no_window(datasets, server, tmp_path) -> None:
    stored = open_dataset(datasets["lmdb"]).manifest.stored_bytes

    def window(size: int) -> int:
        remote = open_dataset(server.url("lmdb"), cache=tmp_path / str(size), cache_size=size)
        loader = Loader(remote, 2, workers=1, timeout_s=60.0)
        next(iter(loader))
        return int(loader.state_dict()["window"])

    assert [window(stored), window(stored // 2)] == [WINDOW_BLOCKS, COUNT // SHARD_ROWS // 4]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "cache_size" in record.getMessage()]


def test_a_cache_that_is_too_small_for_the_order_is_reported_with_a_sufficient_size(
    server, datasets, tmp_path, caplog
) -> None:
    largest, stored = shard_bytes(datasets["lmdb"]), open_dataset(datasets["lmdb"]).manifest.stored_bytes

    def remote(size: int) -> PackedDataset:
        return open_dataset(server.url("lmdb"), cache=tmp_path / str(size), cache_size=size)

    def said(size: int, views: Callable[[PackedDataset], SampleDataset] = lambda remote: remote, **how: Any) -> str:
        caplog.clear()
        loader = Loader(views(remote(size)), 2, workers=1, timeout_s=60.0, **how)
        for _ in range(2):
            next(iter(loader))
        assert len(warnings_of(caplog)) < 2  # not again in the next epoch
        return "".join(warnings_of(caplog))

    small = 5 * largest
    for how in ({"shuffle": "full"}, {"shuffle": "full", "drop_last": True}):
        advised = re.search(
            r"Use shuffle='blocks' with window=(\d+), or a cache_size of (\d+) bytes", said(small, **how)
        )
        assert advised is not None
        assert not said(small, **how | {"shuffle": "blocks", "window": int(advised[1])})
        assert not said(int(advised[2]), **how)
    half = np.arange(COUNT // 2)
    for views, how in (
        (lambda remote: remote, {"weights": np.ones(COUNT)}),
        (lambda remote: remote, {"order": lambda epoch: range(COUNT)}),
        (lambda remote: remote.subset(np.random.default_rng(0).permutation(COUNT)), {}),
        (lambda remote: MixedDataset([remote.subset(half), remote.subset(half + COUNT // 2)]), {}),
    ):
        advised = re.search(r"Use a cache_size of (\d+) bytes", said(small, views, **how))
        assert advised is not None
        assert stored - 12 <= int(advised[1]) <= stored
        assert not said(stored, views, **how)
    part = remote(small).subset(np.arange(2 * SHARD_ROWS))  # of two shards
    assert not said(small, lambda _: part, shuffle="full")
    every = np.arange(0, COUNT, SHARD_ROWS)  # a row of each shard
    assert "reads all shards" in said(small, lambda remote: remote.subset(every), shuffle="full")


def test_ranks_without_communication_use_one_window_with_any_caches(server, datasets, tmp_path, caplog) -> None:
    largest = shard_bytes(datasets["lmdb"])

    def remote(rank: int) -> PackedDataset:
        return open_dataset(server.url("lmdb"), cache=tmp_path / f"{rank}", cache_size=(4, 100)[rank] * largest)

    def loader(rank: int) -> Loader:
        return Loader(remote(rank), 2, seed=3, workers=1, rank=rank, world_size=2, timeout_s=60.0)

    def sampler(rank: int, ranks: int) -> OrderSampler:
        return remote(rank).sampler(seed=3, rank=rank, world_size=ranks)

    every = sorted(remote(0).column("key"))
    keys, states = [], []
    for rank in range(2):
        one = loader(rank)
        keys += [key for batch in islice(one, 7) for key in batch["key"]]
        states.append(one.state_dict())
    assert states[0] == states[1]
    assert ["2" in text for text in warnings_of(caplog)] == [True]  # the first rank's cache holds windows of two shards
    for rank in range(2):
        one = loader(rank)
        one.load_state_dict(states[0])
        keys += [key for batch in one for key in batch["key"]]
    assert sorted(keys) == every
    begun = [sampler(rank, 2) for rank in range(2)]
    rows = [row for one in begun for row in islice(one, 13)]
    resumed = sampler(0, 1)
    resumed.load_state_dict(begun[1].state_dict(consumed=26))
    assert sorted([*rows, *resumed]) == list(range(COUNT))


def test_a_window_of_a_state_that_the_cache_does_not_hold_is_reported(server, datasets, tmp_path, caplog) -> None:
    largest = shard_bytes(datasets["lmdb"])

    def loader(shards: int) -> Loader:
        remote = open_dataset(server.url("lmdb"), cache=tmp_path / str(shards), cache_size=shards * largest)
        return Loader(remote, 2, seed=3, workers=1, timeout_s=60.0)

    one = loader(8)
    keys = [key for batch in islice(one, 7) for key in batch["key"]]
    resumed = loader(4)
    resumed.load_state_dict(one.state_dict())
    keys += [key for batch in resumed for key in batch["key"]]
    assert len(set(keys)) == len(keys) == COUNT
    (text,) = warnings_of(caplog)
    advised = re.search(r"a cache_size of (\d+) bytes or more .*, or window=2 in a new training", text)
    assert advised is not None
    assert int(advised[1]) == 8 * largest
    caplog.clear()
    enough = loader(8)
    enough.load_state_dict(one.state_dict())
    next(iter(enough))
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("reported_by", ["write", "fsync", "close"])
def test_a_quota_shrinks_the_cache_whichever_call_reports_it(
    server, datasets, tmp_path, monkeypatch, reported_by
) -> None:
    """As on NFS, where a server may report it only when the file is flushed or closed."""
    folder = CacheFolder(tmp_path)
    folder.make()
    write(folder.address, json.dumps({"pid": os.getpid()}).encode())  # a stager whose folder is not its own ends
    quota = 5 * shard_bytes(datasets["npy"])

    def check(call: str) -> None:
        used = sum(path.stat().st_size for path in folder.datasets.rglob("*") if path.is_file())
        if call == reported_by and used > quota:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    class Limited(io.FileIO):
        def write(self, data: Any) -> int:
            check("write")
            return super().write(data)

        def close(self) -> None:
            ended = self.closed
            super().close()
            if not ended:
                check("close")

    opened, synced = Path.open, os.fsync
    monkeypatch.setattr(
        Path, "open", lambda path, mode="r", *args, **how: (
            io.BufferedWriter(Limited(path, "xb")) if mode == "xb" else opened(path, mode, *args, **how)
        ),
    )  # fmt: skip
    monkeypatch.setattr(os, "fsync", lambda number: (synced(number), check("fsync")))
    stager = Stager(folder)
    dataset = stager.datasets[stager.open(0, server.url("npy"), 10**9, {}, settings())["key"]]
    for number, name in enumerate(dataset.entries):
        stager.act(0, {"op": "get", "id": number, "key": dataset.key, "names": [name], "pin": False})
        fetch = stager.schedule.next(0.0)
        assert fetch is not None
        for evicted in fetch.evicted:
            stager._delete(evicted)
        stager._download(dataset, dataset.entries[name])
        assert (dataset.root / name).read_bytes() == (datasets["npy"] / name).read_bytes()
        stager.schedule.finish(fetch.file, True)
        stager._answer_ready()
    assert stager.schedule.held <= stager.schedule.limit <= quota
    assert not list(folder.datasets.rglob("*.partial"))
