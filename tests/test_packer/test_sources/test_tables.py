"""Tables as people have them: the types of their columns, lists of numbers, and files that lie elsewhere."""

import csv
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import builds
from support.builds import QUIET
from support.command import file_of, read_jsonl, run_packer
from support.errors import raises
from support.media import scene, write_image

import packer
from packer import build, verify
from packer.assembly.samples import PackedSamples
from packer.sources.base import AllowedFolders
from readers import open_dataset
from shardspec.errors import TooManyRejectsError, UsageError
from shardspec.layout import Layout

IMAGE = scene(0, (24, 16))


def write_images(folder: Path, count: int) -> Path:
    """``0.png``, ``1.png`` and so on."""
    for number in range(count):
        write_image(folder / f"{number}.png", scene(number, (24, 16)))
    return folder


def write_csv(table: Path, **columns: list[Any]) -> Path:
    """A table of those columns."""
    table.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    table.write_text("\n".join(lines) + "\n")
    return table


def values_of(root: Path, field: str) -> list[Any]:
    """A field of all samples."""
    samples = PackedSamples(root)
    found = [sample[field] for sample in samples.read(range(len(samples)))]
    samples.rows.close()
    return found


class TestTypes:
    """One table's values say "000", the next one's 100: the type is that of the column, and not of a file."""

    def two_tables(self, root: Path) -> tuple[Path, Path]:
        """As FaceForensics++ numbers its videos."""
        write_images(root / "a", 2)
        write_images(root / "b", 2)
        paths = ["0.png", "1.png"]
        first = write_csv(root / "a" / "t.csv", path=paths, video=["000", "033"], grade=["1", "2"])
        return first, write_csv(root / "b" / "t.csv", path=paths, video=["100", "133"], grade=["1.5", "2"])

    def test_leading_zeros_stay_text_and_a_merge_says_what_helps(self, tmp_path: Path) -> None:
        tables = self.two_tables(tmp_path)
        for name, table in zip("xy", tables, strict=True):
            run_packer("build", table, tmp_path / name, "--quiet")
        assert values_of(tmp_path / "x", "video") == ["000", "033"]
        assert values_of(tmp_path / "y", "video") == [100, 133]
        done = run_packer("merge", tmp_path / "x", tmp_path / "y", tmp_path / "out", expect=2)
        assert "with the same --text, --float or --int COLUMN" in done.stderr
        for name, table in zip("xy", tables, strict=True):
            options = ("--text", "video", "--float", "grade", "--quiet", "--overwrite")
            run_packer("build", table, tmp_path / name, *options)
        run_packer("merge", tmp_path / "x", tmp_path / "y", tmp_path / "out", "--quiet")
        assert values_of(tmp_path / "out", "video") == ["000", "033", "100", "133"]
        assert values_of(tmp_path / "out", "grade") == [1.0, 2.0, 1.5, 2.0]

    def test_keys_of_a_recipe_file(self, tmp_path: Path) -> None:
        _, table = self.two_tables(tmp_path)
        (tmp_path / "r.toml").write_text('text = ["video", "grade"]\n')
        run_packer("build", table, tmp_path / "out", "--config", tmp_path / "r.toml", "--quiet")
        assert values_of(tmp_path / "out", "video") == ["100", "133"]
        assert values_of(tmp_path / "out", "grade") == ["1.5", "2"]
        again = run_packer("build", table, tmp_path / "out", "--text", "video", "--text", "grade", "--quiet")
        assert "finished already" in again.stdout
        done = run_packer("build", table, tmp_path / "out", "--text", "video", "--quiet", expect=None)
        assert done.returncode != 0
        assert "option text: was ['video', 'grade'], now ['video']" in done.stderr

    @pytest.mark.parametrize("chunk", [1, 4096])
    def test_words_for_missing_values_are_texts_only_on_request(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
    ) -> None:
        monkeypatch.setattr("packer.sources.tables.delimited.CHUNK_ROWS", chunk)
        write_images(tmp_path, 3)
        columns = {
            "floats": ["nan", "0.5", "-2"],
            "integers": ["1", "NaN", "3"],
            "mixed": ["1", "NAN", "0.5"],
            "alone": ["nan", "nan", ""],
            "names": ["nan", "7", "Ann"],
            "country": ["NA", "Chad", "  "],
            "asked": ["nan", "NaN", "1.0"],
            "kept": ["nan", "1", "2"],
            "label": ["nan", "4", "5"],
        }
        table = write_csv(tmp_path / "t.csv", path=["0.png", "1.png", "2.png"], **columns)
        build(table, tmp_path / "out", int="asked", text=["kept", "label"], **QUIET)

        def found(field: str) -> list[Any]:
            values = values_of(tmp_path / "out", field)
            if f"{field}_valid" not in open_dataset(tmp_path / "out").schema:
                return values
            valid = values_of(tmp_path / "out", f"{field}_valid")
            return [value if ok else None for value, ok in zip(values, valid, strict=True)]

        assert found("floats") == [None, 0.5, -2.0]
        assert found("integers") == [1, None, 3]
        assert found("mixed") == [1.0, None, 0.5]
        assert found("alone") == [None, None, None]
        assert found("names") == [None, "7", "Ann"]
        assert found("country") == [None, "Chad", None]
        assert found("asked") == [None, None, 1]
        assert found("kept") == ["nan", "1", "2"]
        assert open_dataset(tmp_path / "out").schema["label"].classes == ("4", "5", "nan")
        assert open_dataset(tmp_path / "out").schema["integers"].dtype == "<i8"

    @pytest.mark.parametrize("source", ["t.csv", "t.tsv", "t.jsonl", "t.parquet", "rows", "paths", "sidecars", "k.csv"])
    def test_words_for_missing_values_are_no_classes_in_any_source(self, tmp_path: Path, source: str) -> None:
        """The words of ``pandas._libs.parsers.STR_NA_VALUES``, as pandas 3.1 has them, and a class on either side."""
        words = "#N/A|#N/A N/A|#NA|-1.#IND|-1.#QNAN|-NaN|-nan|1.#IND|1.#QNAN|<NA>|N/A|NA|NULL|NaN|None|n/a|nan|null"
        labels = ["fake", *words.split("|"), " nan ", "real"]
        if source == "paths":  # a folder name has no /
            labels = [label for label in labels if "/" not in label]
        paths = [
            f"{label}/{number}.png" if source == "paths" else f"{number}.png" for number, label in enumerate(labels)
        ]
        for path in paths:
            write_image(tmp_path / "in" / path, IMAGE)
        rows = [{"path": path, "label": label} for path, label in zip(paths, labels, strict=True)]
        place: Any = tmp_path / "in"
        options: dict[str, Any] = {"max_rejects": 1.0}
        if source == "rows":
            place = [{**row, "path": str(tmp_path / "in" / row["path"])} for row in rows]
            options["root"] = tmp_path / "in"
        elif source == "paths":
            options["fields_from_path"] = "{label}/*.png"
        elif source == "sidecars":
            options["sidecars"] = True
            for row in rows:
                (tmp_path / "in" / row["path"]).with_suffix(".json").write_text(json.dumps({"label": row["label"]}))
        elif source == "k.csv":
            place = tmp_path / "in.tar"
            with tarfile.open(place, "w") as tar:
                for path in paths:
                    tar.add(tmp_path / "in" / path, path)
            options["keys"] = str(write_csv(tmp_path / "k.csv", key=paths, label=labels))
        else:
            place = tmp_path / "in" / source
            if source.endswith("parquet"):
                pq.write_table(pa.Table.from_pylist(rows), place)
            elif source.endswith("jsonl"):
                place.write_text("".join(json.dumps(row) + "\n" for row in rows))
            else:
                mark = "\t" if source.endswith("tsv") else ","
                place.write_text("\n".join(mark.join(row) for row in [("path", "label"), *map(dict.values, rows)]))
        done = build(place, tmp_path / "out", **options, **QUIET)
        ds = open_dataset(tmp_path / "out")
        assert ds.classes == ("fake", "real")
        assert sorted(ds.column("label").tolist()) == [0, 1]
        assert done.counts.rejected_items == len(labels) - 2
        kept = build(place, tmp_path / "kept", text="label", **options, **QUIET)
        assert kept.counts.rejected_items == 0
        assert open_dataset(tmp_path / "kept").classes == tuple(sorted({label.strip() for label in labels}))

    def test_columns_that_look_like_labels_are_named_if_there_is_no_label(self, tmp_path: Path) -> None:
        write_images(tmp_path, 4)
        columns = {
            "path": [f"{number}.png" for number in range(4)],
            "caption": ["a", "b", "c", "d"],
            "person": ["Ann", "Ann", "Bob", "Bob"],
            "emotion": [0, 1, 2, 3],
            "age": [0.5, 0.5, 1, 1],
        }
        table = write_csv(tmp_path / "t.csv", **columns)
        (note,) = build(table, tmp_path / "out", **QUIET).notes
        assert "'emotion' (0, 1, 2, 3), 'person' (Ann, Bob); use --label-from emotion" in note
        assert "caption" not in note
        assert "age" not in note
        assert not build(table, tmp_path / "chosen", label_from="emotion", **QUIET).notes
        assert not build(table, tmp_path / "none", label_from="none", **QUIET).notes
        plain = write_csv(tmp_path / "u.csv", path=columns["path"], caption=columns["caption"])
        (note,) = build(plain, tmp_path / "plain", **QUIET).notes
        assert "'caption'" in note
        assert not build(write_csv(tmp_path / "v.csv", path=columns["path"]), tmp_path / "paths", **QUIET).notes

    @pytest.mark.parametrize("suffix", ["csv", "jsonl"])
    def test_rows_that_occur_twice_are_counted(self, tmp_path: Path, suffix: str) -> None:
        """A file with other columns is another row: several captions of one image are common."""
        write_images(tmp_path, 3)
        paths = ["0.png", "1.png", "0.png", "./1.png", "2.png", "2.png", "0.png"]
        captions = ["a", "b", "a", "b", "c", "d", "a"]
        if suffix == "csv":
            table = write_csv(tmp_path / "t.csv", path=paths, caption=captions)
        else:
            table = tmp_path / "t.jsonl"
            rows = [{"path": path, "caption": [text]} for path, text in zip(paths, captions, strict=True)]
            table.write_text("".join(json.dumps(row) + "\n" for row in rows))
        made = build(table, tmp_path / "out", label_from="none", **QUIET)
        assert made.notes == ("3 rows equal to an earlier row, such as '0.png': each row is packed",)
        assert made.manifest.samples == 7

    def test_a_suffix_makes_paths_of_ids(self, tmp_path: Path) -> None:
        write_images(tmp_path, 2)
        rows = [{"path": 0, "label": 7}, {"path": "1", "label": 8}]
        for source in (write_csv(tmp_path / "t.csv", path=[" 0", "1"], label=[7, 8]), rows):
            made = build(source, tmp_path / f"out-{type(source).__name__}", path_suffix=".png", root=tmp_path, **QUIET)
            assert made.counts.packed_items == 2
            assert values_of(made.path, "source") == ["0.png", "1.png"]

    def test_a_wrong_root_ends_the_build_before_the_rows_are_planned(self, tmp_path: Path) -> None:
        write_images(tmp_path / "in", 1)
        table = write_csv(tmp_path / "t.csv", path=[f"{number}.png" for number in range(300)])
        with raises(UsageError, found="none of the first 100, such as '0.png'"):
            build(table, tmp_path / "out", **QUIET)
        made = build(table, tmp_path / "out", root=tmp_path / "in", max_rejects=1.0, **QUIET)
        assert made.counts.packed_items == 1  # the others are missing one by one

    def test_a_word_for_missing_values_kept_by_text_is_named(self, tmp_path: Path) -> None:
        write_images(tmp_path, 3)
        table = write_csv(
            tmp_path / "t.csv", path=["0.png", "1.png", "2.png"], country=["NA", "TD", "NA"], age=[1, "NA", 3]
        )
        done = run_packer("build", table, tmp_path / "out", "--json", "--quiet", "--label-from", "none")
        (note,) = json.loads(done.stdout)["notes"]
        assert "'country' counts 2 words as missing, such as 'NA' (line 2)" in note
        assert "--text country" in note
        assert run_packer("build", table, tmp_path / "kept", "--text", "country", "--label-from", "none", "--quiet")
        assert values_of(tmp_path / "kept", "country") == ["NA", "TD", "NA"]

    @pytest.mark.parametrize("chunk", [1, 4096])
    def test_blanks_around_numbers_and_column_names_do_not_count(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
    ) -> None:
        monkeypatch.setattr("packer.sources.tables.delimited.CHUNK_ROWS", chunk)
        write_images(tmp_path, 3)
        lines = ["path, label, valence,\tarousal, seen, note"]
        lines += ["0.png, 10, 0.5,\t1.0, 3, 4", "1.png,2 ,-1, , 1.0 ,one", "2.png, -1,,2, 1e0,two "]
        (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
        options = ("--float", "valence", "--int", "seen")
        run_packer("build", tmp_path / "t.csv", tmp_path / "out", *options, "--quiet")
        ds = open_dataset(tmp_path / "out")
        assert ds.classes == ()
        assert ds.column("label").tolist() == [10, 2, -1]
        assert ds.column("valence").tolist() == [0.5, -1, None]
        assert ds.column("valence_valid").tolist() == [True, True, False]
        assert ds.column("arousal").tolist() == [1, None, 2]
        assert ds.column("arousal_valid").tolist() == [True, False, True]
        assert ds.column("seen").tolist() == [3, 1, 1]
        assert ds.column("note") == [" 4", "one", "two "]

    def test_blanks_and_nan_in_a_table_that_is_added_are_missing_numbers(self, tmp_path: Path) -> None:
        write_images(tmp_path / "in", 3)
        out = tmp_path / "out"
        build(tmp_path / "in", out, **QUIET)
        cells = (["1", " 2", "3\t"], ["0.5", " ", " -1e3 "], [" 7", "x", ""], ["nan", "1", "2"], ["1.5", "nan", "x"])
        rows = zip(values_of(out, "key"), *cells, strict=True)
        (tmp_path / "t.csv").write_text("\n".join(["key, count, part, note, good, bad", *map(",".join, rows)]) + "\n")
        packer.add(out, tmp_path / "t.csv", allow_missing=True)
        assert values_of(out, "count") == [1, 2, 3]
        assert values_of(out, "part") == [0.5, 0, -1000]
        assert [bool(valid) for valid in values_of(out, "part_valid")] == [True, False, True]
        assert values_of(out, "note") == [" 7", "x", ""]
        assert [bool(valid) for valid in values_of(out, "good_valid")] == [False, True, True]
        assert values_of(out, "good")[1:] == [1, 2]
        assert values_of(out, "bad") == ["1.5", "", "x"]
        assert [bool(valid) for valid in values_of(out, "bad_valid")] == [True, False, True]

    @pytest.mark.parametrize("chunk", [1, 3, 4096])
    def test_cells_that_make_text_of_a_column_of_numbers_are_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
    ) -> None:
        monkeypatch.setattr("packer.sources.tables.delimited.CHUNK_ROWS", chunk)
        write_images(tmp_path, 4)
        columns = {
            "path": [f"{number}.png" for number in range(4)],
            "label": ["10", "2", "?", "10"],
            "valence": ["0.5", "", "-1", "unknown "],
            "sign": ["+0.5", "1", "nan", "2"],
            "meant": ["1", "2", "3", "x"],
            "words": ["1", "happy", "e5", "-"],
            "video": ["007", "100", "101", "102"],
            "number": ["1", "2", "", "nan"],
        }
        table = write_csv(tmp_path / "t.csv", **columns)
        done = run_packer("build", table, tmp_path / "out", "--text", "meant", "--json", "--quiet")
        assert json.loads(done.stdout)["notes"] == [
            "column 'label' is class names: 3 of 4 cells are numbers, but not '?' (line 4): correct or empty "
            "such cells to get numbers (rows without a label are rejects), or keep the texts with --text label",
            "column 'valence' is text: 2 of 3 cells are numbers, but not 'unknown ' (line 5): correct or empty such "
            "cells to get numbers, or keep the texts with --text valence",
            "column 'sign' is text: 2 of 3 cells are numbers, but not '+0.5' (line 2): --float sign makes it a number",
        ]
        quiet = build(table, tmp_path / "typed", text=["label", "meant", "valence"], float="sign", **QUIET)
        assert not quiet.notes
        assert values_of(tmp_path / "typed", "sign")[0] == 0.5

    def test_cells_that_make_text_of_numbers_are_named_where_a_table_is_added(self, tmp_path: Path) -> None:
        write_images(tmp_path / "in", 3)
        out = tmp_path / "out"
        build(tmp_path / "in", out, **QUIET)
        columns = {"key": values_of(out, "key"), "a": ["1", "2", "?"], "b": ["1", "x", "2"], "c": ["1", "", "2"]}
        table = write_csv(tmp_path / "t.csv", **columns)
        done = run_packer("add", out, table, "--fields", "a,c", "--allow-missing", "--quiet")
        said = "column 'a' is text: 2 of 3 cells are numbers, but not '?' (line 4): correct such cells, or empty them"
        assert f"{said} with --allow-missing, to make it numbers\n" in done.stdout
        assert "'b'" not in done.stdout
        again = run_packer("add", out, table, "--fields", "a", "--replace", "--json", "--quiet")
        assert len(json.loads(again.stdout)["notes"]) == 1

    def test_a_name_that_occurs_twice_in_a_row_is_refused(self, tmp_path: Path) -> None:
        write_images(tmp_path, 1)
        (tmp_path / "t.jsonl").write_text('{"path": "0.png", "a": 1, "a": 2}\n')
        with pytest.raises(UsageError, match="line 1: expected every name once, found 1 name repeated"):
            build(tmp_path / "t.jsonl", tmp_path / "out", **QUIET)

    def test_other_tables_too(self, tmp_path: Path) -> None:
        """They say the types themselves, and one may be of texts where the next is of numbers."""
        write_images(tmp_path, 2)
        rows = [{"path": "0.png", "a": 7, "b": "003", "c": True}, {"path": "1.png", "a": None, "b": "4.0", "c": False}]
        (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
        for number, table in enumerate((tmp_path / "t.jsonl", tmp_path / "t.parquet", rows)):
            out = tmp_path / f"out-{number}"
            how = {} if number < 2 else {"root": tmp_path}
            build(table, out, text=["a", "c"], int="b", **how, **QUIET)
            assert values_of(out, "a") == ["7", ""]
            assert values_of(out, "b") == [3, 4]
            assert values_of(out, "c") == ["true", "false"]

    def test_a_path_is_never_a_number(self, tmp_path: Path) -> None:
        write_image(tmp_path / "100.png", IMAGE)
        (tmp_path / "100").write_bytes((tmp_path / "100.png").read_bytes())
        made = build(write_csv(tmp_path / "t.csv", path=["100"]), tmp_path / "out", **QUIET)
        assert made.counts.packed_items == 1


class TestSeparators:
    """Tables called CSV, as other programs write them."""

    @pytest.mark.parametrize(
        ("name", "mark"),
        [("t.tsv", "\t"), ("t.TSV", "\t"), ("t.csv", ";"), ("t.csv", "\t"), ("t.csv", "|"), ("t.tsv", ",")],
    )
    def test_cells_are_found(self, tmp_path: Path, name: str, mark: str) -> None:
        write_images(tmp_path, 2)
        lines = ["path*grade*Name (of it)*label", '0.png*1.5*"a*b"*real', "1.png**c*fake"]
        table = tmp_path / name
        table.write_text("\ufeff" + "\r\n".join(lines).replace("*", mark), encoding="utf-8")
        made = build(table, tmp_path / "out", **QUIET)
        assert made.manifest.schema["label"].classes == ("fake", "real")
        assert values_of(tmp_path / "out", "name_of_it") == [f"a{mark}b", "c"]
        assert values_of(tmp_path / "out", "grade") == [1.5, 0.0]

    def test_ambiguous_separators_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text("path;age|name\n0.png;1|x\n")
        with raises(
            UsageError, expected="commas between the cells", found="semicolons and vertical bars in the header"
        ):
            build(tmp_path / "t.csv", tmp_path / "out", **QUIET)

    @pytest.mark.parametrize("mark", [";", ","])
    def test_a_line_for_excel_is_named(self, tmp_path: Path, mark: str) -> None:
        (tmp_path / "t.csv").write_text(f"sep={mark}\npath{mark}age\n0.png{mark}1\n")
        with pytest.raises(UsageError, match=f"line 1: .* found 'sep={mark}', which is meant for Excel"):
            build(tmp_path / "t.csv", tmp_path / "out", **QUIET)


class TestNames:
    """Upper and lower case, and which column was meant."""

    def test_a_path_column_in_another_case_is_named(self, tmp_path: Path) -> None:
        write_images(tmp_path, 1)
        table = write_csv(tmp_path / "t.csv", Path=["0.png"], Label=["a"])
        done = run_packer("build", table, tmp_path / "out", expect=2)
        assert (
            "expected a column 'path' of paths, found 'Path', 'Label': name it with --path-column Path" in done.stderr
        )
        made = build(table, tmp_path / "out", path_column="Path", **QUIET)
        assert made.manifest.schema["label"].classes == ("a",)
        with raises(UsageError, option="label_from", found="'label'; did you mean 'Label'?"):
            build(table, tmp_path / "no", path_column="Path", label_from="label", **QUIET)

    def test_another_label_replaces_the_column_label(self, tmp_path: Path) -> None:
        write_images(tmp_path, 2)
        table = write_csv(tmp_path / "t.csv", path=["0.png", "1.png"], Label=["x", "y"], sex=["m", "f"])
        call = (table, tmp_path / "out", "--label-from", "sex", "--quiet")
        line = "the column 'Label' is not packed, since --label-from sex replaces it: rename the column to keep it"
        assert line in run_packer("build", *call, "--dry-run").stdout
        assert line in run_packer("build", *call).stdout
        schema = Layout(tmp_path / "out").load().schema
        assert schema["label"].classes == ("f", "m")
        assert "sex" not in schema
        assert values_of(tmp_path / "out", "label") == [1, 0]


class TestNumberLists:
    """Boxes, embeddings and the like are arrays, and no texts of JSON."""

    ROWS = (
        {"quad": [1, 2, 3, 4], "points": [[0.5, 1], [2, 3]], "many": [1.5], "flags": [True, False], "words": ["a", 1]},
        {"quad": [5, 6, 7, 8], "points": [[4, 5], [6, 7]], "many": [], "flags": [False, True], "words": ["b"]},
        {"quad": [9, 0, 1, 2], "points": [[8, 9], [0, 1.5]], "many": [2, 3], "flags": [True, True], "words": []},
    )

    def rows(self) -> list[dict[str, Any]]:
        """With an image each."""
        return [{"path": f"{number}.png", **row} for number, row in enumerate(self.ROWS)]

    @pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
    def test_they_become_arrays(self, tmp_path: Path, suffix: str) -> None:
        write_images(tmp_path, 3)
        table, rows = tmp_path / f"t{suffix}", self.rows()
        if suffix == ".jsonl":
            table.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            for row in rows:
                row["words"] = [str(word) for word in row["words"]]
            pq.write_table(pa.Table.from_pylist(rows), table)
        run_packer("build", table, tmp_path / "out", "--quiet")
        schema = Layout(tmp_path / "out").load().schema
        kinds = {name: (schema[name].kind, schema[name].dtype, schema[name].shape) for name in self.ROWS[0]}
        assert kinds == {
            "quad": ("fixed", "<i8", (4,)),
            "points": ("fixed", "<f8", (2, 2)),
            "many": ("ragged", "<f8", (None,)),
            "flags": ("fixed", "|b1", (2,)),
            "words": ("text", "|u1", (None,)),
        }
        for name in ("quad", "points", "many", "flags"):
            for found, row in zip(values_of(tmp_path / "out", name), rows, strict=True):
                assert np.array_equal(found, row[name])
        assert values_of(tmp_path / "out", "words") == [row["words"] for row in rows]
        assert verify(tmp_path / "out", deep=True).problems == ()
        done = run_packer("build", table, tmp_path / "try", "--dry-run", "--quiet")
        assert "3 samples" in done.stdout

    def test_one_task_of_empty_lists_has_the_type_of_the_column(self, tmp_path: Path) -> None:
        rows = [{"image": IMAGE, "boxes": [] if number < 40 else [[1.5, 2, 3, 4]] * 2} for number in range(70)]
        schema = build(rows, tmp_path / "out", **QUIET).manifest.schema
        assert (schema["boxes"].kind, schema["boxes"].shape) == ("ragged", (None, 4))
        assert [len(value) for value in values_of(tmp_path / "out", "boxes")] == [0] * 40 + [2] * 30

    @pytest.mark.parametrize(
        ("known", "shape", "missing"),
        [
            ([[1, 2], [3, 4]], (2,), [0, 0]),
            ([[1, 2], [3]], (None,), []),
            ([[True, False], [True, True]], (2,), [False, False]),
            ([[0.5, 1], [2.5, 3]], (2,), [0, 0]),
        ],
    )
    def test_a_missing_list_has_the_type_of_the_others(
        self, tmp_path: Path, known: list[list[Any]], shape: tuple[int | None, ...], missing: list[Any]
    ) -> None:
        rows = [{"image": IMAGE, "x": value} for value in (*known, None)]
        field = build(rows, tmp_path / "out", **QUIET).manifest.schema["x"]
        assert (field.dtype, field.shape) == (np.array(known[0]).dtype.str, shape)
        assert [value.tolist() for value in values_of(tmp_path / "out", "x")] == [*known, missing]
        assert [bool(valid) for valid in values_of(tmp_path / "out", "x_valid")] == [True, True, False]

    @pytest.mark.parametrize(
        "values",
        [
            [[1, None], [2, 3]],
            [[1, True], [2, 3]],
            [[[1], [2, 3]], [[1], [2]]],
            [[1, 2], [[1, 2]]],
            [[[1, 2]], [[1, 2, 3]]],
            [[2**63], [1]],
            [[10**400, 0.5], [1, 2]],
            [[], []],
            [[[]], [[1]]],
        ],
    )
    def test_other_lists_stay_json(self, tmp_path: Path, values: list[Any]) -> None:
        rows = [{"image": IMAGE, "x": value} for value in values]
        field = build(rows, tmp_path / "out", **QUIET).manifest.schema["x"]
        assert (field.kind, field.codec.name) == ("text", "json")
        assert values_of(tmp_path / "out", "x") == values

    def test_steps_see_arrays(self, tmp_path: Path) -> None:
        def double(samples: Any) -> Any:
            for sample in samples:
                yield {**sample, "quad": sample["quad"] * 2}

        rows = [{"image": IMAGE, "quad": [1, 2, 3]}, {"image": IMAGE, "quad": [4, 5, 6]}]
        build(rows, tmp_path / "out", steps=["decode", double], **QUIET)
        assert [value.tolist() for value in values_of(tmp_path / "out", "quad")] == [[2, 4, 6], [8, 10, 12]]


class TestElsewhere:
    """The table lies in one place, the files in another."""

    @pytest.mark.parametrize("absolute", [True, False])
    def test_a_table_with_paths_outside_its_folder_is_refused_at_once_with_the_cure(
        self, tmp_path: Path, absolute: bool
    ) -> None:
        write_images(tmp_path / "data" / "real", 3)
        folder = tmp_path / "data" if absolute else Path("../data")
        table = write_csv(tmp_path / "lists" / "t.csv", path=[folder / "real" / f"{n}.png" for n in range(3)])
        done = run_packer("build", table, tmp_path / "out", expect=2)
        assert (
            f"expected files inside {tmp_path / 'lists'}, found 3 of 3 paths outside, such as line 2: "
            f"'{folder}/real/0.png': name the folder of the files with --root DIR"
        ) in done.stderr
        assert "packing" not in done.stderr
        assert not (tmp_path / "out").exists()

    def test_one_path_outside_among_many_is_reported_too(self, tmp_path: Path) -> None:
        write_images(tmp_path / "in", 2)
        write_image(tmp_path / "2.png", IMAGE)
        (tmp_path / "in" / "link.png").symlink_to(tmp_path / "2.png")
        for path in ("../2.png", "link.png"):
            table = write_csv(tmp_path / "in" / "t.csv", path=["0.png", "1.png", path])
            with pytest.raises(UsageError, match=f"found 1 of 3 paths outside, such as line 4: '{path}'"):
                build(table, tmp_path / "out", **QUIET)
            build(table, tmp_path / path.replace("/", "-"), limit=2, **QUIET)

    def test_paths_are_relative_to_the_root_or_absolute_below_it(self, tmp_path: Path) -> None:
        data = write_images(tmp_path / "data", 3)
        table = write_csv(tmp_path / "lists" / "t.csv", path=["0.png", data / "1.png", "../data/2.png"])
        call = (table, tmp_path / "out", "--root", data, "--quiet")
        run_packer("build", *call)
        assert values_of(tmp_path / "out", "source") == ["0.png", "1.png", "2.png"]
        for file in ("manifest.json", "items.jsonl", "rejects.jsonl"):
            path = file_of(tmp_path / "out", file)
            assert str(tmp_path) not in path.read_text()
        assert Layout(tmp_path / "out").load().generations[0].recipe["root"] == ["data"]
        assert "finished already" in run_packer("build", *call).stdout

    def test_a_root_behind_a_link_leaves_no_absolute_name(self, tmp_path: Path) -> None:
        write_images(tmp_path / "disk" / "data", 2)
        (tmp_path / "mount").symlink_to(tmp_path / "disk")
        paths = [tmp_path / "mount" / "data" / "0.png", tmp_path / "disk" / "data" / "1.png"]
        for number, root in enumerate(("mount", "disk")):
            table = write_csv(tmp_path / "lists" / "t.csv", path=paths)
            out = tmp_path / f"out-{number}"
            build(table, out, root=tmp_path / root / "data", **QUIET)
            assert values_of(out, "source") == ["0.png", "1.png"]
        table = write_csv(tmp_path / "disk" / "data" / "t.csv", path=paths)
        build(table, tmp_path / "beside", **QUIET)
        assert values_of(tmp_path / "beside", "source") == ["0.png", "1.png"]

    def test_several_roots_keep_files_of_one_name_apart(self, tmp_path: Path) -> None:
        first, second = write_images(tmp_path / "a", 2), write_images(tmp_path / "b", 1)
        write_image(second / "own.png", IMAGE)
        (first / "link.png").symlink_to(second / "own.png")
        paths = [first / "0.png", second / "0.png", "own.png", "link.png", "1.png"]
        table = write_csv(tmp_path / "lists" / "t.csv", path=paths)
        run_packer("build", table, tmp_path / "out", "--root", first, "--root", second, "--quiet")
        assert values_of(tmp_path / "out", "source") == ["a/0.png", "b/0.png", "b/own.png", "a/link.png", "a/1.png"]
        table = write_csv(tmp_path / "lists" / "t.csv", path=[*paths, "0.png"])
        build(table, tmp_path / "twice", root=[first, second], max_rejects=1, **QUIET)
        (line,) = read_jsonl(file_of(tmp_path / "twice", "rejects.jsonl"))
        assert (line["item"], line["reason"].partition(":")[0]) == (
            "0.png",
            "expected a path below a single root, found it below 2",
        )

    def test_other_path_columns_are_relative_to_the_roots_too(self, tmp_path: Path) -> None:
        data = write_images(tmp_path / "data", 2)
        table = write_csv(tmp_path / "lists" / "t.csv", path=["0.png"], mask=[data / "1.png"])
        listing = build_listing(table, data, "mask")
        (item,) = listing
        assert item.files["also"].name == "1.png"

    def test_wrong_roots(self, tmp_path: Path) -> None:
        for name in ("a/x", "b/x"):
            (tmp_path / name).mkdir(parents=True)
        (tmp_path / "file").touch()
        for folders, message in (
            (("none",), "root: expected a folder, found none at"),
            (("file",), "root: expected a folder, found a file at"),
            (("a", "a/x"), "root: expected folders that are not inside each other"),
            (("a/x", "b/x"), "root: expected folders that are not inside each other, with different names"),
        ):
            with pytest.raises(UsageError, match=message):
                AllowedFolders.of(*(tmp_path / folder for folder in folders))


def build_listing(table: Path, root: Path, also: str) -> list[Any]:
    """The items of a build of faces with masks, without its detector."""
    from packer import Recipe
    from packer.builds.planning.listing import list_items
    from packer.sources.opening import open_source

    recipe = Recipe(preset="faces", also=also, root=(str(root),))
    return list(list_items(open_source(table, table.parent / "out", recipe), recipe).items)


def test_columns_without_letters_a_to_z_are_refused(tmp_path: Path) -> None:
    """Without them, an age and a sex would both be `column`, and a merge would mix them."""
    builds.write_images(tmp_path, ["a.png"])
    (tmp_path / "t.csv").write_text("path,\u5e74\u9f84\na.png,30\n", encoding="utf-8")
    done = run_packer("build", tmp_path / "t.csv", tmp_path / "out", "--quiet", expect=2)
    assert "expected a name with letters a to z" in done.stderr
    assert not (tmp_path / "out").exists()


def test_spaces_around_a_class_make_no_other_and_none_drops_the_label(tmp_path: Path) -> None:
    builds.write_images(tmp_path, ["a.png", "b.png", "c.png"])
    (tmp_path / "t.csv").write_text("path,label\na.png,fake\nb.png, fake\nc.png,real\n")
    run_packer("build", tmp_path / "t.csv", tmp_path / "out", "--quiet")
    ds = open_dataset(tmp_path / "out")
    assert ds.manifest.schema["label"].classes == ("fake", "real")
    assert ds.column("label").tolist() == [0, 0, 1]
    run_packer("build", tmp_path / "t.csv", tmp_path / "none", "--label-from", "none", "--quiet")
    assert "label" not in open_dataset(tmp_path / "none").manifest.schema


def test_a_step_file_with_a_mistake_is_reported_in_a_line(tmp_path: Path) -> None:
    builds.write_images(tmp_path / "in", ["a.png"])
    (tmp_path / "broken_step.py").write_text("def denoise(samples)\n    pass\n")
    call = ("build", tmp_path / "in", tmp_path / "out", "--steps", "decode,broken_step:denoise", "--quiet")
    done = run_packer(*call, cwd=tmp_path, expect=2)
    assert "broken_step.py, line 1, found a mistake" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_error_for_a_table_in_another_folder_advises_root(tmp_path: Path) -> None:
    write_image(tmp_path / "images" / "a.png", scene(0, (8, 6)))
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "t.csv").write_text("path\na.png\nb.png\n")
    with pytest.raises(TooManyRejectsError, match=r"and are relative to its folder, or to --root DIR$"):
        build(tmp_path / "tables" / "t.csv", tmp_path / "out", engine="inline", progress=False)


@pytest.mark.parametrize(
    ("path", "message"), [("sub\\a.png", "the path has backslashes"), ("sub/a", "paths in a table have / and a suffix")]
)
def test_paths_of_windows_and_paths_without_a_suffix_are_answered_with_what_is_expected(
    tmp_path: Path, path: str, message: str
) -> None:
    write_image(tmp_path / "sub" / "a.png", scene(0, (8, 6)))
    (tmp_path / "t.csv").write_text(f"path\n{path}\n")
    with pytest.raises(TooManyRejectsError, match=message):
        build(tmp_path / "t.csv", tmp_path / "out", engine="inline", progress=False)


def test_blanks_around_a_path_do_not_count_unless_the_file_has_them(tmp_path: Path) -> None:
    builds.write_images(tmp_path, ["a.png", "b.png", " b.png"])
    (tmp_path / "t.csv").write_text("label,path,mask\nx, a.png , \ny, b.png,\tb.png\n")
    made = build(tmp_path / "t.csv", tmp_path / "out", also="mask", **QUIET)
    assert values_of(tmp_path / "out", "source") == ["a.png", " b.png"]
    assert [note for note in made.notes if "' a.png '" in note]
    assert values_of(tmp_path / "out", "mask_image_valid") == [False, True]


def test_a_url_is_not_a_path(tmp_path: Path) -> None:
    builds.write_images(tmp_path, ["a.png"])
    url = "https://example.org/a//b.png"
    (tmp_path / "t.csv").write_text(f"path\na.png\n{url}\n")
    with raises(UsageError, found=f"1 of 2 paths outside, such as line 3: '{url}'"):
        build(tmp_path / "t.csv", tmp_path / "out", max_rejects=1.0, **QUIET)
    for options in ({"boxes": "s3://b/x.csv", "preset": "faces"}, {"classes_from": "s3://b"}):
        with pytest.raises(UsageError, match="found the URL 's3://b"):
            build(tmp_path / "t.csv", tmp_path / "no", **options, **QUIET)
    packer.build([{"path": str(tmp_path / "a.png")}], tmp_path / "out", root=[tmp_path], **QUIET)
    with pytest.raises(UsageError, match="found the URL"):
        packer.add(tmp_path / "out", "s3://b/t.csv", progress=False)


def test_a_table_without_a_header_is_not_read_as_having_one(tmp_path: Path) -> None:
    """With the file's name as the name of the column, its row would be lost."""
    write_image(tmp_path / "a.png", scene(0, (8, 6)))
    (tmp_path / "t.csv").write_text("a.png,cat\na.png,dog\n")
    done = run_packer("build", tmp_path / "t.csv", tmp_path / "out", "--quiet", expect=2)
    assert "expected the names of the columns in the first line, found a row with the file 'a.png'" in done.stderr
    assert "--path-column" not in done.stderr


def test_a_column_without_a_name_is_left_out_and_reported_by_number(tmp_path: Path) -> None:
    """The index that pandas writes, and commas at the end, as spreadsheets write them."""
    builds.write_images(tmp_path, ["a.png", "b.png"])
    (tmp_path / "t.csv").write_text(",path,label, ,\n0,a.png,cat,,\n1,b.png,dog,x,\n")
    done = run_packer("build", tmp_path / "t.csv", tmp_path / "out", "--json", "--quiet")
    assert json.loads(done.stdout)["notes"] == [
        "columns 1, 4, 5 have no name and are skipped: name them in the header to keep them"
    ]
    ds = open_dataset(tmp_path / "out")
    assert ds.classes == ("cat", "dog")
    assert not [name for name in ds.schema.names if name.startswith("column")]
    (tmp_path / "k.csv").write_text(f"key,n,\n{ds.column('key')[0]},1,\n{ds.column('key')[1]},2,\n")
    done = run_packer("add", tmp_path / "out", tmp_path / "k.csv", "--quiet")
    assert "\ncolumn 3 has no name and is skipped: name it in the header to keep it\n" in done.stdout
    assert open_dataset(tmp_path / "out").column("n").tolist() == [1, 2]
    (tmp_path / "i.csv").write_text(",label\na.png,cat\n")
    done = run_packer("build", tmp_path / "i.csv", tmp_path / "no", "--quiet", expect=2)
    assert "paths, found 'label': name it with --path-column; column 1 has no name and is skipped" in done.stderr


def test_numbers_with_a_point_in_the_label_are_answered_with_int(tmp_path: Path) -> None:
    """As pandas writes integers beside a missing one."""
    builds.write_images(tmp_path, ["a.png", "b.png"])
    (tmp_path / "t.csv").write_text("path,The Label\na.png,1.0\nb.png,\n")
    call = ("build", tmp_path / "t.csv", tmp_path / "out", "--label-from", "The Label", "--quiet")
    assert "found float: --int 'The Label' if all are whole" in run_packer(*call, expect=2).stderr
    run_packer(*call, "--int", "The Label", "--max-rejects", "50%")
    assert open_dataset(tmp_path / "out").column("label").tolist() == [1]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['"a man', "two men", 'a "'], "line 2: expected a row, found a cell .* holds the rows up to line 4"),
        (['"a" man', "two men", "three"], 'line 2: expected CSV, .*: enclose a cell that begins with "'),
        (["a man", "two men", '"three'], "line 4: expected CSV, unexpected end of data: enclose a cell"),
    ],
)
@pytest.mark.parametrize("columns", ["path\tcaption", "caption\tpath"])
def test_texts_that_begin_with_a_quotation_mark_swallow_no_rows(
    tmp_path: Path, lines: list[str], message: str, columns: str
) -> None:
    """Captions between tabs, as they were typed: what looks like CSV would be fewer rows than there are."""
    rows = [f"{n}.png\t{text}" if columns.startswith("path") else f"{text}\t{n}.png" for n, text in enumerate(lines)]
    (tmp_path / "t.tsv").write_text("\n".join([columns, *rows]) + "\n")
    with pytest.raises(UsageError, match=message):
        build(tmp_path / "t.tsv", tmp_path / "out", engine="inline", progress=False)


def test_a_cell_that_is_too_long_for_a_csv_file_fits_into_json_lines(tmp_path: Path) -> None:
    builds.write_images(tmp_path, ["a.png"])
    note = "z" * 140_000
    (tmp_path / "t.csv").write_text(f'path,note\na.png,"{note}"\n')
    with raises(UsageError, place=f"{tmp_path / 't.csv'}, line 2", found="a longer one"):
        build(tmp_path / "t.csv", tmp_path / "out", **QUIET)
    (tmp_path / "t.jsonl").write_text(json.dumps({"path": "a.png", "note": note}) + "\n")
    build(tmp_path / "t.jsonl", tmp_path / "out", **QUIET)
    assert values_of(tmp_path / "out", "note") == [note]


def test_a_table_that_was_written_without_quoting(tmp_path: Path) -> None:
    builds.write_images(tmp_path, ["a.png", "b.png"])
    texts = [
        '"a man',
        'two "men""',
    ]
    rows = [f"{name}\t{text}" for name, text in zip(["a.png", "b.png"], texts, strict=True)]
    (tmp_path / "t.tsv").write_text("\n".join(["path\ttext", *rows]) + "\n")
    build(tmp_path / "t.tsv", tmp_path / "out", unquoted=True, **QUIET)
    assert values_of(tmp_path / "out", "text") == texts
    (tmp_path / "more.tsv").write_text("\n".join(["source\tmore", *rows]) + "\n")
    packer.add(tmp_path / "out", tmp_path / "more.tsv", on="source", unquoted=True, progress=False)
    assert [sample["more"] for sample in open_dataset(tmp_path / "out")] == texts
    (tmp_path / "t.jsonl").write_text('{"path": "a.png"}\n')
    for source in (tmp_path / "t.jsonl", tmp_path):
        with pytest.raises(UsageError, match="unquoted: applies only to"):
            build(source, tmp_path / "no", unquoted=True, **QUIET)


def test_texts_of_several_lines_and_with_tabs_stay_whole(tmp_path: Path) -> None:
    builds.write_images(tmp_path, ["a.png", "b.png"])
    texts = ["one\ntwo", 'a\tb\nc\td\te "f"']
    with (tmp_path / "t.tsv").open("w", newline="") as file:
        csv.writer(file, delimiter="\t").writerows([["path", "text"], ["a.png", texts[0]], ["b.png", texts[1]]])
    build(tmp_path / "t.tsv", tmp_path / "out", engine="inline", progress=False)
    assert [sample["text"] for sample in open_dataset(tmp_path / "out")] == texts
    builds.write_images(tmp_path, ["two\nlines.png"])
    (tmp_path / "one.tsv").write_text('path\n"two\nlines.png"\n')
    build(tmp_path / "one.tsv", tmp_path / "one", engine="inline", progress=False)
    assert [sample["source"] for sample in open_dataset(tmp_path / "one")] == ["two\nlines.png"]
