"""Stores that fail while a dataset is read from them, processes that are killed, and folders that vanish."""

import contextlib
import errno
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import psutil
import pytest
from support.command import run_packer
from support.crops import write_crops
from support.errors import raises
from support.staged import COUNT, SHARD_ROWS, assert_same, epoch_of, shard_bytes, stager_pid

import packer
from readers import Loader, open_dataset
from readers.staging import client as client_module
from readers.staging.client import client_of
from readers.staging.folder import CacheFolder, key_of, read_address
from readers.staging.layout import dataset_layout
from shardspec import SPEC_VERSION
from shardspec.errors import (
    DatasetChangedError,
    NotADatasetError,
    ShardCorruptError,
    ShardMissingError,
    StoreError,
    UsageError,
)

pytestmark = pytest.mark.usefixtures("here")


def test_a_flipped_bit_is_fetched_again(datasets, server, tmp_path) -> None:
    server.fail({"match": "GET .*shard-00001.lmdb$", "kind": "flip", "times": 1})
    remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")
    local = open_dataset(datasets["lmdb"])
    assert np.array_equal(remote[SHARD_ROWS]["image"], local[SHARD_ROWS]["image"])
    assert server.left() == [0]


def test_a_wrong_shard_is_an_error_that_names_it_and_other_shards_can_be_read(datasets, server, tmp_path) -> None:
    server.fail({"match": "GET .*shard-00001.lmdb$", "kind": "flip", "times": 9})
    remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")
    with raises(ShardCorruptError, place=server.url("lmdb/shard-00001.lmdb")):
        remote[SHARD_ROWS]
    assert remote[0]["key"] == open_dataset(datasets["lmdb"])[0]["key"]
    assert not list(tmp_path.rglob("*.partial"))
    server.fail()
    assert remote[SHARD_ROWS]["key"] == open_dataset(datasets["lmdb"])[SHARD_ROWS]["key"]


def end_stager(cache: Path) -> None:
    with CacheFolder(cache).lock().acquire(timeout=60):
        pass


def spoil(path: Path, how: str) -> None:
    data = path.read_bytes()
    path.unlink()
    path.write_bytes({"zeros": bytes(len(data)), "cut": data[:100], "flip": data[:-1] + bytes([data[-1] ^ 1])}[how])


@pytest.mark.parametrize("how", ["zeros", "flip"])
@pytest.mark.parametrize("name", ["shard-00001.lmdb", "shard-00001.lmdb.index", "index/label.npy"])
def test_a_file_that_was_damaged_in_the_cache_is_fetched_again(datasets, server, tmp_path, name, how) -> None:
    local = open_dataset(datasets["lmdb"])

    def check() -> int:
        remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")
        assert remote.column("label").tolist() == local.column("label").tolist()
        assert_same(epoch_of(Loader(remote, 8, shuffle=False)), epoch_of(Loader(local, 8, shuffle=False)))
        return int(client_of(tmp_path).ask("stats").get("fetched_files", 0))

    check()
    end_stager(tmp_path)
    spoil(next(tmp_path.rglob(f"facepack/datasets/*/*/{name}")), how)
    assert check() == 1
    end_stager(tmp_path)
    assert check() == 0


def test_a_file_that_is_damaged_while_the_stager_runs_is_fetched_again(datasets, server, tmp_path) -> None:
    remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")
    list(Loader(remote, 8))
    remote.column("label")
    for name in ("shard-00001.lmdb.index", "index/label.npy"):
        spoil(next(tmp_path.rglob(f"facepack/datasets/*/*/{name}")), "zeros")
    other = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")
    assert other[SHARD_ROWS]["key"] == open_dataset(datasets["lmdb"])[SHARD_ROWS]["key"]
    assert other.column("label").tolist() == open_dataset(datasets["lmdb"]).column("label").tolist()


@pytest.mark.parametrize("name", ["manifest.json", "../source.json"])
def test_a_damaged_manifest_in_the_cache_is_replaced_or_cleared(datasets, server, tmp_path, name) -> None:
    def read() -> int:
        return len(list(Loader(open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB"), 8)))

    whole = read()
    for _ in range(2):
        end_stager(tmp_path)
        (manifest,) = tmp_path.rglob("facepack/datasets/*/*/manifest.json")
        spoil(manifest.parent / name, "zeros")
        (dataset,) = packer.cache(tmp_path).datasets
        assert sum(dataset.files.values()) > 10 * shard_bytes(datasets["lmdb"])
        assert read() == whole
    end_stager(tmp_path)
    spoil(manifest.parent / name, "cut")
    run_packer("cache", tmp_path)
    run_packer("cache", tmp_path, "--clear")
    assert list((tmp_path / "facepack" / "datasets").iterdir()) == []


def cached_lines(cache: Path) -> list[str]:
    return run_packer("cache", cache).stdout.splitlines()[1:]


def test_caches_of_earlier_and_later_versions_are_listed_with_their_place_and_cleared(
    datasets, server, tmp_path
) -> None:
    open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")[0]
    end_stager(tmp_path)
    (manifest,) = tmp_path.rglob("facepack/datasets/*/*/manifest.json")
    earlier = manifest.parents[1] / "source.json"
    earlier.rename(manifest.parent / "source.json")
    assert [server.url("lmdb") in line for line in cached_lines(tmp_path)] == [True]
    later = json.loads(manifest.read_bytes()) | {"spec_version": SPEC_VERSION + 1}
    CacheFolder(tmp_path).add(key_of(json.dumps(later).encode()), "s3://later/faces", json.dumps(later).encode())
    assert sorted("s3://later/faces: " in line for line in cached_lines(tmp_path)) == [False, True]
    run_packer("cache", tmp_path, "--clear")
    assert list((tmp_path / "facepack" / "datasets").iterdir()) == []


@pytest.mark.parametrize("kind", ["503", "500", "reset", "cut"])
def test_passing_faults_are_not_noticed(datasets, server, tmp_path, kind) -> None:
    server.fail({"match": "GET .*shard-0000[246].lmdb", "kind": kind, "times": 3})
    remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")
    keys = [key for batch in Loader(remote, 8, seed=1, timeout_s=60.0) for key in batch["key"]]
    assert sorted(keys) == sorted(open_dataset(datasets["lmdb"]).column("key"))


def test_a_dataset_that_cannot_be_opened_is_reported_at_once(server, tmp_path, monkeypatch) -> None:
    with raises(NotADatasetError, place=server.url("nothing")):
        open_dataset(server.url("nothing"), cache=tmp_path)
    with raises(StoreError, place="s3://nowhere/faces/manifest.json"):
        open_dataset("s3://nowhere/faces", cache=tmp_path)
    server.fail({"match": "GET .*manifest.json", "kind": "403", "times": 9})
    with raises(StoreError, place=server.url("lmdb/manifest.json")):
        open_dataset(server.url("lmdb"), cache=tmp_path)


def test_a_deleted_shard_is_an_error(datasets, server, tmp_path) -> None:
    remote = open_dataset(server.url("npy"), cache=tmp_path, cache_size="1GB")
    server.fail({"match": "GET .*shard-00000/image.npy", "kind": "403", "times": 99})
    with raises(StoreError, place=server.url("npy/shard-00000/image.npy")):
        remote[0]


def test_a_loop_waits_for_an_unreachable_store_and_reports_it(datasets, server, tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(client_module, "_QUIET_S", 0.05)
    remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size=4 * shard_bytes(datasets["lmdb"]))
    options = {"batch_size": SHARD_ROWS, "shuffle": False, "timeout_s": 120.0}
    batches, read = iter(Loader(remote, **options)), []
    read.append(dict(next(batches)))
    server.fail({"match": "GET .*shard", "kind": "503", "times": 10**6})
    loop = Thread(target=lambda: read.extend(dict(batch) for batch in batches))
    loop.start()
    while f"{server.url('lmdb')}/shard-000" not in caplog.text:
        time.sleep(0.01)
    assert loop.is_alive()
    server.fail()
    loop.join()
    assert_same(read, epoch_of(Loader(open_dataset(datasets["lmdb"]), **options)))


def test_a_store_that_is_unreachable_for_too_long_is_an_error(datasets, server, tmp_path, monkeypatch) -> None:
    hook = "from shardspec.stores import Store\nStore.__init__.__kwdefaults__['patience_s'] = 0.5\n"
    (tmp_path / "sitecustomize.py").write_text(hook)  # for the stager
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")
    server.fail({"match": "GET .*lmdb$", "kind": "503", "times": 10**6})
    with raises(StoreError, place=server.url("lmdb/shard-00000.lmdb")) as caught:
        list(Loader(remote, 8, shuffle=False, workers=1, timeout_s=120.0))
    assert "retries" in str(caught.value)
    server.fail()
    assert len(list(Loader(remote, SHARD_ROWS, shuffle=False))) == COUNT // SHARD_ROWS


def test_a_store_that_never_answered_is_not_waited_for_as_one_that_is_away(
    datasets, server, tmp_path, monkeypatch
) -> None:
    hook = (
        "from shardspec.stores import Store\nbegin = Store.__init__\n"
        "def begin_faster(self, url, options=None, *, patience_s=100):\n"
        "    begin(self, url, options, patience_s=patience_s if patience_s >= 60 else 0.05)\n"
        "Store.__init__ = begin_faster\n"
    )
    (tmp_path / "sitecustomize.py").write_text(hook)  # for the stager
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    away = {"match": "GET .*manifest", "kind": "503", "times": 3}
    server.fail(away)
    with raises(StoreError, place=server.url("lmdb/manifest.json")):
        open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")
    server.fail()
    open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")
    for kind in ("known", "new"):
        server.fail(away)
        if kind == "known":
            open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")
        else:
            dataset_layout(server.url("npy"), tmp_path, "1GB", patient=True)
        assert server.left() == [0]
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(StoreError, match=os.strerror(errno.ECONNREFUSED)):
            open_dataset(f"http://127.0.0.1:{closed.getsockname()[1]}/x", cache=tmp_path, cache_size="1GB")


@pytest.mark.parametrize("change", ["other bytes", "other shards", "deleted"])
def test_a_dataset_that_is_replaced_gives_no_wrong_bytes(datasets, server, tmp_path, change) -> None:
    url = server.url(f"replaced-{change.replace(' ', '-')}")
    first, second = datasets["lmdb"], tmp_path / "second"
    shard_rows = SHARD_ROWS + (change == "other shards")
    write_crops(second, "lmdb", None, COUNT, 24, shard_rows, seed=1)
    run_packer("copy", first, url, "--quiet", env=server.env)
    remote = open_dataset(url, cache=tmp_path / "cache", cache_size="1GB")
    before = remote[0]
    if change == "deleted":
        server.fail({"match": "GET .*/replaced-deleted/", "kind": "404", "times": 10**6})
    else:
        run_packer("copy", second, url, "--overwrite", "--quiet", env=server.env)
    with raises(DatasetChangedError, place=url):
        remote[COUNT - 1]
    assert np.array_equal(remote[0]["image"], before["image"])  # it is in the cache
    server.fail()
    run_packer("copy", second, url, "--overwrite", "--quiet", env=server.env)
    options = {"batch_size": 8, "shuffle": False}
    again = open_dataset(url, cache=tmp_path / "cache", cache_size="1GB")
    assert_same(epoch_of(Loader(again, **options)), epoch_of(Loader(open_dataset(second), **options)))


def test_a_missing_shard_of_the_same_dataset_is_an_error(datasets, server, tmp_path) -> None:
    remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")
    server.fail({"match": "GET .*/shard-00001.lmdb$", "kind": "404", "times": 10**6})
    with raises(ShardMissingError, place=server.url("lmdb/shard-00001.lmdb"), found="none"):
        remote[SHARD_ROWS]


def test_credentials_that_expire_in_training_are_renewed_by_opening_again(datasets, server, tmp_path) -> None:
    remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")
    before = remote[0]
    server.fail({"match": "GET .*(shard-00001.lmdb$|manifest)", "kind": "expired", "times": 10**6})
    with raises(StoreError, place=server.url("lmdb/shard-00001.lmdb")) as caught:
        remote[SHARD_ROWS]
    assert "renew" in str(caught.value)
    assert np.array_equal(remote[0]["image"], before["image"])
    server.fail()
    again = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")
    assert again[SHARD_ROWS]["key"] == open_dataset(datasets["lmdb"])[SHARD_ROWS]["key"]


def test_files_in_use_that_the_stager_after_a_killed_one_deletes_are_fetched_again(datasets, server, tmp_path) -> None:
    remote = open_dataset(server.url("npy"), cache=tmp_path, cache_size="1GB")
    assert remote.column("key") == open_dataset(datasets["npy"]).column("key")  # all shards, but not their images
    os.kill(stager_pid(tmp_path), signal.SIGKILL)
    for path in tmp_path.rglob("image.npy"):
        path.unlink()
    options = {"batch_size": 8, "shuffle": False}
    assert_same(epoch_of(Loader(remote, **options)), epoch_of(Loader(open_dataset(datasets["npy"]), **options)))


def test_the_folder_may_be_deleted_while_it_is_used(datasets, server, tmp_path) -> None:
    remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")
    batches, read = iter(Loader(remote, 2, shuffle=False, workers=1, prefetch=1)), []
    read.append(dict(next(batches)))
    client = client_of(tmp_path)
    (tmp_path / "facepack").rename(tmp_path / "gone")
    read += [dict(batch) for batch in batches]
    assert_same(read, epoch_of(Loader(open_dataset(datasets["lmdb"]), 2, shuffle=False)))
    while not client.lost:  # the stager notices that it lost its folder
        time.sleep(0.01)
    list(Loader(open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB"), 2, shuffle=False))
    (cached,) = CacheFolder(tmp_path).list()
    assert cached.files.keys() >= {entry.name for shard in remote.manifest.shards for entry in shard.files}


def test_a_stager_that_is_killed_is_replaced(datasets, server, tmp_path) -> None:
    remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size=4 * shard_bytes(datasets["lmdb"]))
    loader, keys, killed = Loader(remote, 5, seed=1, timeout_s=60.0), [], set()
    for number, batch in enumerate(loader):
        keys += batch["key"]
        if number in (2, 6):
            killed.add(stager_pid(tmp_path))
            os.kill(stager_pid(tmp_path), signal.SIGKILL)
    assert len(killed) == 2
    assert sorted(keys) == sorted(open_dataset(datasets["lmdb"]).column("key"))


@pytest.fixture
def suspended() -> Iterator[list[psutil.Process]]:
    """Processes that a test has suspended. They go on after it, and end."""
    processes: list[psutil.Process] = []
    yield processes
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # one that somebody ended has ended, too
            process.resume()
            deadline = time.monotonic() + 60
            while process.status() != psutil.STATUS_ZOMBIE:
                assert time.monotonic() < deadline, "a stager whose place was taken goes on"
                time.sleep(0.05)


def _suspend(cache: Path, suspended: list[psutil.Process]) -> None:
    suspended.append(psutil.Process(stager_pid(cache)))
    suspended[0].suspend()


def test_a_stager_that_is_suspended_is_replaced(datasets, server, tmp_path, suspended, monkeypatch) -> None:
    monkeypatch.setattr(client_module, "_TICK_S", 1.0)
    remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")
    before = remote[0]
    _suspend(tmp_path, suspended)
    keys = [key for batch in Loader(remote, 8, seed=1, timeout_s=120.0) for key in batch["key"]]
    assert sorted(keys) == sorted(open_dataset(datasets["lmdb"]).column("key"))
    assert stager_pid(tmp_path) != suspended[0].pid
    suspended[0].resume()
    assert np.array_equal(remote[0]["image"], before["image"])


def test_a_new_process_replaces_a_suspended_stager(datasets, server, tmp_path, suspended, monkeypatch) -> None:
    monkeypatch.setattr(client_module, "_ANSWER_S", 0.5)
    monkeypatch.setattr(client_module, "_START_S", 8.0)
    script = "import sys, time, readers; readers.open_dataset(sys.argv[1], cache=sys.argv[2]); print(); time.sleep(600)"
    command = [sys.executable, "-uc", script]
    with subprocess.Popen([*command, server.url("lmdb"), tmp_path], stdout=subprocess.PIPE, env=server.env) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            _suspend(tmp_path, suspended)
            remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")
            assert remote[0]["key"] == open_dataset(datasets["lmdb"])[0]["key"]
        finally:
            other.kill()


@pytest.mark.parametrize("value", [dict, timedelta(seconds=3), {"timeout": timedelta(seconds=3)}, float("nan")])
def test_settings_that_cannot_be_sent_are_refused(server, tmp_path, value) -> None:
    with raises(UsageError, option="storage_options"):
        open_dataset(server.url("lmdb"), cache=tmp_path, storage_options={"credential_provider": value})


def test_a_user_may_delete_files_of_the_cache(datasets, server, tmp_path) -> None:
    remote = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")
    list(Loader(remote, 8))
    for path in tmp_path.rglob("shard-*"):
        path.unlink()
    again = open_dataset(server.url("lmdb"), cache=tmp_path, cache_size="1GB")
    assert len(list(Loader(again, 8))) == len(list(Loader(remote, 8)))


def _read_and_wait(url: str, cache: Path, barrier: Any) -> None:
    remote = open_dataset(url, cache=cache, cache_size="1GB")
    remote[0]
    barrier.wait()
    time.sleep(600)


def test_the_stager_ends_after_its_clients_were_killed_and_holds_nothing_for_them(datasets, server, tmp_path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    readers = [
        context.Process(target=_read_and_wait, args=(server.url("lmdb"), tmp_path, barrier), daemon=True)
        for _ in range(2)
    ]
    for reader in readers:
        reader.start()
    barrier.wait(timeout=120)
    for reader in readers:
        reader.kill()
        reader.join()
    with CacheFolder(tmp_path).lock().acquire(timeout=60):
        assert read_address(CacheFolder(tmp_path).address) is None
