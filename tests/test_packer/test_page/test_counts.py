"""Bars over a field: every sample in one of them, and its condition selects just these samples."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.datasets import fixed, text, write_dataset

from packer.packed.browse.columns import Selection
from packer.packed.browse.dataset import BrowsedDataset
from packer.page.counts import spread
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
    dataset = BrowsedDataset(root)
    chosen = np.zeros(len(values), np.bool_)
    chosen[random.sample(range(len(values)), len(values) // 2)] = True
    selection = Selection(len(values), np.flatnonzero(chosen))
    assert selection.rows().tolist() == np.flatnonzero(chosen).tolist()
    found = spread(dataset, "x", selection)
    counted = len(values) if values.dtype.kind != "f" else int(np.isfinite(values).sum())
    if found.kind == "histogram":
        assert sum(bar.count for bar in found.bars) == counted
        assert len(found.bars) <= 70
    for bar in found.bars:
        there = dataset.select(bar.where)
        assert len(there) == bar.count, bar
        assert len(np.intersect1d(there.rows(), selection.rows())) == bar.selected
    whole = open_dataset(root)
    for bar in found.bars[:3]:
        assert len(whole.where(bar.where)) == bar.count


def test_texts_and_classes_are_counted_by_value_with_any_quotes(tmp_path: Path) -> None:
    names = ["a'b", 'a"b', "a\\b", "", "<i>", "a'b"]
    schema = Schema((text("name"), fixed("label", "<i8", classes=("x'y", "<b>"))))
    write_dataset(tmp_path / "d", "lmdb", schema, {"name": names, "label": np.array([0, 1, 1, -1, 0, 5])})
    dataset = BrowsedDataset(tmp_path / "d")
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
    dataset = BrowsedDataset(tmp_path / "d")
    found = spread(dataset, "age")
    assert sum(bar.count for bar in found.bars) == 2
    assert found.note == "1 samples without a value"
    assert sum(len(dataset.select(bar.where)) for bar in found.bars) == 2


@pytest.mark.parametrize("value", [0.0, -0.1, 1e-30, 3e38])
def test_one_fraction_is_a_value_not_a_range(tmp_path: Path, value: float) -> None:
    schema = Schema((fixed("x", "<f4"), fixed("x_valid", "|b1")))
    values = {"x": np.array([value, 7, value, np.nan], "<f4"), "x_valid": np.array([True, False, True, True])}
    write_dataset(tmp_path / "d", "npy", schema, values)
    dataset = BrowsedDataset(tmp_path / "d")
    found = spread(dataset, "x")
    assert (found.kind, found.note) == ("list", "2 samples without a value")
    (bar,) = found.bars
    assert (bar.label, bar.count) == (str(np.float32(value)), 2)
    assert dataset.select(bar.where).rows().tolist() == [0, 2]


def test_rows_are_sorted_by_any_small_field_equal_ones_in_their_order(tmp_path: Path) -> None:
    schema = Schema((text("name"), fixed("x", "<f4")))
    values = {"name": ["b", "a", "c", "a"], "x": np.array([1.0, np.nan, 3.0, 1.0], "<f4")}
    write_dataset(tmp_path / "d", "npy", schema, values)
    dataset = BrowsedDataset(tmp_path / "d")
    orders = {sort: dataset.select("", sort).rows().tolist() for sort in ("name", "-name", "x", "-x")}
    assert orders == {"name": [1, 3, 0, 2], "-name": [2, 0, 1, 3], "x": [0, 3, 2, 1], "-x": [2, 0, 3, 1]}
    assert dataset.select("x <= 1", "-name").rows().tolist() == [0, 3]
