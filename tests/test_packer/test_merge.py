"""``packer merge``: several datasets of one schema become one, and every sample stays what it was."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packed_files import face_columns, read_all, write_faces
from support.command import run_packer
from support.datasets import assert_same, face_schema, write_dataset

from packer.merge import merge
from packer.verify import verify
from shardspec.errors import SchemaError, UsageError
from shardspec.layout import Layout, describe_file
from shardspec.schema import Schema

QUIET: dict[str, Any] = {"engine": "inline", "progress": False}


def test_the_samples_follow_one_another_and_the_generations_are_listed(tmp_path: Path) -> None:
    first = write_faces(tmp_path / "a", 7, "lmdb", seed=1)
    second = write_faces(tmp_path / "b", 5, "tfrecord", seed=2)
    made = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out", **QUIET).manifest
    assert made.format == "lmdb"
    assert [g.counts for g in made.generations] == [first.generations[0].counts, second.generations[0].counts]
    assert [sum(shard.samples for shard in g.shards) for g in made.generations] == [7, 5]
    assert verify(tmp_path / "out", deep=True).problems == ()
    merged, a, b = (read_all(tmp_path / name) for name in ("out", "a", "b"))
    keys = merged.pop("key")
    for part, columns, rows in ((slice(0, 7), a, range(7)), (slice(7, 12), b, range(5))):
        assert_same(made.schema, {name: values[part] for name, values in merged.items()}, columns, list(rows))
    assert keys[:7] == a["key"]
    assert keys[7:] == [b"%08d" % (int(key[:8]) + 7) + key[8:] for key in b["key"]]
    assert len(set(keys)) == 12


def test_keys_that_differ_already_are_kept(tmp_path: Path) -> None:
    for name, prefix in (("a", "left"), ("b", "right")):
        columns = face_columns(4)
        columns["key"] = [f"{prefix} {row}" for row in range(4)]
        write_dataset(tmp_path / name, "npy", face_schema(), columns)
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out", **QUIET)
    expected = [b"left %d" % row for row in range(4)] + [b"right %d" % row for row in range(4)]
    assert read_all(tmp_path / "out")["key"] == expected
    write_dataset(tmp_path / "c", "npy", face_schema(), {**face_columns(4), "key": ["left 0", "x", "y", "z"]})
    with pytest.raises(UsageError, match="cannot be numbered on"):
        merge([tmp_path / "a", tmp_path / "c"], tmp_path / "bad", **QUIET)


def test_key_numbers_go_on_behind_the_largest(tmp_path: Path) -> None:
    """A split's keys reach further than its number of items."""
    columns = face_columns(3)
    columns["key"] = ["00000000-000000", "99999998-000000", "99999999-000000"]
    for name in "abc":
        write_dataset(tmp_path / name, "npy", face_schema(), columns)
    merge([tmp_path / name for name in "abc"], tmp_path / "out", **QUIET)
    keys = read_all(tmp_path / "out")["key"]
    assert keys[3:5] == [b"100000000-000000", b"199999998-000000"]
    assert keys[6] == b"200000000-000000"
    assert verify(tmp_path / "out", deep=True).problems == ()


def test_a_shuffle_mixes_all_and_says_what_went_in(tmp_path: Path) -> None:
    inputs = [write_faces(tmp_path / name, 6, seed=seed) for seed, name in enumerate("ab")]
    made = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out", shuffle=9, format="npy", **QUIET).manifest
    (generation,) = made.generations
    assert generation.counts.samples == 12
    assert [told["digest"] for told in generation.recipe["inputs"]] == [manifest.digest for manifest in inputs]
    order = np.random.Generator(np.random.PCG64(9)).permutation(12)
    scores = np.concatenate([read_all(tmp_path / name)["score"] for name in "ab"])
    assert np.array_equal(read_all(tmp_path / "out")["score"], scores[order])


def test_reports_are_joined(tmp_path: Path) -> None:
    for name in "ab":
        manifest = write_faces(tmp_path / name, 3)
        layout = Layout(tmp_path / name)
        layout.items.write_text(f'{{"item": "{name}", "state": "packed"}}\n' * 3)
        files = (describe_file(layout.root, layout.items), *manifest.files)
        layout.manifest.write_bytes(replace(manifest, files=files).dumps())
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out", **QUIET)
    lines = Layout(tmp_path / "out").items.read_text().splitlines()
    assert lines == ['{"item": "a", "state": "packed"}'] * 3 + ['{"item": "b", "state": "packed"}'] * 3
    assert verify(tmp_path / "out").problems == ()


def test_other_schemas_are_refused_field_by_field(tmp_path: Path) -> None:
    schema = face_schema()
    write_faces(tmp_path / "a", 3)
    fields = [replace(f, classes=("fake", "real")) if f.name == "label" else f for f in schema if f.name != "track"]
    fields = [replace(f, dtype="<f8") if f.name == "score" else f for f in fields]
    columns = face_columns(3)
    columns["score"] = columns["score"].astype("<f8")
    write_dataset(tmp_path / "b", "npy", Schema(tuple(fields)), columns)
    with pytest.raises(SchemaError) as caught:
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out", **QUIET)
    for text in (
        "field 'track' is missing",
        "field 'label', classes: expected ['real', 'fake'], found ['fake', 'real']",
        "field 'score', dtype: expected <f4, found <f8",
        "packer build",
    ):
        assert text in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_wrong_calls(tmp_path: Path) -> None:
    write_faces(tmp_path / "a", 3)
    with pytest.raises(UsageError, match="two packed datasets"):
        merge([tmp_path / "a"], tmp_path / "out", **QUIET)
    with pytest.raises(UsageError, match="found one twice"):
        merge([tmp_path / "a", tmp_path / "a"], tmp_path / "out", **QUIET)


def test_the_command_merges_with_worker_processes(tmp_path: Path) -> None:
    for seed, name in enumerate("abc"):
        write_faces(tmp_path / name, 6, seed=seed)
    done = run_packer(
        "merge", *(tmp_path / name for name in "abc"), tmp_path / "out", "--shard-size", "9000", "--quiet"
    )
    assert "18 samples in 9 lmdb shards" in done.stdout
    inline = merge([tmp_path / name for name in "abc"], tmp_path / "inline", shard_size=9000, **QUIET).manifest
    assert Layout(tmp_path / "out").load().digest == inline.digest
