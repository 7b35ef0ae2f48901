"""Many items: what sources list lies on the disk, and is the same as if it lay in memory."""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.archives import rec_header, write_lmdb, write_rec
from support.command import environment, file_of
from support.errors import raises
from support.fuzz import examples
from support.listeners import Listener

import packer
from packer.builds.planning.listing import list_items
from packer.builds.planning.plan import item_digest
from packer.jobs import progress as progress_module
from packer.recipe import Recipe
from packer.sources import column_types
from packer.sources.archives.member import Member
from packer.sources.item import Item, ItemFile, item_list
from packer.sources.opening import open_source
from packer.sources.row_fields import read_columns
from packer.sources.tables import chunks as chunks_module
from packer.sources.tables.chunks import chunks_of
from packer.workspace import disk_list
from packer.workspace.disk_list import LazyMap, sorted_texts, text_list
from shardspec.errors import BuildError, UsageError
from shardspec.layout import Layout, describe_file


class TestSpool:
    def test_the_spool_holds_exactly_what_was_appended(self) -> None:
        found = text_list().extend(f"text {number}" for number in range(7000))
        expected = [f"text {number}" for number in range(7000)]
        assert found._file is not None
        assert list(found) == expected == [found[number] for number in range(7000)]
        assert (found[-1], list(found[4090:6500]), list(found[5:][4:8])) == (
            expected[-1],
            expected[4090:6500],
            expected[9:13],
        )
        assert list(LazyMap(found, len)[6998:]) == [9, 9]
        others = found[1:]
        for one, two in zip(found[:-1], others, strict=True):  # two readers at a time
            assert int(one[5:]) + 1 == int(two[5:])
        with pytest.raises(IndexError):
            found[7000]

    def test_items_are_the_same_again(self) -> None:
        member = Member("stored", (512, 99), 10**6)
        items = [
            Item(0, "a\udce4.jpg", "/x/a\udce4.jpg", 5, 2**62, {"x": 1.5, "y": None, "z": [1, {"a": True}], "b": b"1"}),
            Item(1, "row", None, reject="no path"),
            Item(
                2,
                "b.tar!1",
                "/b.tar",
                9,
                1,
                {},
                None,
                {"also": ItemFile("c", "/c", 1, 2, member)},
                member,
                {"m": member},
            ),
            Item(3, "c.png", "/c.png", number=77, files={"boxes_from": ItemFile("d", "/d", 3, 4)}),
        ] * 2000
        found = item_list().extend(items)
        assert found._file is not None
        assert list(found) == items
        assert all(Item.from_line(item.to_line()) == item for item in (*items[1:2], *items[3:4]))

    def test_arrays_stay_arrays(self) -> None:
        items = [Item(n, str(n), None, columns={"x": np.arange(3), "y": [np.float32(1)]}) for n in range(6000)]
        found = item_list().extend(items)
        assert found[5999].columns["x"] is items[5999].columns["x"]
        assert type(found[5000].columns["y"][0]) is np.float32

    def test_a_full_disk_is_one_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Full:
            def seek(self, *_: int) -> int:
                return 0

            def write(self, _: bytes) -> None:
                raise OSError(28, "No space left on device")

        monkeypatch.setattr(disk_list, "temporary_file", lambda _: Full())
        with pytest.raises(BuildError, match=r"No space left on device: set TMPDIR to a folder"):
            text_list().extend(map(str, range(7000)))

    @examples(20)
    @given(st.lists(st.text(max_size=3), max_size=30), st.integers(2, 5))
    def test_sorting_in_runs_is_sorting(self, names: list[str], at_once: int) -> None:
        names = [os.fsdecode(name.encode("utf-8", "surrogatepass")) for name in names]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(disk_list, "_SORTED_AT_ONCE", at_once)
            assert list(sorted_texts(names)) == sorted(names, key=os.fsencode)


CELLS = st.sampled_from(
    [
        "",
        "0",
        "7",
        "-3",
        "1.5",
        "-.5",
        "1e3",
        "007",
        "1_0",
        "x",
        " 5",
        "5\t",
        " ",
        " x",
        "1.5 ",
        "nan",
        "-",
        "9" * 20,
        "9" * 400,
    ]
)
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([2**63, 10**400, float("nan"), float("inf"), 0.5, np.int16(3), np.float32(0.5)]),
    st.sampled_from(["", "a", " a ", "b\ud800"]),
    st.sampled_from([[1, 2], [1, 2, 3], [0.5], [], ["a"], {"a": 1}, b"1"]),
)


def read(rows: list[dict[str, Any]], label_from: str, types: dict[str, str], cells: bool, *, at_once: int) -> Any:
    """The columns of rows, of which so many are read at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks_module, "CHUNK_ROWS", at_once)
        patch.setattr(column_types, "_NAMES_MAX", 3)
        try:
            found = read_columns(lambda: chunks_of(rows), label_from, types, "row {}".format, cells=lambda _: cells)
            return list(found.rows(chunks_of(rows))), found.classes, found.fields, found.arrays
        except UsageError as error:
            return str(error)


@given(
    st.one_of(
        st.tuples(st.lists(st.fixed_dictionaries({"a": CELLS, "label": CELLS})), st.just(True)),
        st.tuples(st.lists(st.fixed_dictionaries({}, optional={"a": VALUES, "label": VALUES})), st.just(False)),
        st.tuples(st.lists(st.fixed_dictionaries({"a": st.integers(-3, 3) | st.floats(-1, 1)})), st.just(False)),
    ),
    st.sampled_from(["auto", "none", "a"]),
    st.sampled_from([{}, {"a": "text"}, {"a": "int"}, {"a": "float"}]),
)
@example(([{"a": "9" * 310}, {"a": "1.5"}], True), "none", {})
def test_columns_read_in_passes_are_those_read_at_once(
    table: tuple[list[dict[str, Any]], bool], label_from: str, types: dict[str, str]
) -> None:
    rows, cells = table
    found = [read(rows, label_from, types, cells, at_once=count) for count in (1, 3, 100)]
    assert repr(found[0]) == repr(found[1]) == repr(found[2])  # with the types of the values, and NaN


def test_a_label_that_the_first_pass_has_not_seen_is_not_a_class() -> None:
    rows = [{"label": "fake"}, {"label": None}]
    columns = read_columns(lambda: chunks_of(rows), "auto", {}, str)
    assert [row["label"] for row, _ in columns.rows(chunks_of(rows))] == [0, None]
    with raises(
        UsageError, place="label column 'label'", found="'real', which was missing when the classes were numbered"
    ):
        list(columns.rows(chunks_of([{"label": "real"}])))


PLAN = """
import json, sys
from pathlib import Path
from packer.builds.update.compare import compare
from packer.builds.planning.listing import list_items
from packer.builds.planning.plan import make_plan
from packer.recipe import Recipe
from packer.recipe.options import BuildOptions
from packer.sources.opening import open_source
from shardspec.layout import Layout

def peak_bytes():
    with open("/proc/self/status") as status:  # ru_maxrss counts the memory of the parent too
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

found, bases = [], sys.argv[2:] if sys.argv[1] == "update" else ()
recipe = Recipe(**json.loads(sys.argv[1])) if not bases else Recipe()
for path in map(Path, sys.argv[2:]):
    listing = list_items(open_source(path.with_suffix(".csv") if bases else path, Path("nowhere"), recipe), recipe)
    base = ""
    if bases:
        manifest = Layout(path).load()
        options = BuildOptions(update=True, changed="replace", gone="drop", new_classes=True)
        compared = compare(Layout(path), manifest, listing, recipe, manifest.generations[-1].runtime, options)
        listing, base = compared.listing, manifest.digest
        print(compared.growth.describe(), file=sys.stderr)
    plan, lines = make_plan(recipe, {}, listing, base=base)
    found.append([len(lines), peak_bytes()])
    del listing, plan, lines
print(json.dumps(found))
"""
FEW, MANY = 8_000, 20_000
BYTES = 300
"""Bytes for each item, at most: a Python object for each takes a thousand."""
MORE_BYTES = {"lmdb_of": 700, "packed_of": 700, "built_of": 700}
"""A mapped LMDB counts its own pages; a packed row or an update takes some 500."""


def write_table_of(path: Path, rows: int) -> Path:
    lines = (f"{'ab'[n % 2]}.jpg,class-{n % 10},{n},a text of row {n},{n / 7}" for n in range(rows))
    path.write_text("path,label,take,note,sharpness\n" + "\n".join(lines) + "\n")
    return path


def tar_of(path: Path, rows: int) -> Path:
    """A tar with an image, a class and a JSON document for each item, from headers that `tarfile` makes once."""
    kinds = {"cls": b"%d", "jpg": b"%d", "json": b'{"caption": "%06d"}'}
    blocks = []
    for end, data in kinds.items():
        info = tarfile.TarInfo(f"{'0' * 9}.{end}")
        info.size = len(data % 0)
        header = info.tobuf(tarfile.USTAR_FORMAT)
        blocks.append((header, sum(header[:148]) + 8 * 32 + sum(header[156:]) - 9 * ord("0"), data))
    with path.open("wb") as file:
        for n in range(rows):
            name = b"%02d/%06d" % (n % 100, n)
            for header, checksum, data in blocks:
                file.write(name + header[9:148] + b"%06o\0 " % (checksum + sum(name)) + header[156:])
                file.write((data % (n if len(data) > 2 else n % 10)).ljust(512, b"\0"))
        file.write(bytes(1024))
    return path


def lmdb_of(path: Path, rows: int) -> Path:
    return write_lmdb(path, {b"image-%09d" % n: b"\xff\xd8\xff\xe0image" for n in range(rows)}, folder=False)


def rec_of(path: Path, rows: int) -> Path:
    return write_rec(path, {n: rec_header(float(n % 10), n, b"\xff\xd8image") for n in range(rows)})


def parquet_of(path: Path, rows: int) -> Path:
    columns = {"image": [{"bytes": b"x", "path": "a.jpg"}] * rows, "label": [n % 10 for n in range(rows)]}
    columns["note"] = [f"a text of row {n}" for n in range(rows)]
    pq.write_table(pa.table(columns), path, row_group_size=1000)
    return path


def packed_of(path: Path, rows: int) -> Path:
    with packer.Writer(path, format="npy", progress=False) as writer:
        for number in range(rows):
            writer.write(x=number, name=f"name {number}")
    return path


def built_of(path: Path, rows: int) -> Path:
    """A dataset of one sample, whose reports say that it has many items; a table with most of them, some changed."""
    table = write_table_of(path.with_suffix(".csv"), 1)
    packer.build(table, path, progress=False, engine="inline")
    rows_of = write_table_of(table, rows)
    listing = list_items(open_source(rows_of, path, Recipe()), Recipe())
    line = '{"item": "%s", "state": "packed", "samples": 1, "frames": 1, "source_digest": "%s"}\n'
    with file_of(path, "items.jsonl").open("w") as file:
        file.writelines(line % (item.name, item_digest(item)[:16]) for item in listing.items)
    lines = rows_of.read_text().splitlines(keepends=True)
    changed = (text.replace("a text", "another text") for text in lines[rows // 2 : -100])
    rows_of.write_text("".join((*lines[: rows // 2], *changed)))
    manifest = Layout(path).load()
    entry = describe_file(path, file_of(path, "items.jsonl"))
    files = tuple(entry if one.name == entry.name else one for one in manifest.files)
    Layout(path).manifest.write_bytes(replace(manifest, files=files).dumps())
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of memory")
@pytest.mark.parametrize(
    ("write", "name", "what"),
    [
        (write_table_of, "{}.csv", "{}"),
        (tar_of, "{}.tar", "{}"),
        (lmdb_of, "{}.lmdb", "{}"),
        (rec_of, "{}.rec", "{}"),
        (parquet_of, "{}.parquet", "{}"),
        (packed_of, "{}", '{"label_from": "x"}'),
        (built_of, "{}", "update"),
    ],
)
def test_the_memory_of_planning_hardly_grows_with_the_items(
    tmp_path: Path, write: Callable[[Path, int], Path], name: str, what: str
) -> None:
    for picture in ("a.jpg", "b.jpg"):
        cv2.imwrite(str(tmp_path / picture), np.zeros((8, 8, 3), np.uint8))
    paths = [write(tmp_path / name.format(rows), rows) for rows in (FEW, MANY)]
    command = [sys.executable, "-c", PLAN, what, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    (few, less), (many, more) = json.loads(done.stdout)
    if what == "update":
        assert (few, many) == (FEW // 2 - 99, MANY // 2 - 99), done.stderr  # those that have changed
    else:
        assert (few, many) == (FEW, MANY)
    assert (more - less) / (MANY - FEW) < MORE_BYTES.get(write.__name__, BYTES)


def test_the_estimate_tries_items_all_over_the_plan(tmp_path: Path) -> None:
    for folder, count in (("masks", 60), ("photos", 20)):
        (tmp_path / "in" / folder).mkdir(parents=True)
        for number in range(count):
            path = tmp_path / "in" / folder / f"{number:03d}.png"
            if folder == "masks":
                path.write_bytes(b"not to be read")
            else:
                cv2.imwrite(str(path), np.full((8, 8, 3), number, np.uint8))
    found = packer.dry_run(tmp_path / "in", tmp_path / "out", progress=False)
    assert (found.samples, found.tried_items) == (20, 12)
    labelled = packer.dry_run(tmp_path / "in", tmp_path / "out", label_from="folder", limit=70, progress=False)
    assert 0 < labelled.samples < 20


def test_listing_many_items_reports_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_LATE_S", 0.0)
    (tmp_path / "a.jpg").write_bytes(b"no image")
    (tmp_path / "t.csv").write_text("path,x\n" + "".join(f"a.jpg,{n}\n" for n in range(3000)))

    listener = Listener()
    packer.dry_run(tmp_path / "t.csv", tmp_path / "out", progress=listener)
    listed = [one.done for one in listener.of("listing")]
    assert (listed[0], listed[-1]) == (1000, 3000)
    planned = listener.of("planning")
    assert (planned[-1].done, planned[-1].total, planned[-1].ended) == (3000, 3000, True)
