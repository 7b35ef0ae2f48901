"""How the Loader ends: at the end, early, by an error, in a fork's child; and what it refuses."""

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
import types
import weakref

import pytest
from support.batches import error_of, keys_of
from support.crops import astronaut_crops, keys
from support.datasets import picture, text, write_dataset
from torch.utils.data import DataLoader, IterableDataset

from readers import Loader, open_dataset
from readers.formats.shards import reader_class
from readers.loader import threads as stages
from shardspec.errors import CodecError, DatasetError, ReadTimeoutError, UsageError
from shardspec.schema import Schema


def damaged(root):
    schema = Schema((text("key"), picture("image", "jpeg", 24)))
    write_dataset(root, "lmdb", schema, {"key": keys(40), "image": astronaut_crops(40, 24)}, shard_rows=30)
    path = root / "shard-00001.lmdb"
    path.write_bytes(path.read_bytes().replace(b"\xff\xd8\xff", b"\x00\x00\x00"))
    return path


def test_an_error_in_a_thread_reaches_the_loop_with_key_and_shard(tmp_path):
    path = damaged(tmp_path / "d")
    batches = iter(Loader(open_dataset(tmp_path / "d"), 10, shuffle=False, workers=2))
    assert keys_of(next(batches) for _ in range(3)) == keys(30)
    with pytest.raises(CodecError, match="expected JPEG bytes") as caught:
        next(batches)
    named = r"; sample: key '0000003(\d)-000000', row (\d) of (.*) \(row 3(\d) of the dataset\)\Z"
    found = re.search(named, str(caught.value))  # of whichever thread was first
    assert found is not None
    assert (len({*found.group(1, 2, 4)}), found[3]) == (1, str(path))


def test_a_stuck_read_times_out_and_names_the_file(jpeg_path, monkeypatch):
    release = threading.Event()
    reader = reader_class(open_dataset(jpeg_path).manifest.format)
    read = reader.read

    def stuck(self, rows, fields, out, at):
        if "image" in fields and self._path.name == "shard-00002.lmdb":
            release.wait(120)
        read(self, rows, fields, out, at)

    monkeypatch.setattr(reader, "read", stuck)
    loader = Loader(open_dataset(jpeg_path), 20, shuffle=False, timeout_s=0.3)
    threading.Timer(1.0, release.set).start()
    with pytest.raises(ReadTimeoutError, match=r"batch 1: .* is reading .*shard-00002\.lmdb"):
        list(loader)
    release.set()


def test_leaving_early_frees_everything(raw_path):
    dataset = open_dataset(raw_path)
    before = threading.active_count()
    loader = Loader(dataset, 4, workers=3)
    for _ in loader:
        break
    iterator = iter(loader)
    next(iterator)
    gone = weakref.ref(iterator)
    del iterator
    gc.collect()
    assert gone() is None
    assert threading.active_count() == before
    iterator = iter(loader)
    iterator.close()
    with pytest.raises(DatasetError, match="was closed"):
        next(iterator)


def test_fifty_loaders_made_and_dropped_leave_nothing(jpeg_path):
    """Threads and files left open fail every test: see `tests/conftest.py`."""
    dataset = open_dataset(jpeg_path)
    for number in range(50):
        loader = Loader(dataset, 8, workers=2)
        for step, _ in enumerate(loader):
            if step == number % 5:
                break


_EXIT = """
import sys
from readers import Loader, open_dataset
loader = Loader(open_dataset(sys.argv[1]), 4, workers=3)
batches = iter(loader)
batch = next(batches)
print("end")
"""


def test_a_program_may_end_in_the_middle_of_an_epoch(raw_path):
    run = subprocess.run([sys.executable, "-c", _EXIT, str(raw_path)], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (0, "end\n", "")


_ENDLESS = """
import sys
from readers import Loader, open_dataset
loader = Loader(open_dataset(sys.argv[1]), 4, workers=3, read_ahead=2)
while True:
    for batch in loader:
        print("batch", flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="no signals between processes")
def test_ctrl_c_ends_a_training_at_once(raw_path):
    with subprocess.Popen(
        [sys.executable, "-c", _ENDLESS, str(raw_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert errors.count("Traceback") == 1
    assert errors.endswith("KeyboardInterrupt\n")


def test_a_wrong_shape_from_a_transform_names_the_sample(raw_path):
    def uneven(sample):
        return {"image": sample["image"][: 20 + (sample["key"] == keys(60)[30])]}

    with pytest.raises(
        ValueError, match=r"expected field 'image' as uint8 \(20, 48, 3\).*found uint8 \(21, 48, 3\)"
    ) as caught:
        list(Loader(open_dataset(raw_path), 16, sample_transform=uneven))
    assert "key '00000030-000000'" in caught.value.__notes__[0]


def test_no_samples_give_no_batches_whatever_the_transform(raw_path):
    empty = open_dataset(raw_path).subset([])
    assert len(Loader(empty, 4)) == 0
    assert list(Loader(empty, 4)) == []
    assert list(Loader(empty, 4, sample_transform=lambda sample: sample, read_ahead=2)) == []


def test_after_an_error_the_epoch_has_not_ended(tmp_path):
    damaged(tmp_path / "d")
    loader = Loader(open_dataset(tmp_path / "d"), 10, shuffle=False)
    batches = iter(loader)
    with pytest.raises(CodecError):
        list(batches)
    for _ in range(2):
        with pytest.raises(DatasetError, match="was closed"):
            next(batches)
    assert loader.state_dict()["consumed"] == 30


@pytest.mark.parametrize("where", ["sample_transform", "batch_transform"])
def test_a_transform_that_raises_stop_iteration_ends_no_epoch(raw_path, where):
    loader = Loader(open_dataset(raw_path).subset(range(8)), 4, **{where: lambda sample: next(iter(()))})
    loader.dataset._layout = loader.dataset.raw_layout  # as if the samples tried first had passed
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(loader)


def test_an_iterator_may_be_collected_in_one_of_its_own_threads(raw_path, monkeypatch):
    begun, go = threading.Event(), threading.Event()

    def in_loader() -> bool:
        return threading.current_thread().name.startswith("readers-loader")

    def wait(sample):
        if in_loader():
            begun.set()
            go.wait()
        return sample

    def monotonic() -> float:  # called with the stage's lock held
        if in_loader():
            gc.collect()
        return time.monotonic()

    batches = iter(Loader(open_dataset(raw_path), 4, workers=2, sample_transform=wait))
    batches._begin()
    threads = batches._stage._threads
    begun.wait()
    batches.itself = batches  # so that only the collector frees it
    gc.collect()
    gc.disable()
    try:
        monkeypatch.setattr(stages, "time", types.SimpleNamespace(monotonic=monotonic))
        del batches
        go.set()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
    finally:
        gc.enable()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_forked_child_can_release_an_iterator(raw_path):
    loader = Loader(open_dataset(raw_path), 4, read_ahead=1)
    batches = iter(loader)
    next(batches)
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with batches._stage._lock:
            held.set()
            go.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        batches.close()
        os._exit(len(list(loader)) - 15)
    go.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


class Wrapped(IterableDataset):
    """A Loader within what torch's DataLoader takes."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataloader_around_a_loader_is_refused(raw_path, workers):
    loader = Loader(open_dataset(raw_path, fields=["key"]), 20, workers=1)
    with pytest.raises(
        UsageError, match=r"Loader: expected to be iterated over, .* found index 0 .*sampler=dataset\.s"
    ):
        raise error_of(DataLoader(loader, batch_size=None, num_workers=workers))
    assert len(keys_of(loader)) == 60


def test_a_loader_in_workers_of_a_dataloader_is_refused(raw_path):
    """Each would give the whole epoch."""
    wrapped = Wrapped(Loader(open_dataset(raw_path, fields=["key"]), 20, workers=1))
    with pytest.raises(UsageError, match=r"worker 0 of 2 of torch's DataLoader, each of which would give the whole"):
        raise error_of(DataLoader(wrapped, batch_size=None, num_workers=2))
    assert len(keys_of(DataLoader(wrapped, batch_size=None))) == 60
