"""Bars over a field: every sample in one of them, and its condition selects just these samples."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.datasets import fixed, text, write_dataset

from packer.page.counts import spread
from packer.page.dataset import ShownDataset
from readers import open_dataset
from shardspec.schema import Schema

DTYPES = ("|b1", "|i1", "<i8", "|u1", "<u8", "<f2", "<f4", "<f8")

columns = st.sampled_from(DTYPES).flatmap(lambda dtype: arrays.arrays(np.dtype(dtype), st.integers(1, 40)))


@given(columns, st.randoms(use_true_random=False))
def test_bars_of_any_numbers_hold_each_sample_once(
    tmp_path_factory: pytest.TempPathFactory, values: np.ndarray[Any, Any], random: Any
) -> None:
    root = tmp_path_factory.mktemp("d")
    write_dataset(root, "npy", Schema((fixed("x", values.dtype.str),)), {"x": values})
    dataset = ShownDataset(root)
    rows = np.array(sorted(random.sample(range(len(values)), len(values) // 2)), np.int32)
    found = spread(dataset, "x", rows)
    counted = len(values) if values.dtype.kind != "f" else int(np.isfinite(values).sum())
    if found.kind == "histogram":
        assert sum(bar.count for bar in found.bars) == counted
        assert len(found.bars) <= 70
    for bar in found.bars:
        there = dataset.select(bar.where)
        assert len(there) == bar.count, bar
        assert len(np.intersect1d(there, rows)) == bar.selected
    whole = open_dataset(root)
    for bar in found.bars[:3]:
        assert len(whole.where(bar.where)) == bar.count


def test_texts_and_classes_are_counted_by_value_with_any_quotes(tmp_path: Path) -> None:
    names = ["a'b", 'a"b', "a\\b", "", "<i>", "a'b"]
    schema = Schema((text("name"), fixed("label", "<i8", classes=("x'y", "<b>"))))
    write_dataset(tmp_path / "d", "lmdb", schema, {"name": names, "label": np.array([0, 1, 1, -1, 0, 5])})
    dataset = ShownDataset(tmp_path / "d")
    found = spread(dataset, "name")
    assert {bar.label: bar.count for bar in found.bars} == {"a'b": 2, 'a"b': 1, "a\\b": 1, "": 1, "<i>": 1}
    assert found.bars[0].label == "a'b"
    labels = spread(dataset, "label")
    assert [(bar.label, bar.count) for bar in labels.bars] == [("-1", 1), ("x'y", 2), ("<b>", 2), ("5", 1)]
    for bar in (*found.bars, *labels.bars):
        assert len(dataset.select(bar.where)) == bar.count, bar.where


def test_values_marked_as_missing_are_in_no_bar(tmp_path: Path) -> None:
    schema = Schema((fixed("age", "<f8"), fixed("age_valid", "|b1")))
    values = {"age": np.array([0.0, 31.5, 70.0]), "age_valid": np.array([False, True, True])}
    write_dataset(tmp_path / "d", "npy", schema, values)
    dataset = ShownDataset(tmp_path / "d")
    found = spread(dataset, "age")
    assert sum(bar.count for bar in found.bars) == 2
    assert found.note == "1 samples without a value"
    assert sum(len(dataset.select(bar.where)) for bar in found.bars) == 2


def test_rows_are_sorted_by_any_small_field_equal_ones_in_their_order(tmp_path: Path) -> None:
    schema = Schema((text("name"), fixed("x", "<f4")))
    values = {"name": ["b", "a", "c", "a"], "x": np.array([1.0, np.nan, 3.0, 1.0], "<f4")}
    write_dataset(tmp_path / "d", "npy", schema, values)
    dataset = ShownDataset(tmp_path / "d")
    orders = {sort: dataset.select("", sort).tolist() for sort in ("name", "-name", "x", "-x")}
    assert orders == {"name": [1, 3, 0, 2], "-name": [2, 0, 1, 3], "x": [0, 3, 2, 1], "-x": [2, 0, 3, 1]}
    assert dataset.select("x <= 1", "-name").tolist() == [0, 3]
