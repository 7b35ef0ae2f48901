"""``packer build --classes``: numbers follow a given list, from any source, and a class outside it ends the build."""

import json
import os
import sys
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.builds import QUIET, write_images
from support.command import file_of, read_jsonl, run_packer

from packer import Writer, add, build, verify
from readers import open_dataset
from shardspec.errors import UsageError
from shardspec.layout import Layout


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    return write_images(tmp_path / "photos", ["fake/a.png", "real/b.png", "real/c.png"])


def rows_of(labels: list[Any], **columns: list[Any]) -> list[dict[str, Any]]:
    rows = [
        {"image": np.full((8, 8, 3), number % 256, np.uint8), "label": label}
        for number, label in enumerate(labels)
        if label is not ...
    ]
    for name, values in columns.items():
        for row, value in zip(rows, values, strict=True):
            row[name] = value
    return rows


def labels_of(path: Path) -> tuple[tuple[str, ...] | None, list[int]]:
    dataset = open_dataset(path)
    assert verify(path, deep=True).problems == ()
    return dataset.classes, list(dataset.column("label"))


def test_the_order_is_that_of_the_list(folders: Path, tmp_path: Path) -> None:
    call = ("build", folders, tmp_path / "out", "--label-from", "folder", "--quiet", "--engine", "inline")
    run_packer(*call, "--classes", "real, fake,unsure")
    assert labels_of(tmp_path / "out") == (("real", "fake", "unsure"), [1, 0, 0])
    recipe = Layout(tmp_path / "out").load().generations[0].recipe
    assert recipe["classes"] == ["real", "fake", "unsure"]
    assert "finished already" in run_packer(*call, "--classes", "real,fake,unsure").stdout
    again = run_packer(*call, "--classes", "fake,real,unsure", expect=2).stderr
    assert "classes" in again
    assert "Traceback" not in again


def test_a_build_ends_with_the_classes_and_their_numbers_of_samples(folders: Path, tmp_path: Path) -> None:
    call = ("build", folders, tmp_path / "out", "--label-from", "folder", "--classes", "real,fake,unsure")
    assert run_packer(*call, "--quiet", "--engine", "inline").stdout.splitlines()[1:] == [
        "classes: real (2), fake (1), unsure (0)"
    ]
    made = build(rows_of([3, -1, 3, 7]), tmp_path / "numbers", **QUIET)
    assert made.describe().splitlines()[1:] == ["labels: -1 (1), 3 (2), 7 (1)"]
    assert made.to_json()["labels"] == {"-1": 1, "3": 2, "7": 1}
    names = [f"c{number:02d}" for number in range(12)]
    made = build(rows_of([*names, "c07"]), tmp_path / "many", **QUIET)
    assert made.describe().splitlines()[1:] == ["classes: 12, from 1 sample of c00 to 2 samples of c07"]
    assert dict(made.labels) == {number: 1 + (number == 7) for number in range(12)}
    assert "classes" not in build(folders, tmp_path / "none", label_from="none", **QUIET).describe()


@pytest.mark.parametrize("from_folders", [True, False])
def test_classes_that_differ_in_case_or_blanks_get_a_note(tmp_path: Path, from_folders: bool) -> None:
    names = ["Real", "real", "half fake", "halffake", "fake"]
    if from_folders:
        source: Any = write_images(tmp_path / "in", [f"{name}/{place}.png" for place, name in enumerate(names)])
    else:
        source = rows_of(names)
    made = build(source, tmp_path / "out", label_from="folder" if from_folders else "auto", **QUIET)
    assert labels_of(tmp_path / "out")[0] == tuple(sorted(names))
    similar = [note for note in made.notes if "differ only in case or blanks" in note]
    assert len(similar) == 2
    assert "'Real', 'real'" in similar[0]
    assert "'half fake', 'halffake'" in similar[1]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("names.txt", "real\nfake\nunsure\n\n"),
        ("names.txt", "\ufeffreal \r\nfake\r\nunsure"),
        ("names.json", '["real", "fake", "unsure"]'),
        ("names.JSON", '{"fake": 1, "real": 0, "unsure": 2}'),
        ("names.json", '{"1": "fake", "0": "real", "2": "unsure"}'),
        ("packed", None),
    ],
)
def test_classes_come_from_a_dataset_or_a_list(folders: Path, tmp_path: Path, name: str, content: str | None) -> None:
    place = tmp_path / name
    if content is None:
        build(rows_of(["real"]), place, classes="real,fake,unsure", **QUIET)
    else:
        place.write_bytes(content.encode())
    run_packer(
        "build", folders, tmp_path / "out", "--label-from", "folder", "--quiet", "--engine", "inline", "--classes-from", place
    )  # fmt: skip
    assert labels_of(tmp_path / "out") == (("real", "fake", "unsure"), [1, 0, 0])
    assert Layout(tmp_path / "out").load().generations[0].recipe["classes_from"] == name


def test_the_list_decides_the_bytes_and_not_its_file(folders: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    for number, content in enumerate(("real\nfake", "real\nfake\n\n", "fake\nreal")):
        names.write_text(content)
        build(folders, tmp_path / f"{number}", label_from="folder", classes_from=names, **QUIET)
    made = [Layout(tmp_path / f"{number}").load() for number in range(3)]
    assert made[0].generations[0].fingerprint == made[1].generations[0].fingerprint
    assert made[0].generations[0].fingerprint != made[2].generations[0].fingerprint
    names.write_text("fake\nreal")
    with pytest.raises(UsageError, match="classes of label: was"):
        build(folders, tmp_path / "0", label_from="folder", classes_from=names, **QUIET)


def test_integer_labels_get_the_names_of_a_list(tmp_path: Path) -> None:
    build(rows_of([2, 0, 2]), tmp_path / "out", classes=["cat", "dog", "fox"], **QUIET)
    assert labels_of(tmp_path / "out") == (("cat", "dog", "fox"), [2, 0, 2])
    build(rows_of([-1, 1], name=["", "b"]), tmp_path / "none", classes="a,b", label_names="name", **QUIET)
    assert labels_of(tmp_path / "none") == (("a", "b"), [-1, 1])
    with pytest.raises(UsageError, match=r"labels in numbers from 0 to 1, found 2 \(2 items\): add them"):
        build(rows_of([2, 0, 2]), tmp_path / "few", classes=["cat", "dog"], **QUIET)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_labels_below_that_of_no_class_are_named(tmp_path: Path, suffix: str) -> None:
    """Torch's losses end the training at them, far from the table."""
    names = ["a.png", "b.png", "c.png", "d.png"]
    write_images(tmp_path, names)
    table, out = tmp_path / f"t{suffix}", tmp_path / "out"

    def notes(labels: list[int], column: str, label_from: str = "auto") -> list[str]:
        rows = [{"path": name, column: label} for name, label in zip(names, labels, strict=True)]
        lines = [f"path,{column}", *(f"{row['path']}, {row[column]}" for row in rows)]
        table.write_text("\n".join(lines if suffix == ".csv" else map(json.dumps, rows)))
        made = build(table, out, label_from=label_from, overwrite=True, **QUIET)
        assert (
            open_dataset(out).column("age" if (column, label_from) == ("age", "auto") else "label").tolist() == labels
        )
        return list(made.notes)

    line = 4 if suffix == ".csv" else 3
    for column, label_from in (("label", "auto"), ("age", "age")):
        (note,) = notes([1, 0, -2, -3], column, label_from)
        assert note.startswith(f"column {column!r} has labels below -1 (no class), such as -2 (line {line}), which")
    assert notes([1, 0, -1, -1], "label") == []
    assert "below" not in "".join(notes([1, 0, -2, -3], "age"))


def test_integer_labels_get_the_names_of_a_column(tmp_path: Path) -> None:
    write_images(tmp_path, [f"{number}.png" for number in range(4)])
    lines = ["path,label,wnid", "0.png,2,n3", "1.png,0,n1", "2.png,1,n2", "3.png,2,n3"]
    (tmp_path / "table.csv").write_text("\n".join(lines))
    call = ("build", tmp_path / "table.csv", tmp_path / "out", "--label-names", "wnid", "--quiet", "--engine", "inline")
    run_packer(*call)
    assert labels_of(tmp_path / "out") == (("n1", "n2", "n3"), [2, 0, 1, 2])
    assert list(open_dataset(tmp_path / "out").column("wnid")) == ["n3", "n1", "n2", "n3"]
    other = ("build", tmp_path / "table.csv", tmp_path / "other", *call[3:])
    run_packer(*other, "--classes", "n3,n2,n1,n0")
    assert labels_of(tmp_path / "other") == (("n3", "n2", "n1", "n0"), [0, 2, 1, 0])


@pytest.mark.parametrize(
    ("labels", "names", "message"),
    [
        ([0, 1, 1], ["a", "b", "c"], "expected one name for each label, found 'b' and 'c' for 1"),
        ([0, 1, 2], ["crane", "b", "crane"], "expected one label for each name, found 0 and 2 for 'crane'"),
        ([0, 3, 3], ["a", "b", "b"], "expected labels 0, 1, 2 and so on, found 3 after 0.*`classes_from`"),
        ([1, 2, 2], ["a", "b", "b"], "expected labels from 0 on, found 1"),
        ([0, 1, 1], ["a", None, None], "expected a name for every label, found none for 1"),
        ([0, 1, 1], [7, 8, 8], "expected names in column 'name', found 7"),
        (["x", "y", "y"], ["a", "b", "b"], "expected labels that are numbers, found names"),
    ],
)
def test_names_and_numbers_that_do_not_belong_together(
    tmp_path: Path, labels: list[Any], names: list[Any], message: str
) -> None:
    with pytest.raises(UsageError, match=f"label_names: {message}"):
        build(rows_of(labels, name=names), tmp_path / "out", label_names="name", **QUIET)
    assert not (tmp_path / "out").exists()


def test_the_names_of_a_column_where_an_item_is_rejected(tmp_path: Path) -> None:
    write_images(tmp_path / "photos", ["a.png", "b.png", "c.png"])
    for name, content in (("a", '{"id": 0, "name": "cat"}'), ("b", "{"), ("c", '{"id": 1, "name": "dog"}')):
        (tmp_path / "photos" / f"{name}.json").write_text(content)
    options = {"sidecars": True, "label_from": "id", "label_names": "name", "max_rejects": 1}
    build(tmp_path / "photos", tmp_path / "out", **options, **QUIET)
    assert labels_of(tmp_path / "out") == (("cat", "dog"), [0, 1])


def test_a_class_outside_the_list_ends_the_build_before_it_packs(folders: Path, tmp_path: Path) -> None:
    call = ("build", folders, tmp_path / "out", "--label-from", "folder", "--quiet", "--engine", "inline")
    (line,) = run_packer(*call, "--classes", "Real,fake", expect=2).stderr.splitlines()
    assert "expected labels in 'Real', 'fake', found 'real' (2 items); did you mean 'Real'?: add them" in line
    assert not (tmp_path / "out").exists()
    many = [f"class {number:04d}" for number in range(3000)]
    with pytest.raises(UsageError) as raised:
        build(rows_of(many), tmp_path / "out", classes=many[:1], **QUIET)
    assert len(str(raised.value)) < 1000
    # Only what is packed counts, and a row without a label is a reject as ever.
    build(rows_of(["real", "fake", "other"]), tmp_path / "two", classes="real,fake", limit=2, **QUIET)
    assert labels_of(tmp_path / "two") == (("real", "fake"), [0, 1])
    build(rows_of(["real", None, "fake"]), tmp_path / "reject", classes="real,fake", max_rejects="50%", **QUIET)
    assert labels_of(tmp_path / "reject") == (("real", "fake"), [0, 1])
    assert len(read_jsonl(file_of(tmp_path / "reject", "rejects.jsonl"))) == 1


def test_a_packed_dataset_is_numbered_anew(folders: Path, tmp_path: Path) -> None:
    build(folders, tmp_path / "packed", label_from="folder", **QUIET)
    build(tmp_path / "packed", tmp_path / "out", classes="real,fake", **QUIET)
    assert labels_of(tmp_path / "out") == (("real", "fake"), [1, 0, 0])
    build(rows_of([1, 0]), tmp_path / "numbers", **QUIET)
    build(tmp_path / "numbers", tmp_path / "named", classes_from=tmp_path / "out", **QUIET)
    assert labels_of(tmp_path / "named") == (("real", "fake"), [1, 0])
    assert [int(sample["image"][0, 0, 0]) for sample in open_dataset(tmp_path / "named")] == [0, 1]


def test_the_class_labels_of_hugging_face_keep_their_names(folders: Path, tmp_path: Path) -> None:
    """Parquet tables that `datasets` writes have the names in the file's metadata."""
    features = {
        "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
        "path": {"dtype": "string", "_type": "Value"},
    }
    table = pa.table({"path": ["real/b.png", "fake/a.png"], "label": pa.array([1, 0], pa.int64())})
    for number, (labels, expected) in enumerate(
        (([1, 0], ("cat", "dog")), ([1, 2], ()), ([-1, -2], ()), ([-1, 1], ("cat", "dog")))
    ):
        marked = table.set_column(1, "label", pa.array(labels, pa.int64()))
        marked = marked.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        pq.write_table(marked, folders / "table.parquet")
        build(folders / "table.parquet", tmp_path / f"{number}", **QUIET)
        dataset = open_dataset(tmp_path / f"{number}")
        assert (dataset.classes, list(dataset.column("label"))) == (expected, labels)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("real\n\nfake", "expected names of classes, found '' in "),
        ("", "expected names of classes, found '' in "),
        ("real\nreal", "expected every class once, found 'real' twice in "),
        (b"\xff\xfe", "expected text in UTF-8"),
        (None, "expected a packed dataset or a file, found something else"),
    ],
)
def test_wrong_lists(folders: Path, tmp_path: Path, content: Any, message: str) -> None:
    names = tmp_path / "names.txt"
    if content is None:
        os.mkfifo(names)
    else:
        names.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=f"classes_from: {message}"):
        build(folders, tmp_path / "out", label_from="folder", classes_from=names, **QUIET)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "3",
        '{"a": 1}',
        '{"0": "a", "2": "b"}',
        '{"a": "b"}',
        "[" * 100_000,
        '["\\ud800"]',
        '{"' + "9" * 5000 + '": "a"}',
        "9" * 5000,
        '["a", 3]',
    ],
)
def test_wrong_json_lists(folders: Path, tmp_path: Path, content: str) -> None:
    names = tmp_path / "names.json"
    names.write_text(content)
    with pytest.raises(UsageError, match="classes_from: expected") as raised:
        build(folders, tmp_path / "out", label_from="folder", classes_from=names, **QUIET)
    assert len(str(raised.value)) < 500


def test_wrong_calls(folders: Path, tmp_path: Path) -> None:
    build(rows_of([0]), tmp_path / "unnamed", **QUIET)
    for options, message in (
        ({"classes": 3}, "expected a list of names, or names separated by commas, found 3"),
        ({"classes_from": tmp_path / "unnamed"}, "expected a dataset whose labels have names"),
    ):
        with pytest.raises(UsageError, match=message):
            build(folders, tmp_path / "out", **{"label_from": "folder", **options}, **QUIET)
    with pytest.raises(UsageError, match=r"label_names: expected a column other than the label.*did you mean 'name'"):
        build(rows_of([0], name=["a"]), tmp_path / "out", label_names="nmae", **QUIET)


class TestUnicodeForms:
    """macOS writes ``é`` as two characters, and Linux as one: names of classes are compared and stored in NFC."""

    ONE, TWO = normalize("NFC", "é"), normalize("NFD", "é")

    @pytest.mark.skipif(sys.platform == "darwin", reason="the file system takes both names for one folder")
    def test_folders(self, tmp_path: Path) -> None:
        names = [f"{self.ONE}/a.png", f"{self.TWO}/b.png", "f/c.png"]
        made = build(write_images(tmp_path / "photos", names), tmp_path / "out", label_from="folder", **QUIET)
        assert [(s["source"], int(s["label"])) for s in open_dataset(tmp_path / "out")] == [
            (f"{self.TWO}/b.png", 1),
            ("f/c.png", 0),
            (f"{self.ONE}/a.png", 1),
        ]
        assert open_dataset(tmp_path / "out").classes == ("f", self.ONE)
        assert any(ascii(self.ONE) in note and ascii(self.TWO) in note for note in made.notes)

    @pytest.mark.parametrize("form", ["NFC", "NFD"])
    def test_numbers_do_not_depend_on_the_form(self, tmp_path: Path, form: Any) -> None:
        photos = write_images(tmp_path / "photos", [f"{normalize(form, 'é')}/a.png", "f/c.png"])
        made = build(photos, tmp_path / "out", label_from="folder", **QUIET)
        assert open_dataset(tmp_path / "out").classes == ("f", self.ONE)
        assert not any("Unicode" in note for note in made.notes)

    def test_a_column(self, tmp_path: Path) -> None:
        made = build(rows_of([self.TWO, "f", self.ONE]), tmp_path / "out", **QUIET)
        assert labels_of(tmp_path / "out") == (("f", self.ONE), [1, 0, 1])
        assert any(ascii(self.ONE) in note and ascii(self.TWO) in note for note in made.notes)
        build(rows_of([self.TWO, "f"]), tmp_path / "more", **QUIET)
        build(rows_of([self.TWO, "f", self.ONE, self.TWO]), tmp_path / "out", update=True, **QUIET)
        assert labels_of(tmp_path / "out") == (("f", self.ONE), [1, 0, 1, 1])

    def test_class_labels_of_hugging_face(self, folders: Path, tmp_path: Path) -> None:
        features = {"label": {"names": [self.TWO, "f", self.ONE], "_type": "ClassLabel"}}
        table = pa.table({"path": ["real/b.png", "fake/a.png", "real/c.png"], "label": [0, 1, 2]})
        marked = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        pq.write_table(marked, folders / "table.parquet")
        build(folders / "table.parquet", tmp_path / "out", **QUIET)
        assert labels_of(tmp_path / "out") == ((self.ONE, "f"), [0, 1, 0])

    def test_lists(self, tmp_path: Path) -> None:
        rows = rows_of([self.TWO, "f", self.ONE])
        build(rows, tmp_path / "listed", classes=["f", self.TWO], **QUIET)
        (tmp_path / "list.txt").write_text(f"f\n{self.TWO}\n", "utf-8")
        build(rows, tmp_path / "read", classes_from=tmp_path / "list.txt", **QUIET)
        build(rows, tmp_path / "taken", classes_from=tmp_path / "listed", **QUIET)
        for name in ("listed", "read", "taken"):
            assert labels_of(tmp_path / name) == (("f", self.ONE), [1, 0, 1])
        with pytest.raises(UsageError, match="expected every class once"):
            build(rows, tmp_path / "twice", classes=[self.ONE, self.TWO], **QUIET)

    def test_names_of_a_column(self, tmp_path: Path) -> None:
        rows = rows_of([1, 0, 1], name=[self.TWO, "f", self.ONE])
        build(rows, tmp_path / "out", label_names="name", **QUIET)
        assert labels_of(tmp_path / "out") == (("f", self.ONE), [1, 0, 1])
        assert [sample["name"] for sample in open_dataset(tmp_path / "out")] == [self.TWO, "f", self.ONE]

    def test_a_writer(self, tmp_path: Path) -> None:
        for name, classes in (("free", None), ("given", ["f", self.TWO])):
            with Writer(tmp_path / name, classes=classes, progress=False) as writer:
                for number, label in enumerate((self.TWO, "f", self.ONE)):
                    writer.write(x=number, label=label)
            assert labels_of(tmp_path / name) == (("f", self.ONE), [1, 0, 1])

    def test_a_table_that_is_added(self, tmp_path: Path) -> None:
        build(rows_of([self.ONE] * 3), tmp_path / "out", label_from="none", **QUIET)
        keys = [sample["key"] for sample in open_dataset(tmp_path / "out")]
        made = add(tmp_path / "out", {"key": keys, "label": [self.TWO, "f", self.ONE]}, progress=False)
        assert labels_of(tmp_path / "out") == (("f", self.ONE), [1, 0, 1])
        assert any(ascii(self.ONE) in note and ascii(self.TWO) in note for note in made.notes)
