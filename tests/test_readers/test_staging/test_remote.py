"""Remote datasets that are read through a cache."""

import gc
import hashlib
import json
import pickle
import socket
import threading
import time
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import pytest
import torch
from support.command import run_packer
from support.crops import write_crops
from support.errors import raises
from support.staged import COUNT, FORMATS, SHARD_ROWS, assert_same, epoch_of, shard_bytes

from readers import Loader, MixedDataset, open_dataset
from readers.lightning import PackedDataModule
from readers.order.order import RankShare
from readers.staging import client as client_module
from readers.staging.client import StagerClient, client_of
from readers.staging.folder import CacheFolder
from readers.staging.layout import CachedLayout
from shardspec.errors import StoreError, UsageError

pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_reads_the_same_samples(datasets, server, tmp_path, format) -> None:
    remote = open_dataset(server.url(format), cache=tmp_path, cache_size="1GB", verify="digest")
    local = open_dataset(datasets[format])
    for shuffle in ("full", False):
        options = {"batch_size": 8, "shuffle": shuffle, "seed": 3, "timeout_s": 60.0}
        assert_same(epoch_of(Loader(remote, **options)), epoch_of(Loader(local, **options)))
    assert list(remote.column("label")) == list(local.column("label"))


@pytest.mark.parametrize("shuffle", ["full", False])
def test_a_small_cache_changes_no_sample_and_is_not_exceeded(datasets, server, tmp_path, shuffle) -> None:
    size = 5 * shard_bytes(datasets["lmdb"])  # of 12 shards
    remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size=size)
    options = {"batch_size": 20, "shuffle": shuffle, "seed": 3, "timeout_s": 120.0}
    loader = Loader(remote, **options)
    assert_same(epoch_of(loader), epoch_of(Loader(open_dataset(datasets["lmdb"]), **options)))
    assert sum(file.stat().st_size for file in tmp_path.rglob("shard-*") if file.is_file()) <= size
    assert loader.stats()["evictions"] > 0


def test_views_mixtures_and_weighted_draws_read_the_same_samples(datasets, server, tmp_path) -> None:
    def views(dataset, other):
        yield Loader(dataset.subset(np.arange(3, 50, 2)), 8, seed=1, shuffle="full")
        yield Loader(MixedDataset([dataset, other], weights=[1, 2]), 8, seed=1)
        yield Loader(dataset, 8, seed=1, weights=np.arange(COUNT), draws=40)
        yield Loader(dataset, 8, order=lambda epoch: np.arange(COUNT)[:: -1 if epoch % 2 else 1])

    urls = [server.url(format) for format in ("lmdb", "npy")]
    remote = [open_dataset(url, cache=tmp_path, cache_size="1GB") for url in urls]
    local = [open_dataset(datasets[format]) for format in ("lmdb", "npy")]
    for one, other in zip(views(*remote), views(*local), strict=True):
        for _ in range(2):
            assert_same(epoch_of(one), epoch_of(other))


def test_an_epoch_in_blocks_downloads_every_shard_once(datasets, server, tmp_path) -> None:
    shards = len(open_dataset(datasets["lmdb"]).manifest.shards)
    remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size=4 * shard_bytes(datasets["lmdb"]))
    loader = Loader(remote, 2, seed=1, workers=1, timeout_s=60.0)
    epochs = 3
    keys = [[key for batch in loader for key in batch["key"]] for _ in range(epochs)]
    assert [len(set(epoch)) for epoch in keys] == [COUNT] * epochs
    assert keys[0] != keys[1]
    assert loader.order == "blocks"
    files = loader.stats()["fetched_files"]
    ahead = 4  # of the next epoch, as many as the cache holds
    assert files <= 2 * (epochs * shards + ahead)  # a shard and its index


def test_a_loader_counts_what_its_own_caches_fetched(datasets, server, tmp_path) -> None:
    other = open_dataset(server.url("npy"), cache=tmp_path / "other", cache_size="1GB")
    assert len(other[0]["image"]) > 0
    remote = open_dataset(server.url("lmdb"), cache=tmp_path / "own", cache_size="1GB")
    counts = [Loader(dataset, 8).stats() for dataset in (other, remote, MixedDataset([other, remote]))]
    assert [found.get("fetched_files", 0) > 0 for found in counts] == [True, False, True]
    assert Loader(open_dataset(datasets["lmdb"]), 8).stats() == {}


def test_nothing_is_forecast_for_a_dataset_that_is_in_the_cache(datasets, server, tmp_path, monkeypatch) -> None:
    started, start = [], threading.Thread.start

    def note(thread: threading.Thread) -> None:
        started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", note)
    remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")
    loader = Loader(remote, 8, shuffle="full", seed=1, timeout_s=60.0)
    for _ in range(3):
        assert sum(1 for _ in loader) == len(loader)
    assert started.count("readers-forecast") == 1


def test_the_first_window_of_a_remote_epoch_is_one_shard(datasets, server, tmp_path) -> None:
    remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")
    rows = remote.order("blocks", seed=5).epoch(0).at(np.arange(2 * SHARD_ROWS)).rows // SHARD_ROWS
    assert len(set(rows[:SHARD_ROWS].tolist())) == len(set(rows[SHARD_ROWS:].tolist())) == 1


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("epoch", [0, 1])
def test_ranks_read_their_own_shards_and_a_resume_reads_the_rest(datasets, server, tmp_path, ranks, epoch) -> None:
    remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")

    def loader(rank: int, world: int) -> Loader:
        return Loader(remote, 5, seed=2, shuffle="blocks", window=2, rank=rank, world_size=world)

    seen, read = [], 0
    for rank in range(ranks):
        one = loader(rank, ranks)
        one.set_epoch(epoch)
        keys = [key for batch in one for key in batch["key"]]
        read += len({int(remote.find(key)) // SHARD_ROWS for key in keys})
        seen += keys
    assert sorted(seen) == sorted(remote.column("key"))
    assert read <= 12 + ranks - 1
    half = loader(0, ranks)
    half.set_epoch(epoch)
    batches = iter(half)
    next(batches)
    state = half.state_dict()
    rest = []
    for rank in range(3):  # another number of ranks
        resumed = loader(rank, 3)
        resumed.load_state_dict(state)
        rest += [key for batch in resumed for key in batch["key"]]
    order = remote.order("blocks", seed=2, window=2).with_shuffle("blocks", 2, lanes=ranks).epoch(epoch)
    positions = RankShare(0, 1).positions(0, COUNT - state["consumed"], state["consumed"])
    wanted = {remote.column("key")[row] for row in order.at(positions).rows}
    assert wanted <= set(rest)
    assert len(rest) - len(wanted) < 3  # repeated to make the ranks' lengths equal


@pytest.mark.parametrize("batch", [1, 2, 16])
def test_the_stager_knows_exactly_when_shards_are_needed(server, datasets, tmp_path, monkeypatch, batch) -> None:
    told: list[list[int]] = []
    tell = StagerClient.tell

    def listen(self: StagerClient, op: str, **message: Any) -> None:
        told.extend(message["uses"] if op == "plan" else [])
        tell(self, op, **message)

    monkeypatch.setattr(StagerClient, "tell", listen)
    remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")
    list(Loader(remote, batch, seed=1, window=2, shuffle="blocks"))
    rows = remote.order("blocks", seed=1, window=2).epoch(0).at(np.arange(COUNT)).rows
    batches = range(-(-COUNT // batch))
    needed = [set((rows[n * batch : (n + 1) * batch] // SHARD_ROWS).tolist()) for n in batches]
    longer = SHARD_ROWS // (4 * batch)  # batches that take a quarter of a shard
    for shard in range(COUNT // SHARD_ROWS):
        true = {n for n in batches if shard in needed[n]}
        said = {n for first, last, part in told if part == shard for n in range(first, last + 1) if n in batches}
        assert true <= said
        assert max(said) <= max(true) + longer


@pytest.mark.parametrize("ranks", [2, 4])
def test_nodes_fetch_every_shard_once_together(server, tmp_path, ranks) -> None:
    path = write_crops(tmp_path / "many", "lmdb", None, 160, 8, 4)
    run_packer("copy", path, server.url(f"many{ranks}"), "--quiet", env=server.env)
    shards, epochs = 40, 2
    size = 8 * shard_bytes(path)
    fetched = 0
    for rank in range(ranks):  # each on a node of its own
        remote = open_dataset(server.url(f"many{ranks}"), cache=tmp_path / f"node{rank}", cache_size=size)
        loader = Loader(remote, 2, seed=1, window=2, shuffle="blocks", workers=1, rank=rank, world_size=ranks)
        for _ in range(epochs):
            list(loader)
        fetched += client_of(tmp_path / f"node{rank}").ask("stats")["fetched_bytes"]
    ahead = ranks * size  # of the next epoch
    stored = open_dataset(path).manifest.stored_bytes
    assert shards == len(open_dataset(path).manifest.shards)
    assert fetched <= 1.1 * epochs * stored + ahead


def test_a_cache_that_is_too_small_is_refused_with_a_sufficient_size(datasets, server, tmp_path) -> None:
    largest = shard_bytes(datasets["lmdb"])
    with raises(UsageError, option="cache_size", found=largest):
        open_dataset(server.url("lmdb"), cache=tmp_path, cache_size=largest)
    remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size=5 * largest)
    with raises(UsageError, option="window", found=3):
        Loader(remote, 2, shuffle="blocks", window=3)
    Loader(remote, 2, shuffle="blocks", window=2)


def test_the_largest_size_counts_in_one_process_too(datasets, server, tmp_path) -> None:
    for name, size in (("lmdb", "1GB"), ("npy", "500MB")):
        remote = open_dataset(server.url(name), cache=tmp_path, cache_size=size)
        assert len(remote) == COUNT
        assert client_of(tmp_path).ask("stats")["limit"] == 10**9


def test_a_cache_folder_that_cannot_be_used_is_an_error_that_says_why(datasets, server, tmp_path, monkeypatch) -> None:
    manifest = (datasets["lmdb"] / "manifest.json").read_bytes()
    folder = CacheFolder(tmp_path / "one")
    folder.make()
    (folder.datasets / hashlib.sha256(manifest).hexdigest()[:32]).touch()  # where the dataset's folder belongs
    with raises(StoreError, place=str(folder.root)) as caught:
        open_dataset(server.url("lmdb"), cache=folder.given)
    assert "cannot be used" in str(caught.value)
    folder = CacheFolder(tmp_path / "two")
    folder.make()
    (folder.root / "stager.lock").mkdir()
    with raises(StoreError, place=str(folder.root)) as caught:
        open_dataset(server.url("lmdb"), cache=folder.given)
    assert "stager.lock" in str(caught.value)  # the last line of the log
    folder = CacheFolder(tmp_path / "three")
    folder.make()
    (folder.root / "starting.lock").mkdir()
    with raises(StoreError, place=str(folder.root)) as caught:
        open_dataset(server.url("lmdb"), cache=folder.given)
    assert "cannot be used" in str(caught.value)
    folder = CacheFolder(tmp_path / "four")
    folder.make()
    monkeypatch.setattr(client_module, "_START_S", 0.1)
    with folder.lock(), raises(StoreError, place=str(folder.root)) as caught:
        open_dataset(server.url("lmdb"), cache=folder.given)
    assert "does not answer" in str(caught.value)


def test_a_port_taken_by_another_program_is_not_the_stager(datasets, server, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(client_module, "_ANSWER_S", 0.1)
    folder = CacheFolder(tmp_path)
    folder.make()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        accept = threading.Thread(target=_greet, args=(silent,), daemon=True)
        accept.start()
        folder.address.write_text(json.dumps({"port": silent.getsockname()[1], "token": "0" * 32, "pid": 1}))
        assert len(open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")) == COUNT


def _greet(silent: socket.socket) -> None:
    """Accept connections, and say nothing."""
    with ExitStack() as kept, suppress(OSError):
        while True:
            kept.enter_context(silent.accept()[0])


@pytest.mark.parametrize("drop", [True, False])
def test_a_plan_ends_with_its_loader_or_its_next_iteration(datasets, server, tmp_path, monkeypatch, drop) -> None:
    told: list[tuple[str, Any]] = []
    tell = StagerClient.tell

    def record(self: Any, op: str, **message: Any) -> None:
        told.append((op, message.get("plan")))
        tell(self, op, **message)

    monkeypatch.setattr(StagerClient, "tell", record)
    remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")
    loader = Loader(remote, 2, seed=1)
    next(batches := iter(loader))
    while ("plan", first := max((plan for op, plan in told if op == "plan"), default=-1)) not in told:
        time.sleep(0.01)
    if drop:
        batches.close()
        del loader, batches
    else:
        next(other := iter(loader))
        other.close()
    while ("unplan", first) not in told:
        gc.collect()
        time.sleep(0.01)
    ops = [op for op, plan in told if plan == first and op != "at"]
    assert ops[-1] == "unplan"


def test_a_data_module_reads_a_url_through_a_cache(datasets, server, tmp_path, monkeypatch) -> None:
    url, local = server.url("lmdb"), datasets["npy"]
    monkeypatch.setenv("FACEPACK_CACHE", str(tmp_path / "cache"))
    data = PackedDataModule(url, [local, url], batch_size=8, val_options={"workers": 1})
    expected = list(Loader(open_dataset(datasets["lmdb"]), 8, shuffle="full"))
    assert sorted(key for batch in data.train_dataloader() for key in batch["key"]) == sorted(
        key for batch in expected for key in batch["key"]
    )
    assert [sum(len(batch["key"]) for batch in batches) for batches in data.val_dataloader()] == [COUNT, COUNT]
    assert CacheFolder(tmp_path / "cache").exists
    data.teardown("fit")


def test_a_local_dataset_takes_no_cache(datasets, tmp_path) -> None:
    with raises(UsageError, option="cache"):
        open_dataset(datasets["lmdb"], cache=tmp_path)
    with raises(UsageError, option="cache_size", found="'much'"):
        open_dataset("s3://data/lmdb", cache=tmp_path, cache_size="much")


def test_credentials_are_neither_shown_nor_pickled(datasets, server, tmp_path, monkeypatch) -> None:
    for name in server.variables:
        monkeypatch.delenv(name)
    options = {"endpoint": server.address, "access_key_id": "test", "secret_access_key": "sécret-value"}
    remote = open_dataset(
        server.url("lmdb"), cache=tmp_path, cache_size="1GB", storage_options={**options, "region": "us-east-1"}
    )
    data = pickle.dumps(remote)
    assert b"cret-value" not in data
    assert "cret-value" not in repr(remote) + repr(vars(remote))
    assert all(b"cret-value" not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    again = pickle.loads(data)
    assert np.array_equal(again[3]["image"], open_dataset(datasets["lmdb"])[3]["image"])


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_worker_processes_share_the_stager(datasets, server, tmp_path, context) -> None:
    remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")
    local = open_dataset(datasets["lmdb"])
    batches = torch.utils.data.DataLoader(
        remote,
        8,
        sampler=remote.sampler(seed=4, shuffle="full"),
        num_workers=2,
        collate_fn=remote.collate,
        multiprocessing_context=context,
    )
    wanted = torch.utils.data.DataLoader(
        local, 8, sampler=local.sampler(seed=4, shuffle="full"), collate_fn=local.collate
    )
    assert_same(list(batches), list(wanted))
    assert Loader(remote, 8).stats()["fetched_files"] == 24


def test_a_cached_dataset_needs_the_store_for_its_manifest_only(datasets, server, tmp_path) -> None:
    list(Loader(open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB"), 8))
    server.fail({"match": "GET .*shard", "kind": "403", "times": 99})
    remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")
    assert len(list(Loader(remote, 8))) == len(list(Loader(open_dataset(datasets["lmdb"]), 8)))
    layout = remote.pool.layout
    assert isinstance(layout, CachedLayout)
    assert client_of(tmp_path).ask("stats")["hits"] > 0
