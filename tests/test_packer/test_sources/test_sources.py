"""Sources: folders, tables and rows become items, and what is not an item is reported."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.errors import raises
from support.media import scene, write_image

from packer import Recipe, build
from packer.builds.planning.plan import make_plan
from packer.sources.base import Listing
from packer.sources.folders.folder import FolderSource
from packer.sources.item import Item
from packer.sources.opening import open_source
from packer.sources.rows import RowsSource, TableSource
from shardspec.errors import UsageError

IMAGE = scene(0, (24, 16))


def listing(source: Any, label_from: str = "auto", path_column: str = "path") -> Listing:
    """A source's items, which every plan must be able to hold."""
    found: Listing = source.list_items(label_from, path_column)
    assert [item.index for item in found.items] == list(range(len(found.items)))
    _, lines = make_plan(Recipe(), {}, found)
    names = [Item.from_line(line).name for line in lines]
    assert names == [item.name for item in found.items]
    return found


def states(found: Listing) -> dict[str, str | None]:
    """Why each item was refused, None where it was not."""
    return {item.name: item.reject for item in found.items}


class TestFolder:
    def test_other_files_and_hidden_ones_are_counted_apart(self, tmp_path: Path) -> None:
        write_image(tmp_path / "a.jpg", IMAGE)
        for name in ("notes.txt", "jpg", ".hidden.jpg", "thumbs.db"):
            (tmp_path / name).write_bytes(b"x")
        (tmp_path / ".cache").mkdir()
        (tmp_path / ".cache" / "b.jpg").write_bytes(b"x")
        found = listing(FolderSource(tmp_path))
        assert list(states(found)) == ["a.jpg"]
        assert found.ignored == 5

    def test_links_that_leave_lead_nowhere_or_in_circles_are_rejects(self, tmp_path: Path) -> None:
        root, outside = tmp_path / "root", tmp_path / "outside"
        write_image(root / "a.jpg", IMAGE)
        write_image(outside / "secret.jpg", IMAGE)
        (root / "leaves.jpg").symlink_to(outside / "secret.jpg")
        (root / "relative.jpg").symlink_to("../outside/secret.jpg")
        (root / "nowhere.jpg").symlink_to("missing.jpg")
        (root / "circle.jpg").symlink_to("circle.jpg")
        (root / "folder").symlink_to(outside, target_is_directory=True)
        (root / "up").symlink_to(root, target_is_directory=True)
        (root / "twin.jpg").symlink_to("a.jpg")
        found = listing(FolderSource(root))
        why = states(found)
        assert set(why) == {"a.jpg", "twin.jpg", "leaves.jpg", "relative.jpg", "nowhere.jpg", "circle.jpg", "folder"}
        assert why["a.jpg"] is why["twin.jpg"] is None
        for name in ("leaves.jpg", "relative.jpg", "folder"):
            assert "found a symbolic link that leaves it" in str(why[name])
        for name in ("nowhere.jpg", "circle.jpg"):
            assert "found a symbolic link to nothing" in str(why[name])
        assert found.ignored == 1

    def test_an_item_that_is_not_a_regular_file_is_a_reject(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.jpg")
        assert "expected a regular file" in str(states(listing(FolderSource(tmp_path)))["pipe.jpg"])

    def test_a_label_column_needs_a_table(self, tmp_path: Path) -> None:
        with raises(UsageError, option="label_from", found="'class'"):
            FolderSource(tmp_path).list_items("class", "path")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder with three images, for tables beside them."""
    for number in range(3):
        write_image(tmp_path / f"{number}.png", IMAGE)
    return tmp_path


def write_table(folder: Path, suffix: str, rows: list[dict[str, Any]]) -> Path:
    """The same rows as a file of each kind."""
    path = folder / f"table{suffix}"
    names = list(dict.fromkeys(name for row in rows for name in row))
    if suffix == ".csv":
        lines = [names, *([row.get(name) for name in names] for row in rows)]
        path.write_text("".join(",".join("" if cell is None else str(cell) for cell in line) + "\n" for line in lines))
    elif suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows]), path)
    return path


SECOND_ROW = {".csv": "line 3", ".jsonl": "line 2", ".parquet": "row 1 (counted from 0)"}
"""What messages call it in a file by `write_table`."""

TABLES = pytest.mark.parametrize("suffix", sorted(SECOND_ROW))


class TestTable:
    @TABLES
    def test_columns_become_fields_and_missing_values_sentinels(self, images: Path, suffix: str) -> None:
        rows = [
            {"path": "0.png", "age": 31, "grade": 0.5, "name": "Ada", "label": "real"},
            {"path": "1.png", "age": None, "grade": 1.25, "name": "Bob", "label": "fake"},
            {"path": "2.png", "age": 7, "grade": None, "name": None, "label": "real"},
        ]
        found = listing(TableSource(write_table(images, suffix, rows)))
        one = {"age": 31, "age_valid": True, "grade": 0.5, "grade_valid": True, "name": "Ada", "name_valid": True}
        two = {"age": 0, "age_valid": False, "grade": 1.25, "grade_valid": True, "name": "Bob", "name_valid": True}
        three = {"age": 7, "age_valid": True, "grade": 0.0, "grade_valid": False, "name": "", "name_valid": False}
        assert [dict(item.columns) for item in found.items] == [
            {**one, "label": 1},
            {**two, "label": 0},
            {**three, "label": 1},
        ]
        assert found.classes == {"label": ["fake", "real"]}
        assert set(states(found).values()) == {None}

    @TABLES
    def test_paths_are_relative_to_the_table_and_stay_in_its_folder(self, images: Path, suffix: str) -> None:
        sub = images / "sub"
        sub.mkdir()
        write_image(sub / "in.png", IMAGE)
        long = "x" * 300 + ".png"
        rows = [
            {"path": p} for p in ("in.png", "../0.png", str(images / "0.png"), "missing.png", str(sub / "in.png"), long)
        ]
        why = [item.reject for item in listing(TableSource(write_table(sub, suffix, rows))).items]
        assert why[0] is None
        assert "a path outside" in str(why[1])
        assert "a path outside" in str(why[2])
        assert "No such file" in str(why[3])
        assert why[4] is None
        assert "name too long" in str(why[5])

    @TABLES
    def test_a_row_without_a_path_is_a_reject(self, images: Path, suffix: str) -> None:
        rows = [{"path": "0.png", "x": 1}, {"path": None, "x": 2}]
        why = states(listing(TableSource(write_table(images, suffix, rows))))
        assert why["0.png"] is None
        assert why["row-00000001"] == f"{SECOND_ROW[suffix]}: expected a path in column 'path', found none"

    @TABLES
    @pytest.mark.parametrize("blank", [" ", "", "\t "])
    def test_a_blank_label_is_missing(self, images: Path, suffix: str, blank: str) -> None:
        rows = [{"path": f"{n}.png", "label": label, "note": blank} for n, label in enumerate(["b", blank, "a "])]
        found = listing(TableSource(write_table(images, suffix, rows)))
        assert found.classes == {"label": ["a", "b"]}
        assert [item.columns["label"] for item in found.items if item.reject is None] == [1, 0]
        assert "expected a label in column 'label', found none" in str(found.items[1].reject)

    def test_odd_column_names_become_field_names(self, images: Path) -> None:
        path = write_table(images, ".jsonl", [{"path": "0.png", "Eye Colour (left)": "b", "2nd": 1, "größe": 3, "": 4}])
        (item,) = listing(TableSource(path)).items
        assert set(item.columns) == {"eye_colour_left", "column_2nd", "gr_e", "column"}

    @pytest.mark.parametrize("names", [("a b", "a_b"), ("A", "a")])
    def test_columns_with_the_same_field_name_are_reported(self, images: Path, names: tuple[str, str]) -> None:
        path = write_table(images, ".jsonl", [{"path": "0.png", names[0]: 1, names[1]: 2}])
        with pytest.raises(UsageError, match="would both become field"):
            TableSource(path).list_items("auto", "path")

    @pytest.mark.parametrize("name", ["key", "Source", "landmarks", "frame"])
    def test_columns_that_the_pack_stage_writes_itself_are_reported(self, images: Path, name: str) -> None:
        path = write_table(images, ".csv", [{"path": "0.png", name: 1}])
        with pytest.raises(UsageError, match="a name that is reserved for fields that packer writes: rename it"):
            TableSource(path).list_items("auto", "path")

    @TABLES
    def test_paths_in_a_column_image_are_refused_with_a_remedy(self, images: Path, suffix: str) -> None:
        path = write_table(images, suffix, [{"path": "0.png", "image": None}, {"path": "0.png", "image": "1.png"}])
        place = rf"column 'image', {re.escape(SECOND_ROW[suffix])}"
        message = rf"{place}: .*, found '1\.png': .*--path-column image\); else rename it"
        with pytest.raises(UsageError, match=message):
            TableSource(path).list_items("auto", "path")

    @pytest.mark.parametrize(("value", "stand_in"), [([1, 2], [0, 0]), (["a", 2], []), ({"a": 1}, {})])
    def test_a_null_among_lists_or_objects_is_a_missing_value(self, images: Path, value: Any, stand_in: Any) -> None:
        rows = [{"path": "0.png", "x": value}, {"path": "1.png", "x": None}, {"path": "2.png"}]
        found = listing(TableSource(write_table(images, ".jsonl", rows)))
        assert [item.columns["x"] for item in found.items] == [value, stand_in, stand_in]
        assert [item.columns["x_valid"] for item in found.items] == [True, False, False]

    @TABLES
    def test_values_of_several_types_are_reported(self, images: Path, suffix: str) -> None:
        if suffix == ".jsonl":
            path = write_table(images, suffix, [{"path": "0.png", "x": 1}, {"path": "1.png", "x": "one"}])
            with raises(UsageError, place="column 'x'", found="int in line 1, str in line 2"):
                TableSource(path).list_items("auto", "path")
        rows = [{"path": "0.png", "x": 1}, {"path": "1.png", "x": 2.5}]
        if suffix != ".parquet":
            found = listing(TableSource(write_table(images, suffix, rows)))
            assert [item.columns["x"] for item in found.items] == [1.0, 2.5]
            assert type(found.items[0].columns["x"]) is float

    @pytest.mark.parametrize("value", ["-Infinity", "[1, Infinity]", "1e999", "[1e999]"])
    def test_infinite_numbers_are_reported(self, images: Path, value: str) -> None:
        (images / "table.jsonl").write_text('\n{"path": "0.png", "x": ' + value + "}\n")
        with pytest.raises(UsageError, match="line 2: expected finite numbers"):
            TableSource(images / "table.jsonl").list_items("auto", "path")

    @pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**70])
    def test_integers_of_more_than_64_bits_are_reported(self, images: Path, value: int) -> None:
        """One dtype for the whole column: that of the first values would reject the others, task by task."""
        rows: list[dict[str, Any]] = [{"path": "0.png", "x": 1}, {"path": "1.png", "x": value}]
        for suffix, found in ((".csv", f"'{value}'"), (".jsonl", value)):
            with pytest.raises(
                UsageError, match=f"column 'x', {SECOND_ROW[suffix]}: expected signed 64-bit integers, found {found}"
            ):
                TableSource(write_table(images, suffix, rows)).list_items("auto", "path")
        floats = RowsSource([{"path": "0.png", "x": 0.5}, {"path": "1.png", "x": value}], images)
        assert [item.columns["x"] for item in floats.list_items("auto", "path").items] == [0.5, float(value)]

    def test_an_integer_beyond_any_float_is_reported(self, images: Path) -> None:
        rows = RowsSource([{"path": "0.png", "x": 0.5}, {"path": "1.png", "x": 10**400}], images)
        with raises(
            UsageError, place="column 'x', row 1 (counted from 0)", found="100000000000000000...0000000000000000000"
        ):
            rows.list_items("auto", "path")

    def test_values_that_json_cannot_hold_are_reported(self, images: Path) -> None:
        rows = RowsSource([{"path": "0.png", "when": 1j}], images)
        with pytest.raises(UsageError, match=r"column 'when', row 0 \(counted from 0\): expected .*, found complex"):
            rows.list_items("auto", "path")


class TestFiles:
    @pytest.mark.parametrize(
        ("rows", "found"),
        [
            (["photos/a.jpg"], "a list of str"),
            ((b"a", b"b"), "a tuple of bytes"),
            ([{"path": "a.png"}, "b.png"], "str in row 1 (counted from 0)"),
        ],
    )
    def test_values_that_are_not_rows_are_refused(self, tmp_path: Path, rows: Any, found: str) -> None:
        message = (
            f"source: expected rows (mappings of column to value), found {found}: pass the folder, or rows with a path"
        )
        with pytest.raises(UsageError) as caught:
            build(rows, tmp_path / "out", progress=False)
        assert str(caught.value) == message
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("t.csv", b"path,x\na,1,2\n", "line 2: expected 2 cells as in the header, found 3"),
            ("t.csv", b'path,x\n"a\nb",1\n\na\n', "line 5: expected 2 cells as in the header, found 1"),
            ("t.csv", b"path;x\na;1;5\n", "line 2: expected 2 cells as in the header, found 3"),
            ("t.tsv", b"path\tx\na,1\n", "line 2: expected 2 cells as in the header, found 1"),
            ("t.csv", b"path;x\ty\n", "found semicolons and tabs in the header: save it with commas"),
            ("t.csv", b"", "expected a row for each image or video, found no rows"),
            ("t.csv", b"path,x\n", "expected a row for each image or video, found no rows"),
            ("t.jsonl", b"\n", "expected a row for each image or video, found no rows"),
            ("t.csv", b"path,x,x\na,1,2\n", "'x'"),
            ("t.csv", b"path\n\xff\xfe\n", "line 2: expected CSV in UTF-8, found the byte 0xff: save it as UTF-8"),
            (
                "t.csv",
                b"\xef\xbb\xbfpath,x\r\n" + b"a,1\r\n" * 9000 + b"caf\xe9,2\r\nb,3\r\n",
                "line 9002: expected CSV in",
            ),
            ("t.csv", b'path\n"a', "expected CSV"),
            ("t.jsonl", b"{}\n{", "line 2: expected JSON"),
            ("t.jsonl", b"[1]\n", "line 1: expected a JSON object, found list"),
            ("t.jsonl", b'{"path": "\xff"}\n', "t.jsonl"),
            ("t.jsonl", b'{"path": "a.png", "x": [1, NaN]}\n', "line 1: expected finite numbers in lists, found NaN"),
            ("t.jsonl", b"[" * 100_000, "expected at most 32 levels"),
            ("t.parquet", b"not parquet", "t.parquet: expected"),
            ("t.parquet", b"", "t.parquet: expected"),
        ],
    )
    def test_a_broken_table_is_named_with_the_place(
        self, tmp_path: Path, name: str, content: bytes, message: str
    ) -> None:
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(UsageError) as caught:
            TableSource(path).list_items("auto", "path")
        assert str(path) in str(caught.value)
        assert message in str(caught.value)


class TestRows:
    def test_rows_hold_paths_or_arrays(self, images: Path) -> None:
        rows = [
            {"image": IMAGE, "quad": np.arange(4, dtype=np.float32)},
            {"path": "1.png", "quad": np.zeros(4, np.float32)},
        ]
        found = RowsSource(rows, images).list_items("auto", "path")
        assert [item.name for item in found.items] == ["row-00000000", "1.png"]
        assert found.items[0].path is None
        assert found.items[0].columns["image"] is IMAGE
        make_plan(Recipe(), {}, found)

    def test_a_changed_array_is_another_plan(self, images: Path) -> None:
        def fingerprint(value: Any) -> str:
            return make_plan(Recipe(), {}, RowsSource([{"image": value}], images).list_items("auto", "path"))[
                0
            ].fingerprint

        assert fingerprint(IMAGE) == fingerprint(IMAGE.copy())
        assert fingerprint(IMAGE) != fingerprint(IMAGE[::-1])
        assert fingerprint(IMAGE) != fingerprint(IMAGE.reshape(-1, 24 * 3))

    def test_a_missing_array_is_refused(self, images: Path) -> None:
        rows = [{"path": "0.png", "quad": np.zeros(4)}, {"path": "1.png"}]
        with raises(UsageError, place="column 'quad', row 1 (counted from 0)", found="none"):
            RowsSource(rows, images).list_items("auto", "path")


class TestOpening:
    def test_a_path_that_is_not_a_source_is_reported(self, images: Path, tmp_path: Path) -> None:
        out = tmp_path.parent / "out"
        with raises(UsageError, expected="a folder, a table or an archive", found="nothing at this path"):
            open_source(images / "missing", out)
        tables, archives = (
            r"\(.csv, .jsonl, .ndjson, .parquet, .tsv\)",
            r"\(.tar, .tar.gz, .tgz, .zip, .rec, .mdb, .lmdb, .parquet\)",
        )
        with pytest.raises(UsageError, match=f"a folder, a table {tables} or an archive {archives}, found a file .png"):
            open_source(images / "0.png", out)
        with raises(UsageError, option="source", found="int"):
            open_source(3, out)  # type: ignore[arg-type]

    def test_the_output_must_not_be_inside_the_source(self, images: Path, tmp_path: Path) -> None:
        link = tmp_path.parent / f"{tmp_path.name}-link"
        link.symlink_to(images, target_is_directory=True)
        for out in (images, images / "out", link / "out"):
            with pytest.raises(UsageError, match="expected a folder outside the source"):
                open_source(images, out)
        link.unlink()
