"""Rows by an expression, by key; other decode plans on a view; parts of clips."""

import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.batches import Noise
from support.crops import astronaut_crops, keys
from support.datasets import fixed, text, write_dataset
from support.errors import raises
from support.fuzz import examples

from readers import CenterCrop, Loader, MixedDataset, RandomResizedCrop, Resize, open_dataset
from shardspec.errors import UsageError
from shardspec.schema import Schema

LABELS = np.arange(12) % 3 - (np.arange(12) == 11)  # the last is 1, not 2
SCORES = np.linspace(0, 1, 12).astype(np.float32)
SOURCES = [f"video {i // 4}.mp4" for i in range(12)]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    schema = Schema(
        (
            text("key"),
            text("source"),
            text("note", "json"),
            fixed("label", "<i8", classes=("fake", "real", "it's odd")),
            fixed("score", "<f4"),
            fixed("checked", "|b1"),
            fixed("frame", "<i8"),
            fixed("last", "<i8"),
            fixed("box", "<f4", 4),
        )
    )
    columns = {
        "key": keys(12),
        "source": SOURCES,
        "note": [{"n": n} for n in range(12)],
        "label": LABELS,
        "score": SCORES,
        "checked": np.arange(12) % 2 == 0,
        "frame": np.arange(12),
        "last": np.full(12, 6),
        "box": np.zeros((12, 4), np.float32),
    }
    root = tmp_path_factory.mktemp("table") / "d"
    write_dataset(root, "lmdb", schema, columns, shard_rows=5)
    return open_dataset(root, fields=["key", "label"])


EXPRESSIONS = {
    "label == 'fake' and score > 0.5": (LABELS == 0) & (SCORES > 0.5),
    "label != 'fake' or not checked": (LABELS != 0) | (np.arange(12) % 2 == 1),
    'label in ["fake", "it\'s odd"]': LABELS != 1,
    "label not in ('real',)": LABELS != 1,
    "label == 1": LABELS == 1,
    "'real' == label": LABELS == 1,
    "0.2 < score <= 0.75": (SCORES > 0.2) & (SCORES <= 0.75),
    "frame < last": np.arange(12) < 6,
    "not (frame >= last)": np.arange(12) < 6,
    "source == 'video 1.mp4'": np.arange(12) // 4 == 1,
    "source > 'video 0.mp4'": np.arange(12) // 4 > 0,
    "source in {'video 0.mp4', 'video 2.mp4'}": np.arange(12) // 4 != 1,
    "frame in []": np.zeros(12, bool),
    "checked": np.arange(12) % 2 == 0,
    "checked == False": np.arange(12) % 2 == 1,
    "frame > -1 and frame < 99999999999999999999999": np.ones(12, bool),
    " (frame\n ==  3) ": np.arange(12) == 3,
}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_chooses_what_numpy_chooses(table, expression):
    assert table.where(expression).rows.tolist() == np.flatnonzero(EXPRESSIONS[expression]).tolist()
    part = table.subset([7, 2, 2, 11])
    assert part.where(expression).rows.tolist() == np.flatnonzero(EXPRESSIONS[expression][[7, 2, 2, 11]]).tolist()


def test_other_classes_are_compared_by_their_new_names(table):
    pair = table.map_labels({"fake": "made", "real": "shot", "it's odd": "made"})
    assert pair.where("label == 'made'").rows.tolist() == np.flatnonzero(LABELS != 1).tolist()
    with raises(UsageError, option="where", found="'fake'"):
        pair.where("label == 'fake'")


def test_a_class_is_found_in_either_form_of_unicode(table):
    accented = table.map_labels({"fake": "é", "real": "b", "it's odd": "b"})
    for name in ("\u00e9", "e\u0301"):
        assert accented.where(f"label == '{name}'").rows.tolist() == np.flatnonzero(LABELS == 0).tolist()


PIECES = [*"()[]{}=<>!'\" ,.01*+-:", "label", "score", "checked", "==", " in ", " and ", "not ", "lambda", "'fake'"]


@examples(200)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_any_text_is_an_expression_or_refused(table, expression):
    try:
        rows = table.where(expression).rows
    except UsageError:
        return
    assert set(rows.tolist()) <= set(range(12))


def test_a_sample_is_found_by_its_key(table):
    assert table.find("00000007-000000") == 7
    assert table.subset([7, 2, 2]).find("00000002-000000") == 1
    with raises(UsageError, option="key", found="'7'"):
        table.find("7")
    with raises(UsageError, option="key", found="7"):
        table.find(7)
    assert MixedDataset([table.subset([1]), table]).find("00000007-000000") == 8


@pytest.mark.external
def test_small_fields_as_a_data_frame(table):
    frame = table.subset([3, 4, 11]).to_pandas()
    assert list(frame) == ["key", "source", "label", "score", "checked", "frame", "last"]
    assert frame["source"].tolist() == ["video 0.mp4", "video 1.mp4", "video 2.mp4"]
    assert frame["label"].tolist() == ["fake", "real", "real"]
    assert frame["label"].cat.codes.tolist() == [0, 1, 1]
    assert frame["score"].to_numpy().dtype == np.float32
    assert table.to_pandas(["frame"])["frame"].tolist() == list(range(12))
    rows = table.to_pandas().query("label == 'fake' and score > 0.5").index
    assert table.subset(rows).rows.tolist() == table.where("label == 'fake' and score > 0.5").rows.tolist()


def test_a_data_frame_takes_pandas_and_small_fields(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"^to_pandas \(pip install pandas\): there is no module 'pandas'"):
        table.to_pandas()
    with raises(UsageError, option="fields", found="'boxx'"):
        table.to_pandas(["boxx"])
    with raises(UsageError, option="fields", found="'scor'; did you mean 'score'?"):
        table.to_pandas(["label", "scor"])


def test_parts_of_one_split_have_separate_plans(jpeg_path):
    whole = open_dataset(jpeg_path, fields=["key", "image", "label"], transform=Noise())
    train, val = whole.split([0.7, 0.3], seed=1)
    train = train.with_decode({"image": RandomResizedCrop(24)})
    small = val.with_decode({"image": CenterCrop(16)})
    assert next(iter(Loader(train, 4)))["image"].shape == (4, 3, 24, 24)
    (batch,) = Loader(small, 60, shuffle=False)
    assert batch["image"].shape == (18, 3, 16, 16)
    (plain,) = Loader(val, 60, shuffle=False)
    assert plain["image"].shape == (18, 3, 48, 48)
    assert (batch["key"], batch["drawn"].tolist()) == (plain["key"], plain["drawn"].tolist())
    expected = open_dataset(jpeg_path, fields=["image"], decode={"image": CenterCrop(16)}).subset(val.rows)
    (reference,) = Loader(expected, 60, shuffle=False)
    assert torch.equal(batch["image"], reference["image"])
    assert torch.equal(next(iter(Loader(small.with_decode(None), 60, shuffle=False)))["image"], plain["image"])
    relabelled = val.map_labels({"a": "x", "b": "y", "c": "x"}).with_decode({"image": Resize(8)})
    assert relabelled.classes == ("x", "y")
    assert relabelled[0]["image"].shape == (8, 8, 3)


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Ten videos of six frames; two more are too short for a clip of four."""
    items = [item for item in range(10) for _ in range(6)] + [10, 10, 11]
    frames = [frame for _ in range(10) for frame in range(6)] + [0, 1, 0]
    schema = Schema(
        (
            text("key"),
            text("source"),
            fixed("image", "|u1", 8, 8, 3),
            fixed("label", "<i8", classes=("fake", "real")),
            fixed("frame", "<i8"),
        )
    )
    columns = {
        "key": [f"{item:08d}-{frame:06d}" for item, frame in zip(items, frames, strict=True)],
        "source": [f"{item}.mp4" for item in items],
        "image": np.stack(astronaut_crops(len(items), 8)),
        "label": np.array(items) % 2,
        "frame": np.array(frames),
    }
    root = tmp_path_factory.mktemp("clips") / "d"
    write_dataset(root, "npy", schema, columns)
    return open_dataset(root).clips(4, by=None, transform=Noise())


def test_clips_are_divided_as_samples_are(clips):
    assert len(clips) == 30
    train, val = clips.split([0.8, 0.2], by="source")
    assert set(train.column("source")).isdisjoint(val.column("source"))
    assert (len(train) + len(val), len(val)) == (30, 6)
    fakes = train.where("label == 'fake' and frame > 0")
    assert len(fakes) > 0
    assert {int(value) for value in fakes.column("label")} == {0}
    assert all(set(part.column("source")).isdisjoint(own.column("source")) for part, own in clips.folds(3, by="source"))
    some = clips.subset([20, 3, 4])
    (batch,) = Loader(some, 3, shuffle=False)
    (whole,) = Loader(clips, 30, shuffle=False)
    assert torch.equal(batch["image"], whole["image"][[20, 3, 4]])
    assert batch["drawn"].tolist() == whole["drawn"][[20, 3, 4]].tolist()
    assert (some.blocks, len(clips.where("frame == 0").blocks)) == (None, 1)
    assert some.subset([2]).rows.tolist() == clips.rows[[4]].tolist()
    assert clips.find("00000003-000002") == 11
    with raises(UsageError, option="rows", found="3"):
        some.subset([3])


def test_repeated_clips_draw_apart(clips):
    (batch,) = Loader(clips.subset([5, 5, 6, 5]), 4, shuffle=False)
    (whole,) = Loader(clips, 30, shuffle=False)
    drawn = batch["drawn"].reshape(4, -1)[:, 0].tolist()
    assert len(set(drawn)) == 4
    assert drawn[0] == whole["drawn"].reshape(30, -1)[5, 0]
