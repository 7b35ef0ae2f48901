"""``ds.join``: the columns of a table as further fields while reading, without writing."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.datasets import face_schema, write_dataset
from support.errors import raises
from support.fuzz import examples
from support.packed import fingerprints
from support.packed_files import face_columns
from torch.utils.data import DataLoader

import packer
from readers import CenterCrop, Loader, MixedDataset, open_dataset
from shardspec.errors import UsageError
from shardspec.schema import Field, NamedConfig, Schema
from shardspec.typing.join import DatasetKeys, join_frame

ROWS = 12


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A dataset of several shards without a field ``score``."""
    schema = Schema(tuple(field for field in face_schema(codec="jpeg") if field.name != "score"))
    columns = face_columns(ROWS, codec="jpeg")
    write_dataset(tmp_path / "ds", "lmdb", schema, {name: columns[name] for name in schema.names}, shard_rows=5)
    return tmp_path / "ds"


def frame_of(root: Path) -> dict[str, Any]:
    """A table with a number, an array, a list and a text for each sample, in reverse."""
    keys = open_dataset(root).column("key")[::-1]
    rows = np.arange(ROWS)[::-1]
    return {
        "key": keys,
        "score": rows.astype("<f4"),
        "vector": np.repeat(rows, 3).reshape(-1, 3).astype("<f2"),
        "list": [list(range(row % 3)) for row in rows.tolist()],
        "word": [f"w{row}" for row in rows],
    }


def check(batch: Any, rows: list[int]) -> None:
    """The joined values of some rows, and one of the dataset's own."""
    assert np.asarray(batch["score"]).tolist() == rows
    assert np.asarray(batch["vector"]).tolist() == [[row] * 3 for row in rows]
    assert [np.asarray(value).tolist() for value in batch["list"]] == [list(range(row % 3)) for row in rows]
    assert list(batch["word"]) == [f"w{row}" for row in rows]
    assert np.asarray(batch["frame"]).tolist() == [10 * row for row in rows]


def test_joined_fields_are_read_like_any_other(root: Path) -> None:
    before = fingerprints(root)
    ds = open_dataset(root)
    joined = ds.join(frame_of(root))
    assert "score" not in ds.schema
    assert joined.schema.names[-4:] == ("score", "vector", "list", "word")
    check(joined.read_batch(np.array([7, 0, 11, 7])), [7, 0, 11, 7])
    assert joined.column("score").tolist() == list(range(ROWS))
    assert joined.column("word") == [f"w{row}" for row in range(ROWS)]
    part = joined.where(lambda score, word: (score > 3) & (word != "w5"), ["score", "word"])
    check(part.read_batch(np.arange(len(part))), [4, 6, 7, 8, 9, 10, 11])
    assert joined.small_fields == (*ds.small_fields, "score", "word")
    part = joined.subset(range(ROWS)).where("score > 3 and word != 'w5'")
    check(part.read_batch(np.arange(len(part))), [4, 6, 7, 8, 9, 10, 11])
    check(pickle.loads(pickle.dumps(joined)).read_batch(np.array([3])), [3])
    rows = [
        row for batch in Loader(joined, batch_size=5, seed=1) for row in np.asarray(batch["score"]).astype(int).tolist()
    ]
    assert sorted(rows) == list(range(ROWS))
    loader = DataLoader(joined, batch_size=4, num_workers=1, collate_fn=joined.collate)
    for number, batch in enumerate(loader):
        check(batch, list(range(4 * number, 4 * number + 4)))
    assert fingerprints(root) == before


def test_a_join_returns_what_packer_add_stores(root: Path) -> None:
    joined = open_dataset(root).join(frame_of(root))
    packer.add(root, frame_of(root), progress=False)
    stored = open_dataset(root)
    assert {field.name: field for field in stored.schema} == {field.name: field for field in joined.schema}
    for name in ("score", "vector", "list", "word"):
        for a, b in zip(stored.column(name), joined.column(name), strict=True):
            np.testing.assert_array_equal(a, b)


KEYS = {
    "text": st.one_of(st.text(max_size=3), st.sampled_from(["a", "a\0", "\udcff", "ä", "-1"])).filter(bool),
    "fixed": st.one_of(st.integers(-3, 3), st.sampled_from([0, 2**61 - 1, -(2**63), 2**63 - 1])),
}


@examples(150)
@given(st.sampled_from(sorted(KEYS)).flatmap(lambda kind: st.tuples(st.just(kind), *[st.lists(KEYS[kind])] * 2)))
def test_joined_rows_match_a_dict_lookup(made: tuple[str, list[Any], list[Any]]) -> None:
    kind, given_keys, own = made
    assume(given_keys)
    field = (
        Field("id", "text", "|u1", (None,), NamedConfig("utf8")) if kind == "text" else Field("id", "fixed", "<i8", ())
    )
    values = own if kind == "text" else np.array(own, np.int64)
    keys = DatasetKeys(field, values, np.ones(len(own), np.bool_))
    frame = {"id": given_keys, "x": np.arange(len(given_keys))}

    def joined() -> Any:
        return join_frame(frame, [keys], taken=(), allow_missing=True, allow_unknown=True)

    first: dict[Any, int] = {}
    for row, key in enumerate(given_keys):
        if first.setdefault(key, row) != row:
            with pytest.raises(UsageError, match=rf"found .* in rows {first[key]} and {row} \(counted from 0\)"):
                joined()
            return
    found = joined()
    assert found.columns["x"].tolist() == [first.get(key, 0) for key in own]
    assert found.columns["x_valid"].tolist() == [key in first for key in own]
    assert found.unknown == len(set(given_keys) - set(own))


def test_chosen_fields_transforms_and_plans_stay(root: Path) -> None:
    ds = open_dataset(root, fields=["image", "frame"], decode={"image": CenterCrop(16)})
    joined = ds.with_transform(lambda sample: {**sample, "twice": sample["frame"] * 2}).join(
        {"key": ds.column("key"), "n": np.arange(ROWS)}
    )
    sample = joined[4]
    assert set(sample) == {"image", "frame", "twice", "n"}
    assert (sample["n"], sample["twice"], sample["image"].shape) == (4, 80, (16, 16, 3))


def test_parts_and_relabelled_datasets_are_joined_by_their_own_samples(root: Path) -> None:
    ds = open_dataset(root)
    part = ds.subset([5, 2, 5])
    keys = ds.column("key")
    few = {"key": [keys[2], keys[5]], "n": [20, 50]}
    assert part.join(few).column("n").tolist() == [50, 20, 50]
    assert [int(sample["n"]) for sample in part.join(few)] == [50, 20, 50]
    assert part.subset([1]).join({"key": [keys[2]], "n": [2]})[0]["n"] == 2
    with pytest.raises(UsageError, match="found none for 10"):
        ds.join(few)
    with raises(UsageError, place="table", found="none for 1 (key '00000002-000001')"):
        part.join({"key": [keys[2]], "n": [2]})
    marked = part.join({"key": [keys[2]], "n": [2]}, allow_missing=True)
    assert marked.column("n_valid").tolist() == [False, True, False]
    swapped = ds.with_classes(["fake", "real"]).join({"key": keys, "n": np.arange(ROWS)})
    assert swapped[7]["n"] == 7
    assert swapped.classes == ("fake", "real")
    with pytest.raises(UsageError, match="join the datasets before you mix them"):
        MixedDataset([ds, ds]).subset([0]).join(few)


def test_a_row_for_each_video_goes_to_its_samples(root: Path) -> None:
    ds = open_dataset(root)
    sources = sorted(set(ds.column("source")))
    joined = ds.join({"source": sources, "person": range_of(sources)}, on="source")
    assert joined.column("person").tolist() == [row % 3 for row in range(ROWS)]
    by_frame = ds.join({"number": np.arange(0, 10 * ROWS, 10), "n": np.arange(ROWS)}, on="frame", key="number")
    assert by_frame.column("n").tolist() == list(range(ROWS))
    again = by_frame.join({"n": np.arange(ROWS), "m": np.arange(ROWS) * 2}, on="n")
    assert again[5]["m"] == 10
    with raises(UsageError, place="table", found="none"):
        ds.join({"frame": [10]}, on="frame")
    with raises(UsageError, option="on", found="another kind named 'time'"):
        ds.join({"time": [0.0], "n": [1]}, on="time")
    with pytest.raises(UsageError, match="has a field 'frame' already"):
        ds.join({"key": ds.column("key"), "frame": np.arange(ROWS)})


def test_a_row_for_each_frame_of_a_video_goes_to_its_samples(root: Path) -> None:
    ds = open_dataset(root)
    own = list(zip(ds.column("source"), ds.column("frame").tolist(), strict=True))
    videos, frames = zip(*own[::-1], strict=True)
    table = {"source": videos, "frame": np.array(frames), "n": np.arange(ROWS)[::-1]}
    assert ds.join(table, on=["source", "frame"]).column("n").tolist() == list(range(ROWS))
    assert ds.subset([4, 1]).join(table, on=("source", "frame")).column("n").tolist() == [4, 1]
    named = {"video": videos, "number": list(frames), "n": table["n"]}
    found = ds.join(named, on=["source", "frame"], key=["video", "number"])
    assert found.column("n").tolist() == list(range(ROWS))
    assert ds.join({"key": ds.column("key"), "n": np.arange(ROWS)}, on=["key"]).column("n")[3] == 3


def range_of(values: list[str]) -> list[int]:
    """A number for each value."""
    return list(range(len(values)))


def test_tables_of_arrow(root: Path) -> None:
    ds, frame = open_dataset(root), frame_of(root)
    table = pa.table(
        {
            name: pa.array(list(values)) if name != "vector" else pa.array(values.tolist())
            for name, values in frame.items()
        }
    )
    rows = np.array([1, 8])
    check(ds.join(table).read_batch(rows), [1, 8])
    nulls = pa.table({"key": frame["key"], "x": pa.array([None, *range(ROWS - 1)], pa.int16())})
    marked = ds.join(nulls, allow_missing=True)
    assert marked.column("x").dtype == np.int16
    assert np.flatnonzero(~marked.column("x_valid")).tolist() == [ROWS - 1]
    times = ds.join(pa.table({"key": frame["key"], "x": pa.array([0] * ROWS, pa.timestamp("s"))}))
    assert times[0]["x"] == "1970-01-01T00:00:00"


def test_a_mapping_may_hold_columns_of_any_library(root: Path) -> None:
    class Series:
        def __init__(self, values: Any) -> None:
            self.values = values

        def __len__(self) -> int:
            return len(self.values)

        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
            return np.asarray(self.values, dtype)

    ds, frame = open_dataset(root), frame_of(root)
    joined = ds.join({"key": frame["key"], "x": Series(np.arange(ROWS, dtype="<i2"))})
    assert joined.column("x").dtype == np.int16


@pytest.mark.external
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_tables_of_pandas_and_polars(library: str, root: Path) -> None:
    frames = pytest.importorskip(library)
    ds, frame = open_dataset(root), frame_of(root)
    table = frames.DataFrame({**frame, "vector": frame["vector"].tolist()})
    joined = ds.join(table)
    check(joined.read_batch(np.array([1, 8])), [1, 8])
    assert joined.column("score").dtype == np.float32


@pytest.mark.external
def test_values_that_only_pandas_has(root: Path) -> None:
    pandas = pytest.importorskip("pandas")
    ds, frame = open_dataset(root), frame_of(root)
    nullable = pandas.array([None, *range(ROWS - 1)], "Int16")
    table = pandas.DataFrame({"key": frame["key"], "x": nullable, "kind": pandas.Categorical(["a", "b"] * (ROWS // 2))})
    for joined in (ds.join(table, allow_missing=True), ds.join(dict(table.items()), allow_missing=True)):
        assert joined.column("x").dtype.kind == "i"
        assert np.flatnonzero(~joined.column("x_valid")).tolist() == [ROWS - 1]
        assert set(joined.column("kind")) == {"a", "b"}
    some = ds.join(table[table["x"] > 3], allow_missing=True)  # pandas hands on an index that has gaps
    assert not any("index" in name for name in some.small_fields)
    mixed = pandas.DataFrame({"key": frame["key"], "x": [1, "a"] * (ROWS // 2)})
    with pytest.raises(UsageError, match="cannot be read"):
        ds.join(mixed)
