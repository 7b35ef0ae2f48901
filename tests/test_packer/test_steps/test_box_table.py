"""Boxes in table files of every kind."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.errors import raises

from packer.sources.tables import chunks as chunks_module
from packer.sources.tables import delimited, parquet
from packer.sources.tables.base import TABLES
from packer.steps.faces.boxes import open_boxes
from shardspec.errors import UsageError

ROWS: list[dict[str, Any]] = [
    {"path": "b.mp4", "frame": 3, "x0": 1, "y0": 2.5, "x1": 11, "y1": 22.5, "score": 0.5, "of": "x"},
    {"path": "a.mp4", "frame": 0, "x0": 0, "y0": 0, "x1": 5, "y1": 6, "score": 1, "of": "y"},
    {"path": "b.mp4", "frame": 1, "x0": 2, "y0": 3, "x1": 12, "y1": 23, "score": 0.25, "of": "z"},
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix in (".csv", ".tsv"):
        mark = "," if path.suffix == ".csv" else "\t"
        path.write_text("".join(mark.join(map(str, line)) + "\n" for line in [rows[0], *(r.values() for r in rows)]))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("chunk", [1, 2048])
@pytest.mark.parametrize("suffix", sorted(TABLES))
def test_every_kind_of_table_holds_boxes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, chunk: int
) -> None:
    for module in (chunks_module, delimited, parquet):
        monkeypatch.setattr(module, "CHUNK_ROWS", chunk)
    boxes = open_boxes(str(write(tmp_path / f"boxes{suffix}", ROWS)), 2.0)
    assert boxes.check(["a.mp4", "b.mp4"]) == ()
    found = boxes.faces("b.mp4")
    assert list(found) == [1, 3]
    assert [faces.boxes.tolist() for faces in found.values()] == [[[4, 6, 24, 46]], [[2, 5, 22, 45]]]
    assert [faces.scores.tolist() for faces in found.values()] == [[0.25], [0.5]]
    with pytest.raises(UsageError, match=r"expected boxes under the items' paths, such as 'c\.mp4', found others"):
        boxes.check(["c.mp4"])


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_paths_that_look_like_numbers_stay_as_they_are(tmp_path: Path, suffix: str) -> None:
    rows = [{**ROWS[0], "path": path} for path in ("1.50", "2", "1e3")]
    boxes = open_boxes(str(write(tmp_path / f"boxes{suffix}", rows)), 1.0)
    assert boxes.check(["1.50", "2", "1e3"]) == ()


@pytest.mark.parametrize("suffix", sorted(TABLES))
def test_faults_are_named_with_the_place(tmp_path: Path, suffix: str) -> None:
    place = {".csv": "line 4", ".tsv": "line 4", ".parquet": "row 2 "}.get(suffix, "line 3")
    path = write(tmp_path / f"boxes{suffix}", [*ROWS[:2], {**ROWS[2], "score": 95}])
    with pytest.raises(UsageError, match=rf"{path.name}, {place}.*: expected a score from 0 to 1, found 95"):
        open_boxes(str(path), 1.0)
    for names, message in (
        (("Scores",), "expected no column 'Scores', which nothing reads; did you mean 'score'"),
        (("score", "track_", "nose_tip_x"), "expected no column 'track_'.*'track'"),
        (("score", "nose_tip_x"), "expected columns right_eye_x, right_eye_y, .*mouth_left_y, found path, frame, "),
    ):
        rows = [{**{name: row[name] for name in list(row)[:6]}, **dict.fromkeys(names, 1)} for row in ROWS]
        with pytest.raises(UsageError, match=message):
            open_boxes(str(write(path, rows)), 1.0)


def test_a_table_without_rows_has_no_boxes(tmp_path: Path) -> None:
    (tmp_path / "boxes.csv").write_text("path,frame,x0,y0,x1,y1,score\n")
    schema = pa.schema([("path", pa.string()), *((name, pa.float64()) for name in ("frame", "x0", "y0", "x1", "y1"))])
    pq.write_table(schema.empty_table(), tmp_path / "boxes.parquet")
    for name in ("boxes.csv", "boxes.parquet"):
        with pytest.raises(UsageError, match=r"expected boxes under the items' paths, such as 'a\.mp4', found none"):
            open_boxes(str(tmp_path / name), 1.0).check(["a.mp4"])
    (tmp_path / "boxes.jsonl").write_text("\n")
    with raises(UsageError, expected="columns path, frame, x0, y0, x1, y1", found=""):
        open_boxes(str(tmp_path / "boxes.jsonl"), 1.0)


@pytest.mark.parametrize("value", [[1.0], [1.0, 2.0], {}, "left", 10**400])
def test_values_that_are_no_numbers(tmp_path: Path, value: Any) -> None:
    with pytest.raises(UsageError, match="expected numbers in column 'x0', "):
        open_boxes(str(write(tmp_path / "boxes.jsonl", [{**row, "x0": value} for row in ROWS])), 1.0)


def test_a_column_that_begins_late_is_missing_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks_module, "CHUNK_ROWS", 1)
    rows = [ROWS[0], {**ROWS[1], "track": 4}]
    with pytest.raises(UsageError, match=r"line 1: expected a whole number of -1 or more in column 'track', found nan"):
        open_boxes(str(write(tmp_path / "boxes.jsonl", rows)), 1.0)


def test_columns_that_nothing_reads_may_be_of_any_kind(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(ROWS).append_column("when", pa.array([0, 1, 2], pa.timestamp("s")))
    pq.write_table(table, tmp_path / "boxes.parquet")
    boxes = open_boxes(str(tmp_path / "boxes.parquet"), 1.0).faces("a.mp4")
    assert np.array_equal(boxes[0].boxes, [[0, 0, 5, 6]])
