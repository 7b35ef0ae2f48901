"""Missing values on pages, in splits, previews, counts and exports."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from support.builds import QUIET
from support.datasets import fixed, text, write_dataset
from support.missing import EXPRESSIONS, ROWS, known, sql_rows, write_missing

import packer
from packer.packed.browse.dataset import BrowsedDataset
from packer.page.cards import cards
from packer.page.counts import spread
from packer.page.dataset_view import DatasetView
from readers import open_dataset
from shardspec.columns import Columns
from shardspec.errors import UsageError
from shardspec.schema import Schema


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Columns]:
    root = tmp_path_factory.mktemp("missing") / "d"
    return root, write_missing(root)


def test_pages_select_the_rows_that_sql_selects(data: tuple[Path, Columns]) -> None:
    dataset = BrowsedDataset(data[0])
    found = {expression: dataset.select(expression).rows().tolist() for expression in EXPRESSIONS}
    assert found == {expression: sql_rows(data[1], expression) for expression in EXPRESSIONS}


def test_rows_without_a_value_are_sorted_last(data: tuple[Path, Columns]) -> None:
    dataset = BrowsedDataset(data[0])
    for name in ("person", "fake_score", "name", "flag"):
        values = known(data[1], name)
        without = [row for row in range(ROWS) if values[row] is None]
        ascending = sorted(set(range(ROWS)) - set(without), key=values.__getitem__)
        descending = sorted(ascending, key=values.__getitem__, reverse=True)
        assert dataset.select("", name).rows().tolist() == [*ascending, *without]
        assert dataset.select("", f"-{name}").rows().tolist() == [*descending, *without]
        assert dataset.select("", name).place(without[0]) == len(ascending)


def test_bars_count_known_values_and_select_what_they_count(data: tuple[Path, Columns]) -> None:
    dataset = BrowsedDataset(data[0])
    for name in ("person", "fake_score", "name", "flag", "label"):
        found, values = spread(dataset, name), known(data[1], name)
        assert sum(bar.count for bar in found.bars) == ROWS - values.count(None)
        assert [len(dataset.select(bar.where)) for bar in found.bars] == [bar.count for bar in found.bars]
        assert found.note == f"{values.count(None)} samples without a value"


def test_a_page_shows_no_value_where_it_is_missing(data: tuple[Path, Columns]) -> None:
    looking = DatasetView(BrowsedDataset(data[0]), None)
    row = known(data[1], "person").index(None)
    details = {name: (shown, where) for name, shown, where in looking.values(row)}
    assert details["person"] == ("missing", "person is missing")
    assert dict(cards(looking.dataset, [0, row], ["person"])[0].facts)["person"] == "0"
    assert "person" not in dict(cards(looking.dataset, [0, row], ["person"])[1].facts)


def test_predictions_of_some_samples_count_for_these_only(tmp_path: Path) -> None:
    schema = Schema((text("key"), fixed("label", "<i8", classes=("real", "fake")), fixed("label_valid", "|b1")))
    values = {"key": ["a", "b", "c", "d"], "label": np.array([0, 1, 0, -1]), "label_valid": np.arange(4) < 3}
    write_dataset(tmp_path / "d", "npy", schema, values)
    (tmp_path / "table.csv").write_text("key,prediction\na,real\nb,real\nd,real\n")
    dataset = BrowsedDataset(tmp_path / "d", tmp_path / "table.csv")
    assert dataset.select("wrong").rows().tolist() == [1]
    assert dataset.select("not wrong").rows().tolist() == [0]
    assert dataset.select("wrong is missing").rows().tolist() == [2, 3]


def test_frames_without_a_face_have_no_size_of_box(tmp_path: Path) -> None:
    schema = Schema((text("key"), fixed("box", "<f4", 4), fixed("box_valid", "|b1")))
    values = {
        "key": ["a", "b"],
        "box": np.array([[0, 0, 40, 30], [0, 0, 0, 0]], np.float32),
        "box_valid": np.arange(2) < 1,
    }
    write_dataset(tmp_path / "d", "npy", schema, values)
    assert BrowsedDataset(tmp_path / "d").select("box_side < 100").rows().tolist() == [0]


def test_a_preview_of_one_sample_per_value_omits_missing_values(data: tuple[Path, Columns], tmp_path: Path) -> None:
    made = packer.preview(data[0], tmp_path / "s.png", one_per="person", progress=False)
    assert len(made.rows) == 4
    assert {known(data[1], "person")[row] for row in made.rows} == {0, 1, 2, 3}


def test_values_are_counted_without_missing_ones(data: tuple[Path, Columns]) -> None:
    for name in ("person", "flag"):
        values = known(data[1], name)
        found = {one.value: one.samples for one in packer.count_values(data[0], by=name).found}
        assert found == {None if value is None else str(value): values.count(value) for value in values}


def test_missing_labels_are_not_a_class_that_every_split_needs(tmp_path: Path) -> None:
    """The only sample of class 0 must not be taken for one of many."""
    rows = 20
    schema = Schema((text("key"), text("source"), fixed("label", "<i8"), fixed("label_valid", "|b1")))
    valid = np.isin(np.arange(rows), [0, 1, 2, 3])
    values = {
        "key": [f"k{n:02d}" for n in range(rows)],
        "source": [f"{n}.png" for n in range(rows)],
        "label": np.where(valid, np.arange(rows) % 2, 0),
        "label_valid": valid,
    }
    write_dataset(tmp_path / "d", "npy", schema, values)
    for seed in range(5):
        parts = packer.split(
            tmp_path / "d", tmp_path / str(seed), by="source", ratios="a=0.5,b=0.5", seed=seed, **QUIET
        )
        for part in parts.parts:
            assert set(open_dataset(tmp_path / str(seed) / part.name).column("label").compressed()) == {0, 1}
        own = open_dataset(tmp_path / "d").split([0.5, 0.5], by="source", seed=seed)
        assert [part.column("key") for part in own] == [
            open_dataset(tmp_path / str(seed) / part.name).column("key") for part in parts.parts
        ]


@pytest.mark.parametrize("table", ["csv", "jsonl", "parquet"])
def test_missing_values_are_null_in_an_exported_table_and_missing_in_its_build(
    data: tuple[Path, Columns], tmp_path: Path, table: str
) -> None:
    packer.export(data[0], tmp_path / "out", table=table, progress=False)
    path = tmp_path / "out" / f"table.{table}"
    names = ["person", "fake_score", "flag", "name"]
    if table == "parquet":
        found = pq.read_table(path).to_pydict()
        assert not [name for name in found if name.endswith("_valid")]
        assert {name: found[name] for name in names} == {name: known(data[1], name) for name in names}
    if table == "jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert {name: [line[name] for line in lines] for name in names} == {
            name: known(data[1], name) for name in names
        }
    packer.build(path, tmp_path / "again", label_from="none", format="npy", **QUIET)
    again = open_dataset(tmp_path / "again")
    for name in names if table != "csv" else ["person", "fake_score", "flag"]:
        column = again.column(name)
        assert (column if isinstance(column, list) else column.tolist()) == known(data[1], name)


def test_a_table_has_no_column_of_the_name_that_marks_missing_values(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    rows = [{"path": "a.png", "age": 3, "age_valid": True}, {"path": "a.png", "age": None, "age_valid": True}]
    with pytest.raises(UsageError, match="column 'age_valid'"):
        packer.build(rows, tmp_path / "out", root=tmp_path, **QUIET)
    packer.build(rows[:1], tmp_path / "out", root=tmp_path, **QUIET)
