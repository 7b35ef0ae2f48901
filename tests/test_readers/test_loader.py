"""The Loader: batches, memory, order, resume, errors, leaks."""

import gc
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from support.crops import astronaut_crops, keys, write_crops
from support.datasets import picture, text, write_dataset
from torch.utils.data import DataLoader

from readers import Loader, open_dataset
from readers.ring import Ring
from readers.values import ValueLayout
from shardspec.errors import CodecError, DatasetError, ReadTimeoutError, UsageError
from shardspec.schema import Schema


def keys_of(batches) -> list[str]:
    return [key for batch in batches for key in batch["key"]]


class Noise:
    """A seeded transform that shows what it drew."""

    seeded = True

    def __call__(self, sample, rng):
        return {**sample, "drawn": np.float64(rng.random())}


@pytest.mark.parametrize("workers", [1, 3])
def test_batches_are_those_of_a_dataloader(raw_path, jpeg_path, workers):
    for path in (raw_path, jpeg_path):
        dataset = open_dataset(path)
        ours = list(Loader(dataset, 16, seed=5, workers=workers))
        theirs = list(DataLoader(dataset, 16, sampler=dataset.sampler(seed=5), collate_fn=dataset.collate))
        assert len(ours) == len(theirs) == len(Loader(dataset, 16)) == 4
        for one, other in zip(ours, theirs, strict=True):
            assert one.keys() == other.keys()
            assert one["key"] == other["key"]
            for name in ("image", "label", "landmarks"):
                assert one[name].dtype == other[name].dtype
                assert torch.equal(one[name], other[name])
            assert one["image"].is_contiguous(memory_format=torch.channels_last)


def test_unshuffled_pictures_are_the_packed_ones(raw_path):
    dataset = open_dataset(raw_path)
    images = torch.cat([batch["image"] for batch in Loader(dataset, 7, shuffle=False)])
    assert np.array_equal(images.permute(0, 2, 3, 1).numpy(), dataset.column("image"))


def test_drop_last(raw_path):
    loader = Loader(open_dataset(raw_path), 16, drop_last=True)
    assert [len(batch["key"]) for batch in loader] == [16, 16, 16]
    assert len(loader) == 3


@pytest.mark.parametrize("shuffle", ["full", "blocks"])
def test_the_sequence_is_one_for_all_ranks_and_threads(raw_path, shuffle):
    dataset = open_dataset(raw_path, fields=["key"])

    def sequence(world_size, workers):
        ranks = [
            keys_of(Loader(dataset, 4, shuffle=shuffle, workers=workers, rank=rank, world_size=world_size))
            for rank in range(world_size)
        ]
        return [key for step in zip(*ranks, strict=True) for key in step]

    whole = sequence(1, 1)
    assert sorted(whole) == keys(60)
    assert whole != keys(60)
    for world_size, workers in ((1, 3), (2, 1), (4, 2), (8, 1)):
        assert sequence(world_size, workers)[:60] == whole


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 3), (4, 1)])
def test_resume_in_the_middle_of_an_epoch(raw_path, before, after):
    dataset = open_dataset(raw_path, fields=["key"], transform=Noise())

    def rest(rank, state):
        loader = Loader(dataset, 4, seed=9, rank=rank, world_size=after)
        loader.load_state_dict(state)
        loader.set_epoch(2)  # what training loops do; it must not lose the place
        return [pair for batch in loader for pair in zip(batch["key"], batch["drawn"].tolist(), strict=True)]

    single = Loader(dataset, 4, seed=9, rank=0, world_size=1)
    single.set_epoch(2)
    whole = [pair for batch in single for pair in zip(batch["key"], batch["drawn"].tolist(), strict=True)]
    states = []
    for rank in range(before):
        loader = Loader(dataset, 6, seed=9, rank=rank, world_size=before)
        loader.set_epoch(2)
        batches = iter(loader)
        next(batches), next(batches)
        states.append(loader.state_dict())
    assert all(state == states[0] for state in states)
    consumed = 12 * before
    assert states[0]["consumed"] == consumed
    parts = [rest(rank, states[0]) for rank in range(after)]
    woven = [pair for step in zip(*parts, strict=True) for pair in step]
    assert woven[: 60 - consumed] == whole[consumed:]


def test_epochs_follow_one_another(raw_path):
    dataset = open_dataset(raw_path, fields=["key"])
    loader = Loader(dataset, 60)
    first, second = keys_of(loader), keys_of(loader)
    assert first != second
    loader.set_epoch(0)
    assert keys_of(loader) == first
    assert keys_of(loader) == second
    fresh = Loader(dataset, 60)
    fresh.set_epoch(1)
    assert keys_of(fresh) == second
    # A state of a finished epoch goes on with the next, unless the loop asks for the rest of the finished one.
    state = fresh.state_dict()
    fresh.load_state_dict(state)
    third = keys_of(fresh)
    assert sorted(third) == keys(60)
    fresh.load_state_dict(state)
    fresh.set_epoch(1)
    assert keys_of(fresh) == []
    assert keys_of(fresh) == third


def test_a_chosen_epoch_begins_at_its_beginning(raw_path):
    dataset = open_dataset(raw_path, fields=["key"])
    loader = Loader(dataset, 10)
    sampler = dataset.sampler()
    for _ in zip(range(3), loader, strict=False):
        pass
    for _ in zip(range(7), sampler, strict=False):
        pass
    for progress in (loader, sampler):
        progress.set_epoch(1)
        state = progress.state_dict()
        assert (state["epoch"], state["consumed"]) == (1, 0)


def test_a_state_behind_an_epoch_that_left_samples_out_goes_on_with_the_next(raw_path):
    dataset = open_dataset(raw_path, fields=["key"])
    loader = Loader(dataset, 16, drop_last=True)
    first, second = keys_of(loader), keys_of(loader)
    loader.set_epoch(0)
    assert keys_of(loader) == first
    resumed = Loader(dataset, 16, drop_last=True)
    resumed.load_state_dict(loader.state_dict())
    assert keys_of(resumed) == second


def test_a_state_of_another_order_is_refused(raw_path):
    dataset = open_dataset(raw_path, fields=["key"])
    state = Loader(dataset, 4, seed=1).state_dict()
    with pytest.raises(UsageError, match="they differ in seed"):
        Loader(dataset, 4, seed=2).load_state_dict(state)


def test_seeded_transforms_draw_the_same_everywhere(raw_path):
    dataset = open_dataset(raw_path, fields=["key"], transform=Noise())

    def drawn(batches):
        return {k: d for batch in batches for k, d in zip(batch["key"], batch["drawn"].tolist(), strict=True)}

    expected = drawn(Loader(dataset, 8, seed=4, workers=1))
    assert len(set(expected.values())) == 60
    assert drawn(Loader(dataset, 5, seed=4, workers=3)) == expected
    assert drawn(Loader(open_dataset(raw_path, fields=["key"]), 5, seed=4, sample_transform=Noise())) == expected
    ranks = [Loader(dataset, 5, seed=4, rank=rank, world_size=4) for rank in range(4)]
    assert drawn(batch for loader in ranks for batch in loader) == expected
    sampler = dataset.sampler(seed=4)
    loader = DataLoader(dataset, 8, sampler=sampler, num_workers=2, collate_fn=dataset.collate, persistent_workers=True)
    assert drawn(loader) == expected
    second = drawn(loader)  # the workers persist, so only the indices can tell them of the new epoch
    assert second != expected
    loader_of_two = Loader(dataset, 8, seed=4)
    loader_of_two.set_epoch(1)
    assert drawn(loader_of_two) == second
    del loader


def test_transforms_that_change_shapes_and_fields(raw_path):
    def crop(sample):
        return {"image": sample["image"][4:20, 4:20], "double": sample["label"] * 2, "name": sample["key"]}

    batches = list(Loader(open_dataset(raw_path), 16, shuffle=False, sample_transform=crop))
    assert batches[0]["image"].shape == (16, 3, 16, 16)
    assert torch.cat([b["double"] for b in batches]).tolist() == [i % 3 * 2 for i in range(60)]
    assert [name for b in batches for name in b["name"]] == keys(60)
    expected = open_dataset(raw_path)[20]["image"][4:20, 4:20]
    assert np.array_equal(batches[1]["image"][4].permute(1, 2, 0).numpy(), expected)


def test_each_thread_has_its_own_transform(raw_path):
    threads_of = {}

    class Stateful:
        def __call__(self, sample):
            threads_of.setdefault(id(self), set()).add(threading.get_ident())
            time.sleep(0.0005)
            return sample

    original = Stateful()
    for _ in Loader(open_dataset(raw_path), 4, workers=3, sample_transform=original):
        pass
    assert threads_of.pop(id(original)) == {threading.get_ident()}  # the samples tried first
    assert len(threads_of) > 1
    assert all(len(threads) == 1 for threads in threads_of.values())


# Memory.


def test_no_batch_that_is_referred_to_is_overwritten(tmp_path):
    path = write_crops(tmp_path / "d", "npy", None, count=200, size=64)
    dataset = open_dataset(path)
    loader = Loader(dataset, 8, workers=3)
    rng = np.random.default_rng(0)
    kinds = [
        lambda image: image,
        lambda image: image[3],
        lambda image: image.numpy(),
        lambda image: image.numpy()[1:, :, ::2],
        lambda image: image.permute(0, 2, 3, 1).reshape(-1)[100:],
        lambda image: image.untyped_storage(),
        lambda image: np.asarray(memoryview(image.permute(0, 2, 3, 1).numpy())),
        lambda image: torch.from_dlpack(image),
        lambda image: image.data_ptr() and image.view(torch.int8)[0],
        lambda image: image.unfold(2, 8, 8)[0, 0],
    ]

    def bytes_of(view):
        if isinstance(view, torch.UntypedStorage):
            return bytes(view)
        return (view if isinstance(view, np.ndarray) else view.numpy()).tobytes()

    kept = []
    reused = set()
    for _ in range(3):
        for batch in loader:
            reused.add(batch["image"].data_ptr())
            view = kinds[int(rng.integers(len(kinds)))](batch["image"])
            del batch
            if rng.random() < 0.5:
                kept.append((view, bytes_of(view)))
            if len(kept) > 25:
                kept.pop(int(rng.integers(len(kept))))
            del view
        for view, expected in kept:
            assert bytes_of(view) == expected
            del view
    assert len(reused) < 70, "memory was never used again"


def test_a_list_of_all_batches_holds_them_all(raw_path):
    dataset = open_dataset(raw_path)
    batches = list(Loader(dataset, 2, shuffle=False, workers=2, prefetch=2))
    images = torch.cat([batch["image"] for batch in batches]).permute(0, 2, 3, 1).numpy()
    assert np.array_equal(images, dataset.column("image"))


def test_the_ring_gives_back_memory_when_the_last_view_goes():
    ring = Ring(4, keep=2)
    layout = {"image": ValueLayout((256, 256), np.dtype(np.uint8))}
    array = ring.take(layout, 4)["image"]
    address = array.ctypes.data
    view = torch.from_numpy(array)[2:].numpy()[1, 5:]
    del array
    gc.collect()
    other = ring.take(layout, 4)["image"]
    assert other.ctypes.data != address
    del view
    gc.collect()
    again = ring.take(layout, 3)["image"]
    assert again.ctypes.data == address
    assert again.shape == (3, 256, 256)
    many = [ring.take(layout, 4)["image"] for _ in range(5)]
    del many, again, other
    gc.collect()
    assert len(ring._free["image"]) == 2


def test_batches_that_are_dropped_use_few_buffers(raw_path):
    loader = Loader(open_dataset(raw_path, fields=["image"]), 16, workers=2, prefetch=3)
    addresses = {batch["image"].data_ptr() for _ in range(20) for batch in loader}
    assert len(addresses) <= 3 + 2 + 1  # the loop's own variable holds one more while the next is taken


_TWENTY_EPOCHS = """
import sys
import torch
from readers import Loader, open_dataset
def anonymous_bytes():
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
loader = Loader(open_dataset(sys.argv[1]), 64, workers=2, prefetch=3)
epochs = []
for epoch in range(20):
    for batch in loader:
        pass
    epochs.append(anonymous_bytes())
print(epochs[-1] - epochs[2])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's account of memory")
def test_memory_is_flat_over_twenty_epochs(tmp_path):
    path = write_crops(tmp_path / "d", "npy", None, count=400, size=128, shard_rows=150)  # 3 MB a batch, 20 MB an epoch
    run = subprocess.run([sys.executable, "-c", _TWENTY_EPOCHS, str(path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 12_000_000


def test_bytes_decoded_per_epoch_are_those_of_the_epoch(jpeg_path, monkeypatch):
    dataset = open_dataset(jpeg_path, fields=["image"])
    codec = dataset._decoding._codecs["image"]
    decode, count = codec.decode, []
    monkeypatch.setattr(codec, "decode", lambda data, out=None: (count.append(1), decode(data, out))[1])
    loader = Loader(dataset, 16, workers=2)
    for epoch in range(1, 4):
        for _ in loader:
            pass
        assert len(count) == 60 * epoch


# Errors and ends.


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
    assert str(caught.value).endswith(f"; sample: key '00000030-000000', row 0 of {path} (row 30 of the dataset)")


def test_a_stuck_read_times_out_and_names_the_file(jpeg_path, monkeypatch):
    release = threading.Event()
    reader_class = open_dataset(jpeg_path).pool._class()
    read = reader_class.read

    def stuck(self, rows, fields, out, at):
        if "image" in fields and self._path.name == "shard-00002.lmdb":
            release.wait(30)
        read(self, rows, fields, out, at)

    monkeypatch.setattr(reader_class, "read", stuck)
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


def test_wrong_arguments(raw_path):
    dataset = open_dataset(raw_path)
    for arguments in ({"batch_size": 0}, {"workers": 0}, {"prefetch": 0}):
        with pytest.raises(UsageError, match="expected 1 or more, found 0"):
            Loader(dataset, **{"batch_size": 4, **arguments})
    with pytest.raises(UsageError, match="expected both or neither"):
        Loader(dataset, 4, rank=1)


def test_a_wrong_shape_from_a_transform_names_the_sample(raw_path):
    def uneven(sample):
        return {"image": sample["image"][: 20 + (sample["key"] == keys(60)[30])]}

    with pytest.raises(
        ValueError, match=r"expected field 'image' as uint8 \(20, 48, 3\).*found uint8 \(21, 48, 3\)"
    ) as caught:
        list(Loader(open_dataset(raw_path), 16, sample_transform=uneven))
    assert "key '00000030-000000'" in caught.value.__notes__[0]


# Batch transforms.


def test_batch_transforms(raw_path):
    class Halve(torch.nn.Module):
        def forward(self, batch):
            return {"image": batch["image"].float() / 255, "label": batch["label"]}

    batch = next(iter(Loader(open_dataset(raw_path), 16, device="cpu", batch_transform=Halve())))
    assert batch["image"].dtype == torch.float32
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)
    assert 0 < float(batch["image"].max()) <= 1


def test_seeded_batch_transforms_get_a_number_per_sample(raw_path):
    class Seeds:
        seeded = True

        def __call__(self, batch, seeds):
            assert seeds.dtype == torch.int64
            return {**batch, "seed": seeds}

    dataset = open_dataset(raw_path, fields=["key"])

    def seeds(epoch, **arguments):
        loader = Loader(dataset, seed=3, batch_transform=Seeds(), **arguments)
        loader.set_epoch(epoch)
        return {k: s for batch in loader for k, s in zip(batch["key"], batch["seed"].tolist(), strict=True)}

    one = seeds(0, batch_size=7)
    assert len(set(one.values())) == 60
    assert seeds(0, batch_size=16, workers=3) == one
    assert set(seeds(1, batch_size=7).values()).isdisjoint(one.values())
