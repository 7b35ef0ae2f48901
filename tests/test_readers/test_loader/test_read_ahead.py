"""Reading ahead: what is asked for, how far, and that it changes nothing but the time."""

import ctypes
import mmap
import os
import queue
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from support.crops import write_crops

from readers import Loader, MixedDataset, open_dataset
from readers.formats.mapping import map_file
from readers.loader.threads import ReadAhead
from readers.order.order import SampledRows
from shardspec.errors import ShardCorruptError, ShardMissingError
from shardspec.formats import FORMATS

WAIT_S = 10.0


def pages(path: Path) -> np.ndarray:
    """Which pages of a file are in memory."""
    data = map_file(path)
    found = np.zeros(-(-len(data) // mmap.PAGESIZE), np.uint8)
    library = ctypes.CDLL(None)
    library.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    assert library.mincore(data.ctypes.data, len(data), found.ctypes.data) == 0
    return (found & 1).astype(bool)


def drop(path: Path) -> None:
    """Drop a file's pages, or skip the test where they stay (a file system in memory)."""
    if not hasattr(os, "posix_fadvise"):
        pytest.skip("this system drops no pages on request")
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    if pages(path).any():
        pytest.skip("this file system keeps its files in memory")


def wait_for(path: Path, wanted: np.ndarray) -> np.ndarray:
    """The pages in memory, once those that are wanted are among them."""
    until = time.monotonic() + WAIT_S
    while not (found := pages(path))[wanted].all():
        assert time.monotonic() < until, "what was asked for has not come"
        time.sleep(0.01)
    return found


@pytest.mark.skipif(not hasattr(mmap, "MADV_WILLNEED"), reason="the system cannot be asked")
def test_the_rows_of_a_dataset_come(tmp_path):
    path = write_crops(tmp_path / "d", "npy", None, count=64, size=128, shard_rows=64)
    images, row_bytes = path / "shard-00000" / "image.npy", 128 * 128 * 3
    drop(images)
    dataset = open_dataset(path, fields=["image"])
    rows = np.array([60, 2, 33])
    dataset.pool.read_ahead(rows, ["image"])
    wanted = np.zeros(len(pages(images)), bool)
    for row in rows:
        begin = 128 + row * row_bytes
        wanted[begin // mmap.PAGESIZE : (begin + row_bytes - 1) // mmap.PAGESIZE + 1] = True
    wait_for(images, wanted)
    assert np.array_equal(dataset.read_batch(rows)["image"], open_dataset(path).read_batch(rows)["image"])


@pytest.mark.skipif(not hasattr(mmap, "MADV_WILLNEED"), reason="the system cannot be asked")
@pytest.mark.parametrize("format", ["npy", "lmdb"])
def test_the_first_reads_load_no_neighbouring_rows(tmp_path, format):
    """Of a file that is not in memory, the system would read up to megabytes around each page that is touched."""
    path = write_crops(tmp_path / "d", format, None, count=64, size=128, shard_rows=64)
    images = path / ("shard-00000/image.npy" if format == "npy" else "shard-00000.lmdb")
    row_pages = 128 * 128 * 3 // mmap.PAGESIZE
    for rows in ([60], [2, 33, 47]):
        drop(images)
        batch = open_dataset(path, fields=["image"]).read_batch(np.array(rows))
        assert pages(images).sum() < len(rows) * (row_pages + 4) + 40
        drop(images)
        assert np.array_equal(batch["image"], open_dataset(path, fields=["image"]).read_batch(np.array(rows))["image"])


@pytest.mark.parametrize("format", sorted(FORMATS))
@pytest.mark.parametrize("codec", [None, "jpeg"])
def test_batches_are_the_same(tmp_path, format, codec):
    path = write_crops(tmp_path / "d", format, codec)
    for shuffle in ("full", "blocks"):
        one, other = (list(Loader(open_dataset(path), 7, shuffle=shuffle, seed=3, read_ahead=n)) for n in (0, 3))
        for a, b in zip(one, other, strict=True):
            assert a["key"] == b["key"]
            assert torch.equal(a["image"], b["image"])
            assert torch.equal(a["landmarks"], b["landmarks"])


def test_views_locate_rows_in_their_base(raw_path):
    dataset = open_dataset(raw_path, fields=["image", "label"])
    for view in (dataset, dataset.subset([5, 3, 40]), MixedDataset([dataset.subset([1, 2]), dataset.subset([50])])):
        picks = SampledRows(np.arange(len(view)), np.zeros(len(view), np.uint64), 0)
        found = list(view.locate(picks))
        assert {located.pool for located in found} == {dataset.pool}
        assert np.concatenate([located.rows for located in found]).tolist() == view.origins(picks).rows.tolist()
        assert {located.fields for located in found} == {("image", "label")}


def test_the_number_of_batches_under_way_is_limited():
    asked: queue.Queue[int] = queue.Queue()
    ahead = ReadAhead(asked.put, jobs=20, depth=2)
    assert [asked.get(timeout=WAIT_S) for _ in range(2)] == [0, 1]
    ahead.begin(0)
    assert asked.get(timeout=WAIT_S) == 2
    ahead.begin(9)  # what is read already is not asked for any more
    assert [asked.get(timeout=WAIT_S) for _ in range(2)] == [10, 11]
    ahead.begin(3)
    ahead.stop()
    assert asked.empty()


def test_errors_come_from_the_read_itself(tmp_path, monkeypatch):
    path = write_crops(tmp_path / "d", "lmdb", None)
    dataset = open_dataset(path)

    def broken(self, rows, fields):
        raise RuntimeError("ahead")

    with monkeypatch.context() as patched:
        patched.setattr(type(dataset.pool), "read_ahead", broken)
        assert len(list(Loader(dataset, 10, read_ahead=2))) == 6
    anew = open_dataset(path)
    (path / "shard-00001.lmdb").unlink()
    with pytest.raises(ShardMissingError, match=r"shard-00001\.lmdb"):
        list(Loader(anew, 10, read_ahead=2))
    damaged = bytearray((path / "shard-00000.lmdb").read_bytes())
    damaged[2 * 4096 :: 4096] = bytes(b ^ 0xFF for b in damaged[2 * 4096 :: 4096])
    (path / "shard-00000.lmdb").write_bytes(damaged)
    with pytest.raises((ShardCorruptError, ShardMissingError)):
        list(Loader(open_dataset(path, verify="off"), 10, read_ahead=2))


def test_leaving_early_ends_the_thread(raw_path):
    for _ in range(5):
        next(iter(Loader(open_dataset(raw_path), 2, read_ahead=4)))


def test_a_transform_that_fails_at_once_leaves_no_thread(raw_path):
    def broken(sample):
        raise RuntimeError("broken")

    before = threading.active_count()
    with pytest.raises(RuntimeError, match="broken"):
        next(iter(Loader(open_dataset(raw_path, transform=broken), 2, read_ahead=2)))
    assert threading.active_count() == before
