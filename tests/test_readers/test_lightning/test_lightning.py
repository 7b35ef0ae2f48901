"""The data module: two processes of DDP, resumes inside an epoch at other numbers of ranks, both kinds of loader."""

import gc
import json
import os
import pickle
import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.tuner import Tuner
from lightning.pytorch.utilities import CombinedLoader
from support.batches import woven
from support.crops import keys
from support.datasets import fixed, text, write_dataset
from support.lightning_ddp import (
    BATCH_SIZE,
    LIGHTNINGS_WARNINGS,
    SAMPLES,
    SAVED_AFTER,
    Recorder,
    SaveInside,
    batches_of,
    expected_keys,
    make_data,
    make_trainer,
)
from support.ranks import run_script
from torch.utils.data import BatchSampler

import packer
from readers import Loader, MixedDataset, open_dataset
from readers.lightning import PackedDataModule
from readers.lightning.batches import EvalBatches
from shardspec.errors import UsageError
from shardspec.schema import Schema

pytestmark = [pytest.mark.filterwarnings(text) for text in LIGHTNINGS_WARNINGS]

SCRIPT = Path(__file__).parents[2] / "support" / "lightning_ddp.py"
BATCHES = -(-SAMPLES // BATCH_SIZE)


def seen_by(ranks: list[list[list[str]]]) -> list[str]:
    """The samples of all ranks' batches in the order of the whole sequence."""
    return woven([[key for batch in batches for key in batch] for batches in ranks])


@pytest.fixture(scope="module")
def ddp(jpeg_path, tmp_path_factory) -> Path:
    """Samples that two processes saw, and the checkpoint that they left."""
    out = tmp_path_factory.mktemp("ddp")
    done = run_script(SCRIPT, jpeg_path, out)
    assert "not resumable" not in done.stderr
    return out


def results(out: Path, name: str) -> list[dict[str, object]]:
    return [json.loads((out / f"{name}-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("epoch", [0, 1])
def test_two_ranks_share_every_epoch(ddp, jpeg_path, epoch):
    found = results(ddp, "first")
    assert [one["ranks"] for one in found] == [2, 2]
    assert [one["steps"] for one in found] == [2 * 8, 2 * 8]
    keys = seen_by([one["seen"][f"train {epoch}"] for one in found])
    assert len(keys) == 60, "one sample is repeated, so that both ranks have 30"
    assert keys[:SAMPLES] == expected_keys(jpeg_path, epoch)
    assert keys[SAMPLES] == keys[0]
    validated = seen_by([one["seen"][f"val {epoch}"] for one in found])
    assert validated[:7] == [f"{i:08d}-000000" for i in range(7)]


@pytest.mark.parametrize("kind", ["Loader", "DataLoader"])
@pytest.mark.parametrize("epoch", [0, 1])
def test_lightning_divides_no_samples_that_are_divided_already(ddp, jpeg_path, kind, epoch):
    seen = [result["seen"][f"train {epoch}"] for result in results(ddp, kind)]
    assert seen_by(seen)[:SAMPLES] == expected_keys(jpeg_path, epoch)


def test_two_ranks_take_the_automatic_order_of_rank_0(ddp, jpeg_path):
    keys = seen_by([result["seen"]["train 0"] for result in results(ddp, "auto")])
    assert keys[:SAMPLES] == expected_keys(jpeg_path, 0, "blocks")


def test_a_resume_continues_with_the_next_sample_in_the_other_kind_of_loader(ddp):
    first, second = results(ddp, "first"), results(ddp, "second")
    for before, after in zip(first, second, strict=True):
        assert set(after["seen"]) == {"train 1", "val 1"}
        assert after["seen"]["train 1"] == before["seen"]["train 1"][SAVED_AFTER:]
        assert after["seen"]["val 1"] == before["seen"]["val 1"]
        assert after["steps"] == before["steps"]


def test_two_ranks_continue_the_epoch_in_which_they_were_stopped(ddp):
    for whole, stopped, rest in zip(*(results(ddp, name) for name in ("first", "stopped", "continued")), strict=True):
        assert stopped["seen"]["train 1"] + rest["seen"]["train 1"] == whole["seen"]["train 1"]
        assert set(rest["seen"]) == {"train 1", "val 1"}
        assert rest["steps"] == whole["steps"]


@pytest.mark.parametrize("name", ["inside", "stopped"])
def test_one_rank_takes_over_from_two(ddp, jpeg_path, tmp_path, name):
    model = Recorder()
    trainer = make_trainer(tmp_path, max_epochs=3)
    trainer.fit(model, datamodule=make_data(jpeg_path), ckpt_path=ddp / f"{name}.ckpt")
    left = SAMPLES - SAVED_AFTER * 2 * BATCH_SIZE
    assert [len(batch) for batch in model.seen["train 1"]] == [BATCH_SIZE] * (left // BATCH_SIZE) + [left % BATCH_SIZE]
    assert seen_by([model.seen["train 1"]]) == expected_keys(jpeg_path, 1)[-left:]
    assert seen_by([model.seen["train 2"]]) == expected_keys(jpeg_path, 2)
    assert set(model.seen) == {"train 1", "val 1", "train 2", "val 2"}, "the resumed epoch is validated like any other"


def named(batches: list[list[int]]) -> list[list[str]]:
    """The keys of rows."""
    return [[f"{row:08d}-000000" for row in batch] for batch in batches]


@pytest.mark.parametrize("epoch", [0, 1])
def test_two_ranks_share_the_batches_of_a_custom_order(ddp, epoch):
    first, second = (one["seen"][f"train {epoch}"] for one in results(ddp, "own"))
    order = named(batches_of(epoch))
    assert first == order[::2]
    assert second == [*order[1::2], order[0]], "nine batches do not divide by two ranks"


def test_one_rank_continues_a_custom_order_of_two(ddp, jpeg_path, tmp_path):
    model = Recorder()
    data = make_data(jpeg_path, order=batches_of, batch_size=None)
    make_trainer(tmp_path, max_epochs=3).fit(model, data, ckpt_path=ddp / "own.ckpt")
    assert model.seen["train 1"] == named(batches_of(1))[2 * SAVED_AFTER :]
    assert model.seen["train 2"] == named(batches_of(2))
    assert data.batch_size == max(map(len, batches_of(0)))


def rows_of(epoch: int) -> list[int]:
    """Other rows every epoch, and other numbers of them."""
    return np.random.default_rng(epoch).integers(0, SAMPLES, 21 + 6 * epoch).tolist()


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_an_order_of_rows_whose_epochs_differ_in_length(jpeg_path, tmp_path, kind):
    saver = SaveInside(tmp_path / "inside.ckpt", 1)
    options = {"order": rows_of, "views": 2}
    whole = Pairs()
    make_trainer(tmp_path, reload_dataloaders_every_n_epochs=1, max_epochs=3, callbacks=[saver]).fit(
        whole, make_data(jpeg_path, kind, **options)
    )
    expected = {f"train {epoch}": named([rows_of(epoch)])[0] for epoch in range(3)}
    assert {name: seen_by([batches]) for name, batches in whole.seen.items() if "train" in name} == expected
    resumed = Pairs()
    make_trainer(tmp_path, reload_dataloaders_every_n_epochs=1, max_epochs=3).fit(
        resumed, make_data(jpeg_path, kind, **options), ckpt_path=tmp_path / "inside.ckpt"
    )
    assert resumed.seen["train 1"] == whole.seen["train 1"][SAVED_AFTER:]
    assert resumed.seen["train 2"] == whole.seen["train 2"]
    assert torch.equal(resumed.layer.weight, whole.layer.weight)


def test_a_sampler_of_torchs_kind(jpeg_path):
    sampler = BatchSampler([5, 3, 5, 1], 3, drop_last=False)
    data = PackedDataModule(open_dataset(jpeg_path, fields=["key"]), train_options={"batch_sampler": sampler})
    assert [batch["key"] for batch in data.train_dataloader()] == named([[5, 3, 5], [1]])
    data.teardown("fit")


def test_epochs_of_other_lengths_need_new_batches(jpeg_path, tmp_path):
    with pytest.raises(UsageError, match=r"expected 6 batches in epoch 1, .*reload_dataloaders_every_n_epochs=1"):
        make_trainer(tmp_path).fit(Recorder(), make_data(jpeg_path, order=rows_of))


class Pairs(Recorder):
    """Trains on both views of each sample."""

    def training_step(self, batch, batch_idx):
        assert batch["image"].shape[1] == 2
        return super().training_step({**batch, "image": batch["image"].float().mean(1)}, batch_idx)


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_the_loop_is_counted_and_not_what_was_read_ahead(jpeg_path, tmp_path, kind):
    model = Recorder()
    data = make_data(jpeg_path, kind, prefetch=4)
    make_trainer(tmp_path, callbacks=[SaveInside(tmp_path / "inside.ckpt", 0)], max_epochs=1).fit(model, data)
    assert data.state_dict()["consumed"] == SAMPLES
    state = torch.load(tmp_path / "inside.ckpt", weights_only=True)["PackedDataModule"]
    assert (state["epoch"], state["consumed"]) == (0, SAVED_AFTER * BATCH_SIZE)
    resumed = Recorder()
    again = make_data(jpeg_path, kind)
    trainer = make_trainer(tmp_path, max_epochs=1)
    trainer.fit(resumed, again, ckpt_path=tmp_path / "inside.ckpt")
    assert resumed.seen["train 0"] == model.seen["train 0"][SAVED_AFTER:]
    assert trainer.global_step == BATCHES
    assert torch.equal(resumed.layer.weight, model.layer.weight)


class SaveAt(Callback):
    """Saves a checkpoint whenever a hook is called."""

    def __init__(self, hook: str, path: Path) -> None:
        setattr(self, hook, lambda trainer, *_: trainer.save_checkpoint(path))


@pytest.mark.parametrize(
    ("hook", "drop_last", "max_steps"),
    [
        ("on_validation_end", False, -1),
        ("on_validation_end", True, 2 * BATCHES),
        ("on_train_epoch_end", True, -1),
        ("on_train_epoch_end", False, 2 * BATCHES),
        ("on_fit_end", False, -1),
        ("on_fit_end", False, 2 * BATCHES),
    ],
)
def test_a_resume_at_an_epochs_end_begins_the_next(jpeg_path, tmp_path, drop_last, hook, max_steps):
    saver = SaveAt(hook, tmp_path / "end.ckpt")
    make_trainer(tmp_path, max_epochs=1, callbacks=[saver]).fit(Recorder(), make_data(jpeg_path, drop_last=drop_last))
    assert torch.load(tmp_path / "end.ckpt", weights_only=True)["PackedDataModule"]["consumed"] == SAMPLES
    model, trainer = Recorder(), make_trainer(tmp_path, max_steps=max_steps)
    trainer.fit(model, make_data(jpeg_path, drop_last=drop_last), ckpt_path=tmp_path / "end.ckpt")
    whole = SAMPLES // BATCH_SIZE * BATCH_SIZE if drop_last else SAMPLES
    assert "train 0" not in model.seen
    assert seen_by([model.seen["train 1"]]) == expected_keys(jpeg_path, 1)[:whole]


class StopInside(Callback):
    """Ends the run inside the second epoch, as ``Trainer(max_time=…)`` does."""

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        trainer.should_stop = trainer.global_step == STOPPED_AFTER


STOPPED_AFTER = BATCHES + SAVED_AFTER


@pytest.mark.parametrize(
    ("kind", "stopping", "hook", "options"),
    [
        ("threads", {"max_steps": STOPPED_AFTER}, "on_train_epoch_end", {}),
        ("processes", {"max_steps": STOPPED_AFTER}, "on_fit_end", {"max_steps": 3 * BATCHES}),
        ("threads", {"callbacks": [StopInside()]}, "on_train_epoch_end", {"max_steps": 3 * BATCHES}),
        ("processes", {"callbacks": [StopInside()]}, "on_fit_end", {}),
    ],
)
def test_a_stopped_run_resumes_with_the_next_batch(jpeg_path, tmp_path, kind, stopping, hook, options):
    torch.manual_seed(0)
    whole, first, rest = Recorder(), Recorder(), Recorder()
    first.load_state_dict(whole.state_dict())
    make_trainer(tmp_path, max_epochs=3).fit(whole, make_data(jpeg_path, kind))
    callbacks = [*stopping.get("callbacks", ()), SaveAt(hook, tmp_path / "stopped.ckpt")]
    make_trainer(tmp_path, max_epochs=3, **{**stopping, "callbacks": callbacks}).fit(first, make_data(jpeg_path, kind))
    trainer = make_trainer(tmp_path, max_epochs=3, **options)
    trainer.fit(rest, make_data(jpeg_path, kind), ckpt_path=tmp_path / "stopped.ckpt")
    assert first.seen["train 1"] == whole.seen["train 1"][:SAVED_AFTER]
    expected = {name: batches for name, batches in whole.seen.items() if "0" not in name}
    assert rest.seen == {**expected, "train 1": whole.seen["train 1"][SAVED_AFTER:]}
    assert (trainer.global_step, trainer.current_epoch) == (3 * BATCHES, 3)
    assert torch.equal(rest.layer.weight, whole.layer.weight)


def test_the_same_trainer_continues_the_epoch_in_which_it_was_stopped(jpeg_path, tmp_path):
    model, data, trainer = Recorder(), make_data(jpeg_path), make_trainer(tmp_path, max_steps=STOPPED_AFTER)
    trainer.fit(model, data)
    trainer.fit_loop.epoch_loop.max_steps = -1
    trainer.fit(model, data)
    assert seen_by([model.seen["train 1"]]) == expected_keys(jpeg_path, 1)


def test_gradients_that_lightning_drops_are_reported(jpeg_path, tmp_path):
    saver = SaveInside(tmp_path / "inside.ckpt", 0)
    make_trainer(tmp_path, callbacks=[saver], accumulate_grad_batches=2).fit(Recorder(), make_data(jpeg_path))
    assert SAVED_AFTER % 2 == 1
    with pytest.warns(UserWarning, match=r"^The run .* The 1 batch since the last step will not contribute"):
        make_trainer(tmp_path, accumulate_grad_batches=2).fit(
            Recorder(), make_data(jpeg_path), ckpt_path=tmp_path / "inside.ckpt"
        )


def test_no_batch_to_train_on_is_reported(jpeg_path):
    data = make_data(jpeg_path, batch_size=60, drop_last=True)
    with pytest.warns(UserWarning, match="leaves no batch of an epoch of 59 samples, .* 60 samples on each of 1 rank"):
        assert len(data.train_dataloader()) == 0
    data.teardown("fit")


def test_the_batch_size_finder_tries_validation_too(jpeg_path, tmp_path):
    sizes = set()

    class Validated(Recorder):
        def validation_step(self, batch, batch_idx):
            sizes.add(len(batch["key"]))

    dataset = open_dataset(jpeg_path, fields=["key", "image", "label"])
    data = PackedDataModule(dataset, dataset, batch_size=2)
    finder = Tuner(make_trainer(tmp_path))
    finder.scale_batch_size(Validated(), datamodule=data, method="validate", max_trials=2, steps_per_trial=1)
    assert sizes == {2, 4}
    data = PackedDataModule(dataset, dataset, batch_size=2, val_options={"batch_size": 3})
    data.batch_size = 8
    assert [len(next(iter(batches))["key"]) for batches in (data.train_dataloader(), data.val_dataloader())] == [8, 3]
    data.teardown("fit")


def test_a_resume_with_another_batch_size_counts_batches_again(jpeg_path, tmp_path):
    saver = SaveInside(tmp_path / "inside.ckpt", 0)
    make_trainer(tmp_path, callbacks=[saver], max_epochs=1).fit(Recorder(), make_data(jpeg_path))
    model = Recorder()
    data = make_data(jpeg_path, batch_size=9)
    make_trainer(tmp_path).fit(model, data, ckpt_path=tmp_path / "inside.ckpt")
    left = SAMPLES - SAVED_AFTER * BATCH_SIZE
    assert [len(batch) for batch in model.seen["train 0"]] == [9] * (left // 9) + [left % 9]
    assert seen_by([model.seen["train 0"]]) == expected_keys(jpeg_path, 0)[-left:]
    assert seen_by([model.seen["train 1"]]) == expected_keys(jpeg_path, 1)
    assert len(model.seen["train 1"]) == -(-SAMPLES // 9)


@pytest.mark.parametrize("order", [None, rows_of])
def test_overfitting_takes_the_same_batches_every_epoch(jpeg_path, tmp_path, order):
    model = Recorder()
    with pytest.warns(UserWarning, match="turning off"):
        make_trainer(tmp_path, overfit_batches=2).fit(model, make_data(jpeg_path, order=order))
    assert model.seen["train 0"] == model.seen["train 1"]
    rows = range(SAMPLES) if order is None else rows_of(0)
    assert [seen_by([model.seen["train 0"]])] == named([rows[: 2 * BATCH_SIZE]])


def by_label(path: Path) -> list[list[list[str]]]:
    """The batches of one label each that a Loader makes in two epochs."""
    dataset = open_dataset(path, fields=["key", "image", "label"]).subset(range(SAMPLES))
    loader = Loader(dataset, BATCH_SIZE, batch_by="label", seed=5)
    return [[batch["key"] for batch in loader] for _ in range(2)]


def test_batches_of_one_label_are_resumed(jpeg_path, tmp_path):
    saver = SaveInside(tmp_path / "inside.ckpt", 1)
    whole, resumed = Recorder(), Recorder()
    make_trainer(tmp_path, callbacks=[saver]).fit(whole, make_data(jpeg_path, batch_by="label"))
    assert [whole.seen["train 0"], whole.seen["train 1"]] == by_label(jpeg_path)
    data = make_data(jpeg_path, batch_by="label")
    make_trainer(tmp_path).fit(resumed, data, ckpt_path=tmp_path / "inside.ckpt")
    assert resumed.seen["train 1"] == whole.seen["train 1"][SAVED_AFTER:]
    assert data.batch_size == BATCH_SIZE


def test_batches_of_one_shape_are_tensors(tmp_path):
    with packer.Writer(tmp_path / "out", encode="png", progress=False) as writer:
        for number in range(12):
            wide = number % 3 == 0
            writer.write(image=np.zeros((8, 16 if wide else 8, 3), np.uint8), label=int(wide))
    data = PackedDataModule(tmp_path / "out", batch_size=4, train_options={"batch_by": "label"})
    assert sorted(tuple(batch["image"].shape) for batch in data.train_dataloader()) == [
        (4, 3, 8, 8),
        (4, 3, 8, 8),
        (4, 3, 8, 16),
    ]
    data.teardown("fit")


@pytest.mark.parametrize("options", [{"val_options": {"batch_by": "label"}}, {"loader": "processes"}])
def test_batches_of_one_value_are_made_by_threads_for_training(jpeg_path, options):
    with pytest.raises(UsageError, match="batch_by"):
        PackedDataModule(jpeg_path, batch_size=4, **{"train_options": {"batch_by": "label"}, **options})


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_loaders_that_lightning_drops_are_not_kept(jpeg_path, tmp_path, kind):
    data = make_data(jpeg_path, kind)
    make_trainer(tmp_path, max_epochs=3, reload_dataloaders_every_n_epochs=1).fit(Recorder(), data)
    kept = [weakref.ref(data.val_dataloader()) for _ in range(3)]
    gc.collect()
    assert [ref() for ref in kept] == [None] * 3


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_copy_makes_separate_batches(jpeg_path, kind):
    data = make_data(jpeg_path, kind)
    batches, validation = data.train_dataloader(), data.val_dataloader()
    first = next(iter(batches))["key"]
    sent = pickle.loads(pickle.dumps(data))  # as strategy="ddp_spawn" sends it to every rank
    assert next(iter(sent.train_dataloader()))["key"] == first
    assert [batch["key"] for batch in sent.val_dataloader()] == [batch["key"] for batch in validation]
    sent.teardown("fit")
    assert len(list(batches)) == BATCHES, "those of the original are not closed"
    data.teardown("fit")


def test_options_go_where_they_belong(jpeg_path):
    def mark(sample):
        return {**sample, "mark": 1}

    dataset = open_dataset(jpeg_path, fields=["key"])
    data = PackedDataModule(
        *[dataset] * 4,
        batch_size=8,
        train_options={"sample_transform": mark, "drop_last": True},
        val_options={"batch_size": 20, "views": [mark]},
        predict_options={"batch_size": 30},
    )
    assert [set(batch) for batch in data.train_dataloader()] == [{"key", "mark"}] * 7
    validation, test = data.val_dataloader(), data.test_dataloader()
    for batches in (validation, test):
        assert [(set(batch), len(batch["key"])) for batch in batches] == [({"key", "mark"}, 20)] * 3
    assert [(set(batch), len(batch["key"])) for batch in data.predict_dataloader()] == [({"key"}, 30)] * 2
    assert PackedDataModule(dataset, batch_size=8).test_dataloader() == []
    data.teardown("fit")
    with pytest.raises(UsageError, match="closed at the end of the stage"):
        iter(validation)


class KeyPredictor(Recorder):
    """Predicts each sample's key."""

    def predict_step(self, batch, batch_idx):
        return batch["key"]


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_predictions_come_in_stored_order(jpeg_path, tmp_path, kind):
    predicted = open_dataset(jpeg_path, fields=["key"]).subset(range(19))
    data = PackedDataModule(jpeg_path, predict=predicted, batch_size=8, loader=kind, predict_options={"workers": 1})
    batches = make_trainer(tmp_path).predict(KeyPredictor(), datamodule=data)
    assert [len(batch) for batch in batches] == [8, 8, 3]
    assert [key for batch in batches for key in batch] == list(predicted.column("key"))


class PartRecorder(Recorder):
    """Notes which samples it validates on, by the number of the dataset."""

    def validation_step(self, batch, batch_idx, dataloader_idx):
        self.seen.setdefault(f"val {dataloader_idx}", []).extend(batch["key"])


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_mixture_is_drawn_by_weights_and_several_datasets_validate(jpeg_path, raw_path, tmp_path, kind):
    one, other = (open_dataset(path, fields=["key", "image", "label"]) for path in (jpeg_path, raw_path))
    mixed = MixedDataset([one, other.subset(range(10))])
    weights = np.isin(np.arange(70), [13, 64])  # rows 13 of one and 4 of the other
    parts, options = [one.subset(range(5)), other.subset(range(5, 14))], {"weights": weights, "draws": 20, "workers": 1}
    data = PackedDataModule(mixed, parts, batch_size=8, loader=kind, train_options=options, val_options={"workers": 1})
    model, trainer = PartRecorder(), make_trainer(tmp_path, max_epochs=1)
    trainer.fit(model, datamodule=data)
    assert {key for batch in model.seen["train 0"] for key in batch} == {keys(60)[13], keys(60)[4]}
    assert [model.seen[f"val {number}"] for number in range(2)] == [keys(60)[:5], keys(60)[5:14]]
    assert len(trainer.validate(model, datamodule=data, verbose=False)) == 2
    assert PackedDataModule(one, test=[jpeg_path], batch_size=8).test[0].path == one.path


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_prediction_writer_gets_the_rows(jpeg_path, tmp_path, kind):
    class Writer(BasePredictionWriter):
        def write_on_batch_end(self, trainer, module, prediction, batch_indices, *_):
            assert prediction == [keys_of_rows[row] for row in batch_indices]

        def write_on_epoch_end(self, trainer, module, predictions, batch_indices):
            assert batch_indices == [[list(range(8)), list(range(8, 16)), [16, 17, 18]]]
            written.append(predictions)

    written: list[Any] = []
    predicted = open_dataset(jpeg_path, fields=["key"]).subset(range(20, 39))
    keys_of_rows = predicted.column("key")
    data = PackedDataModule(jpeg_path, predict=predicted, batch_size=8, loader=kind, predict_options={"workers": 1})
    make_trainer(tmp_path, callbacks=[Writer("batch_and_epoch")]).predict(KeyPredictor(), datamodule=data)
    assert len(written) == 1


def test_the_rows_of_a_ranks_batches(jpeg_path):
    dataset = open_dataset(jpeg_path, fields=["key"]).subset(range(19))
    loader = Loader(dataset, 4, shuffle=False, rank=1, world_size=2, workers=1)
    batches = EvalBatches(loader, loader, 4)
    rows = batches.batch_sampler.seen_batch_indices
    assert [rows[number] for number in range(len(batches))] == [[1, 3, 5, 7], [9, 11, 13, 15], [17, 0]]
    assert [batch["key"] for batch in batches] == named([[1, 3, 5, 7], [9, 11, 13, 15], [17, 0]])


@pytest.mark.parametrize("role", ["val", "test", "predict"])
def test_labels_of_other_classes_are_refused(tmp_path, role):
    """Packed apart, `cats, dogs` and `dogs, wolves` give label 0 two meanings."""
    for name, classes in (("one", ("cats", "dogs")), ("other", ("dogs", "wolves"))):
        schema = Schema((text("key"), fixed("label", "<i8", classes=classes)))
        write_dataset(tmp_path / name, "npy", schema, {"key": keys(2), "label": np.arange(2)})
    message = r"found label 0 as 'cats' in train \(of 2\), and as 'dogs' in " + role + ".*: number both by one list"
    for source in (tmp_path / "other", [tmp_path / "one", tmp_path / "other"]):
        with pytest.raises(UsageError, match=message):
            PackedDataModule(tmp_path / "one", batch_size=2, **{role: source})
    PackedDataModule(tmp_path / "one", batch_size=2, **{role: tmp_path / "one"})
    keys_only = [open_dataset(tmp_path / name, fields=["key"]) for name in ("one", "other")]
    PackedDataModule(keys_only[0], batch_size=2, **{role: keys_only[1]})


def test_slurm_variables_do_not_affect_these_tests(tmp_path, monkeypatch):
    """Lightning's hint about ``srun``, if it is there, is none of ours; what is not ignored here fails a test."""
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert shutil.which("srun") == str(srun)
    assert make_trainer(tmp_path).world_size == 1


class WithLoader(Recorder):
    """Makes a Loader whenever Lightning asks for one."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def train_dataloader(self) -> Loader:
        return make_loader(self._path)


def make_loader(path: Path) -> Loader:
    dataset = open_dataset(path, fields=["key", "image", "label"])
    return Loader(dataset.subset(range(SAMPLES)), BATCH_SIZE, seed=5, workers=1)


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
@pytest.mark.parametrize("reload", [0, 1, 2])
def test_a_loader_that_lightning_takes_itself_has_lightnings_epochs(jpeg_path, tmp_path, reload):
    """The loader may be passed once, or made again every few epochs."""
    model = WithLoader(jpeg_path) if reload else Recorder()
    trainer = make_trainer(tmp_path, max_epochs=4, reload_dataloaders_every_n_epochs=reload)
    trainer.fit(model, None if reload else make_loader(jpeg_path))
    found = {name: seen_by([batches]) for name, batches in model.seen.items()}
    assert found == {f"train {epoch}": expected_keys(jpeg_path, epoch) for epoch in range(4)}


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
@pytest.mark.parametrize(("limit", "hook"), [(1.0, "on_train_epoch_end"), (5, "on_train_epoch_end"), (5, "on_fit_end")])
def test_lightning_resumes_a_loader_at_an_epochs_end(jpeg_path, tmp_path, limit, hook):
    saver = SaveAt(hook, tmp_path / "end.ckpt")
    trainer = make_trainer(tmp_path, max_epochs=1, limit_train_batches=limit, callbacks=[saver])
    trainer.fit(Recorder(), make_loader(jpeg_path))
    model = Recorder()
    trainer = make_trainer(tmp_path, max_epochs=3, limit_train_batches=limit)
    trainer.fit(model, make_loader(jpeg_path), ckpt_path=tmp_path / "end.ckpt")
    taken = SAMPLES if limit == 1.0 else limit * BATCH_SIZE
    found = {name: seen_by([batches]) for name, batches in model.seen.items()}
    assert found == {f"train {epoch}": expected_keys(jpeg_path, epoch)[:taken] for epoch in (1, 2)}


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_the_shorter_of_two_loaders_repeats_no_epoch(jpeg_path, tmp_path):
    """It is iterated over several times in each of Lightning's epochs."""
    dataset = open_dataset(jpeg_path, fields=["key"])
    loaders = {"long": make_loader(jpeg_path), "short": Loader(dataset.subset(range(12)), 3, seed=5, workers=1)}

    class Pairs(Recorder):
        def training_step(self, batch, batch_idx):
            self.seen.setdefault("short", []).append(batch["short"]["key"])
            return super().training_step(batch["long"], batch_idx)

    model = Pairs()
    make_trainer(tmp_path).fit(model, CombinedLoader(loaders, "max_size_cycle"))
    short = [key for batch in model.seen["short"] for key in batch]
    epochs = [tuple(short[start : start + 12]) for start in range(0, len(short) - 11, 12)]
    assert len(set(epochs)) == len(epochs) > 4
    assert {epoch: seen_by([model.seen[epoch]]) for epoch in ("train 0", "train 1")} == {
        f"train {epoch}": expected_keys(jpeg_path, epoch) for epoch in range(2)
    }
