"""Missing values: SQL's rule in conditions, no group and no class in choices of rows, marks in columns."""

import numpy as np
import pytest
from support.missing import EXPRESSIONS, ROWS, known, sql_rows, write_missing

from readers import BalancedBatches, Loader, MixedDataset, PairBatches, PKBatches, class_balanced_weights, open_dataset
from shardspec.errors import UsageError


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("missing") / "d"
    columns = write_missing(root)
    return open_dataset(root, fields=["key", "frame", "label", "person"]), columns


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_conditions_select_the_rows_that_sql_selects(data, expression):
    dataset, columns = data
    expected = sql_rows(columns, expression)
    assert dataset.where(expression).rows.tolist() == expected
    turned = dataset.subset(np.arange(ROWS)[::-1])
    assert sorted(ROWS - 1 - turned.where(expression).rows) == expected


def test_a_mixture_has_the_missing_values_of_its_datasets(data):
    dataset, columns = data
    mixed = MixedDataset([dataset, dataset.where("person is not missing")])
    there = [value for value in known(columns, "person") if value is not None]
    assert mixed.column("person").tolist() == known(columns, "person") + there
    assert len(mixed.where("not (person == 0)")) == 2 * len(sql_rows(columns, "not (person == 0)"))


def test_missing_values_are_masked_in_columns_and_none_among_texts(data):
    dataset, columns = data
    views = {
        "part": dataset.subset(np.arange(ROWS)),
        "classes": dataset.map_labels({0: "real", 1: "fake"}),
        "clips": dataset.clips(1, by=None, once=("key",)),
    }
    for view in (dataset, *views.values()):
        for name in ("person", "fake_score", "flag", "label"):
            assert view.column(name).tolist() == known(columns, name)
        assert view.column("name") == known(columns, "name")
        assert not isinstance(view.column("frame"), np.ma.MaskedArray)


def test_a_callable_selects_no_row_with_a_missing_value(data):
    dataset, columns = data
    for expression, condition, field in [
        ("not person == 0", lambda person: ~(person == 0), "person"),
        ("name != 'b'", lambda name: name != "b", "name"),
        ("not flag", lambda flag: ~flag, "flag"),
    ]:
        assert dataset.where(condition, [field]).rows.tolist() == sql_rows(columns, expression)


def test_samples_of_no_known_value_are_in_no_group_of_a_batch(data):
    dataset, columns = data
    unknown = {row for row, value in enumerate(known(columns, "person")) if value is None}
    unnamed = {row for row, value in enumerate(columns["name"]) if not value}
    orders = {
        PKBatches(dataset.column("person"), p=2, k=2): unknown,
        BalancedBatches(dataset.column("person"), 8): unknown,
        PairBatches(dataset.column("person"), 4): unknown,
        PKBatches(dataset.column("name"), p=2, k=2): unnamed,
        PairBatches(dataset.column("name"), 4): unnamed,
    }
    for order, without in orders.items():
        assert set(np.concatenate(list(order(0, 0))).tolist()) == set(range(ROWS)) - without
    assert not any((batch["person_valid"] == 0).any() for batch in _batches(dataset))


def _batches(dataset):
    whole = open_dataset(dataset.path, fields=["person", "person_valid"])
    return Loader(whole, order=PKBatches(whole.column("person"), p=3, k=2))


def test_weights_of_classes_leave_out_samples_of_no_class(data):
    dataset, columns = data
    labels = known(columns, "label")
    counts = {value: labels.count(value) for value in (0, 1)}
    expected = [0 if value is None else 1 / counts[value] for value in labels]
    assert class_balanced_weights(dataset.column("label")).tolist() == expected
    assert class_balanced_weights([-1, 2, 2, 5]).tolist() == [0, 0.5, 0.5, 1]
    assert class_balanced_weights([]).tolist() == []
    assert class_balanced_weights(["a", "", None, "b", "a"]).tolist() == [0.5, 0, 0, 1, 0.5]


def test_a_missing_weight_is_never_drawn(data):
    dataset, columns = data
    weights = 1 - dataset.column("fake_score")
    picked = dataset.order(weights=weights, draws=2000).epoch(0).at(np.arange(2000)).rows
    assert set(picked.tolist()) == {row for row, value in enumerate(known(columns, "fake_score")) if value is not None}


def test_in_splits_missing_values_are_no_group_and_a_separate_stratum(data):
    dataset, columns = data
    with pytest.raises(UsageError, match=f"found none in {known(columns, 'person').count(None)} of {ROWS}"):
        dataset.split([0.5, 0.5], by="person")
    parts = [known(columns, "person")[row] for row in dataset.split([0.5, 0.5], stratify="person")[0].rows]
    assert all(abs(2 * parts.count(person) - known(columns, "person").count(person)) <= 2 for person in (0, 1, None))


def test_clips_leave_out_samples_of_unknown_track(data):
    dataset, columns = data
    rows = dataset.clips(1, by="person").rows.reshape(-1)
    assert sorted(rows) == [row for row, value in enumerate(known(columns, "person")) if value is not None]


def test_labels_that_are_missing_stay_missing_in_other_classes(data):
    dataset, columns = data
    named = dataset.map_labels({0: "real", 1: "fake"})
    assert named.where("label != 'real'").rows.tolist() == sql_rows(columns, "label = 1")
    assert [int(named[row]["label"]) for row in range(ROWS)] == columns["label"].tolist()


@pytest.mark.external
def test_missing_values_are_na_in_a_data_frame(data):
    dataset, columns = data
    frame = dataset.to_pandas()
    types = {"person": "Int32", "fake_score": "Float32", "flag": "boolean", "label": "Int64", "name": "string"}
    for name, dtype in types.items():
        values = [None if lost else value for value, lost in zip(frame[name], frame[name].isna(), strict=True)]
        assert (str(frame[name].dtype), values) == (dtype, known(columns, name))
    assert frame.query("not (person == 0 and flag)").index.tolist() == sql_rows(columns, "not (person == 0 and flag)")
    named = dataset.map_labels({0: "real", 1: "fake"}).to_pandas()
    assert named["label"].isna().tolist() == [value is None for value in known(columns, "label")]
