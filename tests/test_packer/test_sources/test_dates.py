"""Dates, times, durations and decimals: every source gives them as the same text."""

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.archives import encoded
from support.builds import QUIET
from support.media import scene, write_image

import packer
from packer.cli import main
from readers import open_dataset
from shardspec.errors import UsageError
from shardspec.typing.dates import plain_value

WEST = datetime.timezone(datetime.timedelta(hours=-5))

COLUMNS: dict[str, tuple[pa.Array, str]] = {
    "date": (pa.array([19000], pa.date32()), "2022-01-08"),
    "date_ms": (pa.array([-86_400_000], pa.date64()), "1969-12-31"),
    "seconds": (pa.array([1700000000], pa.timestamp("s")), "2023-11-14T22:13:20"),
    "milliseconds": (pa.array([1700000000500], pa.timestamp("ms")), "2023-11-14T22:13:20.500000"),
    "microseconds": (pa.array([1700000000123456], pa.timestamp("us")), "2023-11-14T22:13:20.123456"),
    "nanoseconds": (pa.array([1700000000123456000], pa.timestamp("ns")), "2023-11-14T22:13:20.123456"),
    "zone": (pa.array([1700000000123456], pa.timestamp("us", "+02:00")), "2023-11-14T22:13:20.123456+00:00"),
    "clock": (pa.array([12345678912000], pa.time64("ns")), "03:25:45.678912"),
    "clock_s": (pa.array([3600], pa.time32("s")), "01:00:00"),
    "duration": (pa.array([1700000000123456000], pa.duration("ns")), "PT1700000000.123456S"),
    "negative": (pa.array([-1500], pa.duration("ms")), "-PT1.500000S"),
    "decimal": (pa.array([Decimal("1.230")]), "1.230"),
    "large_decimal": (pa.array([Decimal(10**40)], pa.decimal256(60, 2)), f"{10**40}.00"),
}
EXPECTED = {name: text for name, (_, text) in COLUMNS.items()}


def stored(out: Path) -> dict[str, Any]:
    """The columns of the first sample."""
    sample = open_dataset(out)[0]
    return {name: sample[name] for name in sample if name in COLUMNS}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_image(tmp_path / "0.png", scene(0, (24, 16)))
    return tmp_path


def write_table(target: Path, **more: Any) -> Path:
    pq.write_table(pa.table({**more, **{name: values for name, (values, _) in COLUMNS.items()}}), target)
    return target


def test_a_table_of_paths(folder: Path) -> None:
    packer.build(write_table(folder / "t.parquet", path=["0.png"]), folder / "out", **QUIET)
    assert stored(folder / "out") == EXPECTED


def test_an_archive(folder: Path) -> None:
    packer.build(write_table(folder / "t.parquet", image=[encoded(0)]), folder / "out", **QUIET)
    assert stored(folder / "out") == EXPECTED


def test_a_table_that_is_added(folder: Path) -> None:
    packer.build([{"path": folder / "0.png"}], folder / "out", root=folder, **QUIET)
    key = open_dataset(folder / "out")[0]["key"]
    packer.add(folder / "out", write_table(folder / "t.parquet", key=[key]), progress=False)
    assert stored(folder / "out") == EXPECTED


def test_keys_of_an_archive(folder: Path) -> None:
    pq.write_table(pa.table({"image": [encoded(0)]}), folder / "a.parquet")
    packer.build(folder / "a.parquet", folder / "out", keys=write_table(folder / "t.parquet", key=["0"]), **QUIET)
    assert stored(folder / "out") == EXPECTED


def test_rows_of_python(folder: Path) -> None:
    row = {
        "path": "0.png",
        "date": datetime.date(2022, 1, 8),
        "seconds": datetime.datetime(2023, 11, 14, 22, 13, 20),
        "nanoseconds": np.datetime64("2023-11-14T22:13:20.123456000"),
        "zone": datetime.datetime(2023, 11, 14, 17, 13, 20, 123456, tzinfo=WEST),
        "clock_s": datetime.time(1),
        "negative": datetime.timedelta(seconds=-1.5),
        "decimal": Decimal("1.230"),
    }
    packer.build([row], folder / "out", root=folder, **QUIET)
    assert stored(folder / "out") == {name: EXPECTED[name] for name in row if name != "path"}


def test_missing_values_and_values_in_lists_and_objects(folder: Path) -> None:
    times = pa.array([1000, None], pa.timestamp("ns"))
    columns = {
        "path": ["0.png", "0.png"],
        "taken": times,
        "words": pa.ListArray.from_arrays([0, 2, 2], times),
        "about": pa.StructArray.from_arrays([times, pa.array([Decimal("0.5"), None])], ["at", "price"]),
    }
    pq.write_table(pa.table(columns), folder / "t.parquet")
    packer.build(folder / "t.parquet", folder / "out", **QUIET)
    first, second = open_dataset(folder / "out")
    moment = "1970-01-01T00:00:00.000001"
    assert (first["taken"], first["taken_valid"], second["taken"], second["taken_valid"]) == (moment, True, "", False)
    assert (first["words"], second["words"]) == ([moment, None], [])
    assert (first["about"], second["about"]) == ({"at": moment, "price": "0.5"}, {"at": None, "price": None})


def test_decimals_and_durations_become_numbers_with_float(folder: Path) -> None:
    table = write_table(folder / "t.parquet", path=["0.png"])
    packer.build(table, folder / "out", float=["decimal", "negative"], **QUIET)
    sample = open_dataset(folder / "out")[0]
    assert (float(sample["decimal"]), float(sample["negative"])) == (1.23, -1.5)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (datetime.timedelta.max, "PT86399999999999.999999S"),
        (np.timedelta64(90, "m"), "PT5400S"),
        (np.array(["2020-01-01", "NaT"], "M8[D]"), ["2020-01-01", None]),
        (Decimal("1E+3"), "1000"),
        (Decimal("NaN"), None),
        ([np.int8(1), (datetime.date(1, 1, 1),)], [1, ("0001-01-01",)]),
    ],
)
def test_single_values(value: Any, text: Any) -> None:
    assert plain_value(value) == text


@pytest.mark.parametrize(
    "value",
    [
        datetime.datetime.max.replace(tzinfo=WEST),
        np.datetime64("2023-11-14T22:13:20.123456789"),
        np.datetime64("10000-01-01"),
        np.timedelta64(1, "ns"),
    ],
)
def test_values_that_python_does_not_have(value: Any) -> None:
    with pytest.raises(UsageError, match="convert the column to texts or integers"):
        plain_value(value)


class TestDrop:
    """``--drop`` leaves a column out, unread where the file allows it."""

    BAD = pa.array([0, 0, 10**7], pa.date32())

    def write(self, folder: Path, **columns: Any) -> Path:
        pq.write_table(pa.table({**columns, "clock": self.BAD}), folder / "t.parquet")
        return folder / "t.parquet"

    @pytest.mark.parametrize("column", ["path", "image"])
    def test_a_value_that_cannot_be_read(self, folder: Path, column: str, capsys: pytest.CaptureFixture[str]) -> None:
        table = self.write(folder, **{column: ["0.png" if column == "path" else encoded(0)] * 3})
        command = ["build", str(table), str(folder / "out"), "--engine", "inline", "--quiet"]
        assert main(command) == 2
        said = capsys.readouterr().err
        assert "row 2 (counted from 0)" in said
        assert "--drop clock" in said
        assert said.count("\n") == 1
        assert main([*command, "--drop", "clock"]) == 0
        assert "clock" not in open_dataset(folder / "out").schema

    def test_text_that_is_not_utf8(self, folder: Path) -> None:
        text = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
        pq.write_table(pa.table({"path": ["0.png"], "name": text}), folder / "t.parquet")
        with pytest.raises(UsageError, match=r"'name', row 0 .* --drop name"):
            packer.build(folder / "t.parquet", folder / "out", **QUIET)

    def test_every_kind_of_columns(self, folder: Path) -> None:
        (folder / "t.csv").write_text("path,a,Key\n0.png,1,2\n")
        (folder / "t.jsonl").write_text('{"path": "0.png", "a": 1, "Key": 2}\n')
        (folder / "files").mkdir()
        write_image(folder / "files" / "a_0.png", scene(0, (24, 16)))
        (folder / "files" / "a_0.json").write_text('{"b": 2}')
        for number, (source, drop, more) in enumerate(
            [
                (folder / "t.csv", ["a", "Key"], {}),
                (folder / "t.jsonl", ["a", "Key"], {}),
                ([{"path": folder / "0.png", "a": {1j}, "Key": 2}], ["a", "Key"], {"root": folder}),
                (folder / "files", ["a", "b"], {"fields_from_path": "{a}_{c}.png", "sidecars": True}),
            ]
        ):
            out = folder / f"out{number}"
            packer.build(source, out, drop=drop, **QUIET, **more)
            assert {"a", "b"}.isdisjoint(open_dataset(out).schema.names)

    @pytest.mark.parametrize("column", ["path", "klock"])
    def test_a_missing_column(self, folder: Path, column: str) -> None:
        with pytest.raises(UsageError, match="drop: expected a column"):
            packer.build([{"path": "0.png", "clock": 1}], folder / "out", root=folder, drop=column, **QUIET)
