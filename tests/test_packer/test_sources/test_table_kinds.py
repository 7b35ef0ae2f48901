"""What every kind of table file must do, run over the registry; and what each does in its own way."""

import csv
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builds import write_images
from support.command import run_packer, run_unprivileged
from support.errors import raises

import packer
from packer.sources.tables import chunks as chunks_module
from packer.sources.tables.base import TABLES, open_table
from packer.sources.tables.chunks import Chunk
from packer.sources.tables.delimited import CsvTable
from shardspec.errors import MissingDependencyError, ShardspecError, UsageError
from shardspec.typing.frames import read_cells

Rows = list[dict[str, Any]]

ROWS: Rows = [
    {"path": "0.png", "age": 31, "grade": 0.5, "code": "007"},
    {"path": "1.png", "age": None, "grade": 1.25, "code": "1.50"},
    {"path": "2.png", "age": 7, "grade": None, "code": None},
]
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}


def write_cells(mark: str) -> Callable[[Path, Rows], None]:
    """A writer of rows with a mark between the cells."""

    def write(path: Path, rows: Rows) -> None:
        lines = [list(rows[0]), *([("" if cell is None else str(cell)) for cell in row.values()] for row in rows)]
        path.write_text("".join(mark.join(line) + "\n" for line in lines))

    return write


def write_json(path: Path, rows: Rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_parquet(path: Path, rows: Rows) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)


def rows_of(table: Any, texts: tuple[str, ...] = ()) -> Rows:
    """The rows of a table as Python values; a missing one is None."""
    columns = {}
    for name, cells in read_cells(table.frame(texts), "t").items():
        values = cells.values.tolist() if isinstance(cells.values, np.ndarray) else cells.values
        columns[name] = [value if ok else None for value, ok in zip(values, cells.valid, strict=True)]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


WRITERS: Mapping[str, Callable[[Path, Rows], None]] = {
    ".csv": write_cells(","),
    ".jsonl": write_json,
    ".ndjson": write_json,
    ".parquet": write_parquet,
    ".tsv": write_cells("\t"),
}


@pytest.fixture(params=sorted(TABLES))
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """`ROWS` as a file of each kind."""
    path = tmp_path / f"t{request.param}"
    WRITERS[request.param](path, ROWS)
    return path


class TestEveryKind:
    def test_chunks_can_be_read_as_often_as_needed(self, table: Path) -> None:
        opened = open_table(table)
        expected: dict[str, list[Any]] = COLUMNS
        if opened.is_text:
            expected = {
                name: ["" if value is None else str(value) for value in values] for name, values in COLUMNS.items()
            }
        for _ in range(2):
            chunks = list(opened.chunks())
            assert sum(chunk.rows for chunk in chunks) == 3
            assert [chunk.first for chunk in chunks] == list(np.cumsum([0, *(chunk.rows for chunk in chunks)]))[:-1]
            for name, values in expected.items():
                assert [value for chunk in chunks for value in chunk.column(name)] == values
            assert list(opened.names) == list(COLUMNS)

    def test_some_columns_alone(self, table: Path) -> None:
        opened = open_table(table)
        for chunk in opened.chunks(("grade", "none", "path")):
            assert list(chunk.columns) == ["path", "grade"]
        assert list(opened.names) == list(COLUMNS)
        empty = list(opened.chunks(["none"]))
        assert sum(chunk.rows for chunk in empty) == 3
        assert not any(chunk.columns for chunk in empty)

    def test_rows_have_numbers_and_texts(self, table: Path) -> None:
        opened = open_table(table)
        assert rows_of(opened) == (
            [{**row, "code": code} for row, code in zip(ROWS, ("007", "1.50", None), strict=True)]
        )
        assert [row["age"] for row in rows_of(opened, ("age",))] == (
            ["31", None, "7"] if opened.is_text else COLUMNS["age"]
        )

    def test_a_file_that_changes_between_two_passes_is_refused(self, table: Path) -> None:
        for read in (lambda opened: list(opened.chunks()), lambda t: t.frame()):
            WRITERS[table.suffix](table, ROWS)
            opened = open_table(table)
            read(opened)
            WRITERS[table.suffix](table, [*ROWS, *ROWS])
            with raises(UsageError, expected="a file that does not change", found="one that changed while it was read"):
                read(opened)

    def test_a_missing_file(self, table: Path) -> None:
        table.unlink()
        with pytest.raises(UsageError, match=f"{table.name}: cannot be read: No such file"):
            open_table(table).frame()


def test_every_kind_is_tested() -> None:
    assert set(WRITERS) == set(TABLES)


def test_a_library_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "packer.sources.tables.parquet", raising=False)
    with pytest.raises(MissingDependencyError, match=r'^table t.parquet needs the library .*"facepack\[parquet\]"'):
        open_table(tmp_path / "t.parquet")


class TestCells:
    def test_numbers_are_read_as_numbers_and_names_as_names(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        columns = {
            "integer": ["1", "-2", ""],
            "decimal": ["1.5", "2", "-1e-3"],
            "leading_zeros": ["007", "12", "003"],
            "underscores": ["1_0", "2_0", "3_0"],
            "spaces": [" 1", "2\t", " "],
            "other_spaces": ["1\u00a0", "2", "3"],
            "words": ["nan", "inf", " x"],
            "large": ["9007199254740993", "1", "2"],
        }
        lines = [",".join(columns), *(",".join(cells) for cells in zip(*columns.values(), strict=True))]
        path.write_text("\n".join(lines) + "\n")
        rows = rows_of(CsvTable(path))
        found = {name: [row[name] for row in rows] for name in columns}
        assert found == {
            "integer": [1, -2, None],
            "decimal": [1.5, 2.0, -0.001],
            "leading_zeros": ["007", "12", "003"],
            "underscores": ["1_0", "2_0", "3_0"],
            "spaces": [1, 2, None],
            "other_spaces": ["1\u00a0", "2", "3"],
            "words": [None, "inf", " x"],
            "large": [9007199254740993, 1, 2],
        }

    @given(
        st.lists(
            st.lists(
                st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r")), min_size=2, max_size=2
            ),
            max_size=5,
        )
    )
    def test_any_texts_of_a_csv_come_back(self, rows: list[list[str]]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "t.csv")
            with path.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file, quoting=csv.QUOTE_ALL).writerows(
                    [["path", "text"], *(["p", f"x{text}"] for _, text in rows)]
                )
            assert [row["text"] for row in rows_of(CsvTable(path))] == [f"x{text}" for _, text in rows]


class TestLines:
    def test_a_row_of_json_has_its_own_keys_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(chunks_module, "CHUNK_ROWS", 1)
        rows: Rows = [{"key": "a"}, {"path": "b", "label": None}]
        write_json(tmp_path / "t.jsonl", rows)
        table = open_table(tmp_path / "t.jsonl")
        assert list(table.chunks()) == [Chunk(0, 1, {"key": ["a"]}), Chunk(1, 1, {"path": ["b"], "label": [None]})]
        assert list(table.names) == ["key", "path", "label"]


class TestParquet:
    def test_two_columns_of_one_name_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "t.parquet"
        pq.write_table(pa.table([["a"], [1], [2]], names=["path", "x", "x"]), path)
        for read in (lambda path: open_table(path).frame(), lambda path: list(open_table(path).chunks())):
            with pytest.raises(UsageError, match=r"t\.parquet: expected every column once, found 'x' more than once"):
                read(path)

    def test_a_name_with_a_dot_is_another_column(self, tmp_path: Path) -> None:
        path = tmp_path / "t.parquet"
        pq.write_table(pa.table({"frame": [1], "frame.x": [2]}), path)
        assert list(open_table(path).chunks(["frame"])) == [Chunk(0, 1, {"frame": [1]})]


def test_a_table_that_cannot_be_read_is_a_wrong_argument_of_every_command(tmp_path: Path) -> None:
    source, out = write_images(tmp_path / "source", ["a.png"]), tmp_path / "out"
    run_packer("build", source, tmp_path / "packed", "--size", 16, "--quiet")
    table = tmp_path / "table.csv"
    table.touch()
    table.chmod(0)
    for command, *values in (
        ("build", table, out),
        ("build", source, out, "--preset", "faces", "--boxes", table),
        ("bench", table, tmp_path / "packed"),
        ("add", tmp_path / "packed", table),
    ):
        assert "cannot be read: Permission denied" in run_unprivileged(command, *values, expect=2).stderr


@pytest.mark.parametrize("use", ["table", "archive", "add"])
def test_a_parquet_file_with_an_unknown_type_is_named(tmp_path: Path, use: str) -> None:
    picture = {"bytes": b"x", "path": None}
    columns: dict[str, Any] = {"image": [picture]} if use == "archive" else {"path": ["0.png"], "number": [1]}
    file = tmp_path / "one.parquet"
    pq.write_table(pa.table(columns), file)
    call: Callable[[], Any] = partial(packer.build, file, tmp_path / "out", engine="inline", progress=False)
    if use == "add":
        packer.build(write_images(tmp_path / "in", ["0.png"]), tmp_path / "out", engine="inline", progress=False)
        call = partial(packer.add, tmp_path / "out", file, on="source", key="path", replace=True, progress=False)
    said: list[str] = []
    whole = file.read_bytes()
    for place in range(len(whole) - 1):
        if whole[place] == 0x15 and whole[place + 1] in (4, 12):  # Thrift: a field that is the type INT64 or BYTE_ARRAY
            file.write_bytes(whole[: place + 1] + b"\x50" + whole[place + 2 :])
            try:
                call()
            except ShardspecError as error:
                said += [str(error)] if "UNKNOWN" in str(error) else []
    assert said
    assert all(str(file) in line for line in said)
