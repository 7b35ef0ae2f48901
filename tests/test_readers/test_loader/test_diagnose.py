"""The diagnosis names what is slow. Delays are sleeps that outweigh everything else many times over."""

import re
import threading
import time
import types

import pytest
import torch

from readers import Loader, Whole, diagnose, open_dataset
from readers.formats.machine import available_processors
from readers.formats.shards import reader_class
from readers.loader import diagnosis
from readers.loader.diagnosis import Diagnosis, _verdict


def test_a_slow_step(raw_path):
    loader = Loader(open_dataset(raw_path), 5)
    found = diagnose(loader, lambda batch: time.sleep(0.25), batches=4)
    assert str(found).startswith("The step is the limit")
    assert found.step_rate < 20
    assert found.loader_rate > found.step_rate


def test_a_slow_transform(raw_path):
    def slow(sample):
        time.sleep(0.02)
        return sample

    loader = Loader(open_dataset(raw_path), 5, sample_transform=slow)
    found = diagnose(loader, lambda batch: None, batches=8)
    assert found.verdict.startswith("The loader is the limit")
    assert "Transforms take " in found.verdict
    assert found.transform_s > 0.019
    assert found.waiting > 0.5


def test_a_slow_batch_transform(raw_path):
    def slow(batch):
        time.sleep(0.05)
        return batch

    found = diagnose(Loader(open_dataset(raw_path), 5, batch_transform=slow), lambda batch: None, batches=8)
    assert "copies to the device and batch_transform, which run in the loop's own thread" in found.verdict
    assert found.moving > 0.5


def test_a_slow_disk(jpeg_path, monkeypatch):
    dataset = open_dataset(jpeg_path)
    reader = reader_class(dataset.pool.manifest.format)
    read = reader.read

    def slow(self, rows, fields, out, at):
        time.sleep(0.03)
        read(self, rows, fields, out, at)

    monkeypatch.setattr(reader, "read", slow)
    found = diagnose(Loader(dataset, 10), lambda batch: None, batches=6)
    assert "for the disk or network: shuffle='blocks'" in found.verdict
    assert found.read_processor < 0.5
    found = diagnose(Loader(dataset, 10, shuffle="blocks"), lambda batch: None, batches=6)
    assert "for the disk or network: a greater read_ahead (now 0)" in found.verdict
    assert found.order == "order 'blocks', as asked for; 0 batches read ahead"


@pytest.mark.parametrize("statistics", [None, "0 0 0\n"])
def test_where_the_system_does_not_count_the_wait_for_a_processor_the_disk_is_not_blamed(
    jpeg_path, monkeypatch, tmp_path, statistics
):
    """As in a container or a kernel without these statistics, and everywhere but on Linux."""
    if statistics is not None:
        (tmp_path / "schedstat").write_text(statistics)
    monkeypatch.setattr(diagnosis, "_SCHEDULING", tmp_path / "schedstat")
    dataset = open_dataset(jpeg_path)
    reader = reader_class(dataset.pool.manifest.format)
    read = reader.read
    monkeypatch.setattr(reader, "read", lambda *given: (time.sleep(0.03), read(*given)))
    found = diagnose(Loader(dataset, 10), lambda batch: None, batches=6)
    assert found.read_queue is None
    assert "for the disk, the network or a free processor" in found.verdict


def test_a_stager_that_starts_again_meanwhile_gives_no_negative_rate(raw_path, monkeypatch):
    counts = iter(range(10**6, 0, -1))
    monkeypatch.setattr(Loader, "stats", lambda self: {"fetched_bytes": next(counts)})
    assert diagnose(Loader(open_dataset(raw_path), 5), lambda batch: None, batches=4).fetched_rate == 0


@pytest.mark.parametrize(
    ("waiting", "moving", "loop", "loader", "step", "verdict"),
    [
        (0.01, 0.0, 95, 900, 100, "The step is the limit: .* Nothing in the loader will make it faster"),
        (0.01, 0.0, 60, 900, 100, "slower with the loader than alone: .* so step and loader take the processors"),
        (0.30, 0.0, 60, 900, 100, "alone it is fast enough, so step and loader take the processors"),
        (0.30, 0.2, 60, 900, 100, "67% of that are copies to the device and batch_transform"),
        (0.90, 0.1, 60, 70, 900, "The loader is the limit: .* Reading and decoding take 1000.00 ms a sample"),
    ],
)
def test_the_verdict_is_of_the_measurements(raw_path, waiting, moving, loop, loader, step, verdict):
    dataset = open_dataset(raw_path)
    made = Loader(dataset, 10, workers=available_processors())
    rates = {"loop_rate": loop, "loader_rate": loader, "step_rate": step}
    times = {"waiting": waiting, "moving": moving, "read_s": 1, "transform_s": 0, "read_processor": 1}
    times |= {"read_queue": 0, "read_faults": None, "fetching": 0}
    found = _verdict(made, Diagnosis(**rates, **times, fetched_rate=0.0, verdict="", order=""))
    assert re.search(verdict, found)
    advice = re.search(r"decode=(.*) for JPEG", found)
    assert advice is None or dataset.with_decode(eval(advice[1], {"Whole": Whole}))[0]["image"].any()


def test_python_code_in_two_threads_is_the_cause(raw_path):
    """Neither the copies nor the batch transform are, whose thread waits for the lock as well."""

    def slow(sample):
        end = time.thread_time() + 0.005
        while time.thread_time() < end:
            pass
        return sample

    loader = Loader(
        open_dataset(raw_path), 5, workers=2, sample_transform=slow, batch_transform=lambda batch: tuple(batch.values())
    )
    found = diagnose(loader, lambda batch: len(batch), batches=8)
    assert "Transforms take" in found.verdict
    assert found.transform_s > 0.0049


def test_a_batch_transform_in_the_threads_is_one_of_the_transforms(raw_path):
    def slow(batch, seeds):
        time.sleep(0.05)
        return batch

    slow.seeded = slow.threaded = True
    found = diagnose(Loader(open_dataset(raw_path), 5, batch_transform=slow), lambda batch: None, batches=6)
    assert found.moving == 0
    assert found.transform_s > 0.009
    assert "Transforms take 1" in found.verdict


def test_a_diagnosis_within_an_epoch_leaves_it_alone(raw_path):
    loader, other = (Loader(open_dataset(raw_path), 6, seed=2) for _ in range(2))
    expected = [[batch["label"].tolist() for batch in other] for _ in range(2)]
    found = []
    for number, batch in enumerate(loader):
        if number == 3:
            diagnose(loader, lambda batch: None, batches=4)
        found.append(batch["label"].tolist())
    assert loader.state_dict() == {**other.state_dict(), "epoch": 0}
    assert [found, [batch["label"].tolist() for batch in loader]] == expected


@pytest.mark.parametrize("steps", [0, 3])
def test_the_loaders_place_is_kept(raw_path, steps):
    loader = Loader(open_dataset(raw_path), 5, shuffle="full", seed=1)
    loader.set_epoch(4)
    iterator = iter(loader)
    for _ in range(steps):
        next(iterator)
    state = loader.state_dict()
    diagnose(loader, lambda batch: None, batches=4)
    assert loader.state_dict() == state
    rest = torch.cat([batch["label"] for batch in iterator])
    assert len(rest) == 60 - 5 * steps
    assert loader.state_dict() == {**state, "consumed": 60}


def test_waiting_for_transforms_is_not_blamed_on_python_code(raw_path):
    """A transform that holds Python's lock slows the loop's thread too; here the mere presence of the threads does."""

    def slow(sample):
        time.sleep(0.02)
        return sample

    def held_back(batch):
        if any(thread.name.startswith("readers-loader") for thread in threading.enumerate()):
            time.sleep(0.08)
        return batch

    loader = Loader(open_dataset(raw_path), 5, workers=2, sample_transform=slow, batch_transform=held_back)
    found = diagnose(loader, lambda batch: None, batches=8)
    assert found.moving < found.waiting / 2
    assert "Transforms take 2" in found.verdict


@pytest.mark.parametrize(
    "form",
    [
        lambda batch: (batch["image"], batch["label"]),
        lambda batch: [batch["image"], {"label": batch["label"]}],
        lambda batch: batch["image"],
        lambda batch: types.SimpleNamespace(**batch),
    ],
)
def test_batches_of_any_form_are_measured(raw_path, form):
    seen = []
    loader = Loader(open_dataset(raw_path), 7, batch_transform=form)
    found = diagnose(loader, seen.append, batches=3)
    assert found.loop_rate > 0
    assert found.step_rate > 0
    assert {type(batch) for batch in seen} == {type(form({"image": torch.zeros(1), "label": torch.zeros(1)}))}
