"""``packer merge``: several datasets of one schema become one, and every sample stays what it was."""

import json
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest
from support.builds import QUIET, write_images
from support.command import environment, file_of, run_packer
from support.datasets import assert_same, face_schema, write_dataset
from support.hooks import before_each
from support.packed_files import face_columns, read_all, write_faces
from support.steps_over_packed import mirror_twice
from torch.utils.data import DataLoader

import packer
from packer import build, merge, split, verify
from packer.cli import main
from readers import open_dataset
from shardspec.errors import DatasetError, UsageError
from shardspec.formats import FORMATS
from shardspec.layout import Layout, describe_file
from shardspec.schema import Field, Schema


def test_samples_of_merged_datasets_keep_their_order_and_generations(tmp_path: Path) -> None:
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
    with pytest.raises(UsageError, match="cannot be renumbered"):
        merge([tmp_path / "a", tmp_path / "c"], tmp_path / "bad", **QUIET)


def test_key_numbers_continue_after_the_largest(tmp_path: Path) -> None:
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


def test_keys_of_datasets_that_were_packed_again_are_renumbered(tmp_path: Path) -> None:
    for name in "ab":
        write_faces(tmp_path / f"{name} packed", 2, codec="png")
        steps = ["decode", mirror_twice]
        build(tmp_path / f"{name} packed", tmp_path / name, steps=steps, encode="png", **QUIET)
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out", **QUIET)
    assert verify(tmp_path / "out", deep=True).problems == ()
    assert len(set(map(bytes, read_all(tmp_path / "out")["key"]))) == 8


def test_a_shuffle_mixes_all_and_says_what_went_in(tmp_path: Path) -> None:
    inputs = [write_faces(tmp_path / name, 6, seed=seed) for seed, name in enumerate("ab")]
    made = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out", shuffle=9, format="npy", **QUIET).manifest
    (generation,) = made.generations
    assert generation.counts.samples == 12
    assert [reported["digest"] for reported in generation.recipe["inputs"]] == [manifest.digest for manifest in inputs]
    order = np.random.Generator(np.random.PCG64(9)).permutation(12)
    scores = np.concatenate([read_all(tmp_path / name)["score"] for name in "ab"])
    assert np.array_equal(read_all(tmp_path / "out")["score"], scores[order])


def test_reports_are_joined(tmp_path: Path) -> None:
    for name in "ab":
        manifest = write_faces(tmp_path / name, 3)
        layout = Layout(tmp_path / name)
        file_of(layout.root, "items.jsonl").write_text(f'{{"item": "{name}", "state": "packed"}}\n' * 3)
        files = (describe_file(layout.root, file_of(layout.root, "items.jsonl")), *manifest.files)
        layout.manifest.write_bytes(replace(manifest, files=files).dumps())
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out", **QUIET)
    lines = file_of(tmp_path / "out", "items.jsonl").read_text().splitlines()
    assert lines == ['{"item": "a", "state": "packed"}'] * 3 + ['{"item": "b", "state": "packed"}'] * 3
    assert verify(tmp_path / "out").problems == ()


def test_other_schemas_are_refused_field_by_field(tmp_path: Path) -> None:
    schema = face_schema()
    write_faces(tmp_path / "a", 3)
    fields = [replace(f, classes=None) if f.name == "label" else f for f in schema if f.name != "track"]
    fields = [replace(f, dtype="<f8") if f.name == "score" else f for f in fields]
    columns = face_columns(3)
    columns["score"] = columns["score"].astype("<f8")
    write_dataset(tmp_path / "b", "npy", Schema(tuple(fields)), columns)
    done = run_packer("merge", tmp_path / "a", tmp_path / "b", tmp_path / "out", "--engine", "inline", expect=2)
    for text in (
        "field 'track' is missing",
        "field 'label', classes: expected ['real', 'fake'], found None",
        "field 'score', dtype: expected <f4, found <f8",
        "packer build",
    ):
        assert text in done.stderr
    assert not (tmp_path / "out").exists()


def test_more_classes_than_the_labels_can_number_are_refused(tmp_path: Path) -> None:
    """Any two of the three could be joined."""
    schema, classes = face_schema(), 50
    for place, name in enumerate("abc"):
        names = tuple(f"class {number:03d}" for number in range(classes * place, classes * (place + 1)))
        label = Field("label", "fixed", "|i1", (), classes=names)
        columns = {**face_columns(3), "label": np.zeros(3, np.int8)}
        fields = tuple(label if field.name == "label" else field for field in schema)
        write_dataset(tmp_path / name, "npy", Schema(fields), columns)
    with pytest.raises(UsageError, match=r"/c: .*150 classes together, more than \|i1 can number"):
        merge([tmp_path / name for name in "abc"], tmp_path / "out", **QUIET)


def write_labelled(root: Path, format: str, classes: tuple[str, ...], labels: list[int], size: int = 32) -> None:
    """Faces with these labels, -1 for a class that is not known."""
    schema = Schema(tuple(replace(f, classes=classes) if f.name == "label" else f for f in face_schema(size)))
    columns = {**face_columns(len(labels), size=size, seed=len(classes)), "label": np.array(labels, "<i8")}
    write_dataset(root, format, schema, columns, shard_rows=2)


@pytest.mark.parametrize(("format", "shuffle"), [*((name, None) for name in FORMATS), ("lmdb", 3)])
def test_lists_of_classes_are_united(tmp_path: Path, format: str, shuffle: int | None) -> None:
    write_labelled(tmp_path / "a", format, ("real",), [0, 0, 0])
    write_labelled(tmp_path / "b", "npy", ("swap", "fake", "real"), [0, 1, 2, 1])
    write_labelled(tmp_path / "c", "lmdb", ("fake",), [0, -1])
    out = tmp_path / "out"
    paths = [tmp_path / name for name in "abc"]
    made = merge(paths, out, classes="unite", format=format, shuffle=shuffle, **QUIET).manifest
    assert made.schema["label"].classes == ("real", "swap", "fake")
    order = np.arange(9) if shuffle is None else np.random.Generator(np.random.PCG64(shuffle)).permutation(9)
    expected = np.array([0, 0, 0, 1, 2, 0, 2, 2, -1])[order]
    merged = read_all(out)
    assert np.array_equal(merged["label"], expected)
    assert np.array_equal(np.load(file_of(out, "index/label.npy")), expected)
    images = np.concatenate([read_all(tmp_path / name)["image"] for name in "abc"])
    assert np.array_equal(merged["image"], images[order])
    assert verify(out, deep=True, progress=False).problems == ()


def test_names_of_classes_are_compared_in_one_unicode_form(tmp_path: Path) -> None:
    one, two = normalize("NFC", "é"), normalize("NFD", "é")
    write_labelled(tmp_path / "a", "npy", (two, "f"), [0, 1])
    write_labelled(tmp_path / "b", "npy", (one, "f"), [1, 0])
    write_labelled(tmp_path / "c", "npy", ("f", two), [1, 0])
    for paths, classes, labels in (("ab", "same", [0, 1, 1, 0]), ("abc", "unite", [0, 1, 1, 0, 0, 1])):
        made = merge([tmp_path / name for name in paths], tmp_path / paths, classes=classes, **QUIET).manifest
        assert made.schema["label"].classes == (one, "f")
        assert read_all(tmp_path / paths)["label"].tolist() == labels


def test_a_label_without_a_class_does_not_become_one(tmp_path: Path) -> None:
    write_labelled(tmp_path / "a", "npy", ("real",), [0, 1, -1])
    write_labelled(tmp_path / "b", "npy", ("fake", "real"), [0, 1])
    reported = (
        rf"^{tmp_path / 'a'}: shard-00000: field 'label': expected a class of 0 to 0, or -1 for none, found 1, which"
    )
    with pytest.raises(DatasetError, match=reported):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out", classes="unite", **QUIET)
    assert not Layout(tmp_path / "out").manifest.exists()


def test_datasets_of_one_class_each_packed_apart_are_merged_by_the_command(tmp_path: Path) -> None:
    for number, name in enumerate(("real", "fake")):
        write_images(tmp_path / name / "videos" / name, [f"{number}{n}.png" for n in range(3)])
        options = ("--label-from", "folder", "--size", 16, "--resize", "exact", "--quiet")
        run_packer("build", tmp_path / name / "videos", tmp_path / f"packed-{name}", *options)
    call = ("merge", tmp_path / "packed-real", tmp_path / "packed-fake", tmp_path / "out", "--quiet")
    (refused,) = run_packer(*call, expect=2).stderr.splitlines()
    assert "found label 0 as 'fake' (of 1) and there as 'real' (of 1): renumber them" in refused
    assert "--classes unite" in refused
    assert not (tmp_path / "out").exists()
    run_packer(*call, "--classes", "unite")
    merged = open_dataset(tmp_path / "out")
    assert merged.classes == ("fake", "real")
    assert [(sample["source"][:4], int(sample["label"])) for sample in merged] == [("real", 1)] * 3 + [("fake", 0)] * 3
    run_packer("verify", tmp_path / "out", "--deep", "--quiet")


@pytest.mark.parametrize(("format", "codec"), [*((name, None) for name in FORMATS), ("parquet", "png")])
def test_images_of_different_fixed_shapes_become_varying(tmp_path: Path, format: str, codec: str | None) -> None:
    write_faces(tmp_path / "a", 3, format, size=32, codec=codec)
    write_faces(tmp_path / "b", 4, "npy", size=20, codec=codec, seed=1)
    out = tmp_path / "out"
    made = merge([tmp_path / "a", tmp_path / "b"], out, format=format, shuffle=5, **QUIET).manifest
    assert made.schema["image"].shape == (None, None, 3)
    assert made.schema["image"].kind == "bytes"
    expected = [sample["image"] for name in "ab" for sample in open_dataset(tmp_path / name)]
    order = np.random.Generator(np.random.PCG64(5)).permutation(7)
    for row, sample in zip(order, open_dataset(out), strict=True):
        assert np.array_equal(sample["image"], expected[row])
    assert verify(out, deep=True).problems == ()
    # Three datasets, one of them varying already.
    again = merge([tmp_path / "a", out], tmp_path / "again", format=format, **QUIET).manifest
    assert again.schema["image"] == made.schema["image"]
    assert verify(tmp_path / "again", deep=True).problems == ()


def test_different_shapes_are_warned_of(tmp_path: Path) -> None:
    write_faces(tmp_path / "a", 3, size=32)
    write_faces(tmp_path / "b", 3, size=20, seed=1)
    write_faces(tmp_path / "c", 3, size=20, seed=2)
    call = ("merge", tmp_path / "a", tmp_path / "b", tmp_path / "c", tmp_path / "out", "--engine", "inline", "--quiet")
    for _ in range(2):
        _, warning = run_packer(*call).stdout.splitlines()
        assert warning.startswith(
            "warning: values of field 'image' have different shapes (32 x 32, 20 x 20), so a batch"
        )
        assert "collate_fn=ds.collate" in warning
    (line,) = run_packer(*call, "--json").stdout.splitlines()
    assert json.loads(line)["different_shapes"] == {"image": ["32 x 32", "20 x 20"]}
    alike = run_packer("merge", tmp_path / "b", tmp_path / "c", tmp_path / "alike", "--engine", "inline", "--quiet")
    assert "warning" not in alike.stdout
    batch = next(iter(DataLoader(ds := open_dataset(tmp_path / "out"), batch_size=9, collate_fn=ds.collate)))
    assert [tuple(picture.shape) for picture in batch["image"]] == [(3, 32, 32)] * 3 + [(3, 20, 20)] * 6


def test_a_merge_that_unites_classes_resumes_after_a_kill(tmp_path: Path) -> None:
    """The workers that resume it number the classes as those before."""
    write_labelled(tmp_path / "a", "npy", ("real",), [0] * 5)
    write_labelled(tmp_path / "b", "npy", ("fake",), [0] * 5)
    condition = "'/shard-00003-' in os.fsdecode(arguments[1])"
    env = environment(python_path=before_each(tmp_path / "hooks", "packer", "os.rename", condition))
    call = ("merge", tmp_path / "a", tmp_path / "b", tmp_path / "out", "--format", "lmdb", "--shard-size", "9000")
    call = (*call, "--classes", "unite")
    run_packer(*call, "--engine", "inline", env=env, expect=-signal.SIGKILL)
    run_packer(*call)
    assert read_all(tmp_path / "out")["label"].tolist() == [1] * 5 + [0] * 5
    assert verify(tmp_path / "out", deep=True).problems == ()


def test_samples_that_are_there_twice_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_images(tmp_path / "in", [f"{number}.jpg" for number in range(6)])
    build(tmp_path / "in", tmp_path / "whole", **QUIET)
    split(tmp_path / "whole", tmp_path / "parts", folds=3, **QUIET)
    whole, *parts = (tmp_path / name for name in ("whole", "parts/fold-0", "parts/fold-1", "parts/fold-2"))
    assert merge(parts, tmp_path / "restored", **QUIET).repeated == {}
    made = merge([parts[0], whole, parts[1]], tmp_path / "out", **QUIET)
    assert made.repeated == {str(whole): 2, str(parts[1]): 2}
    assert (
        f"\nwarning: 2 samples of {whole} are in an earlier dataset, too, and therefore twice in the merged one: "
        "merge datasets without common samples"
    ) in made.describe()
    assert made.to_json()["repeated"] == made.repeated
    assert main(["merge", *map(str, (parts[0], whole, parts[1], tmp_path / "out")), "--quiet"]) == 0
    assert f"warning: 2 samples of {whole} " in capsys.readouterr().out  # found finished, and said all the same


def test_samples_of_two_writers_are_the_same_if_their_values_are(tmp_path: Path) -> None:
    def write(name: str, samples: Sequence[tuple[int, int, str]], **options: Any) -> Path:
        with packer.Writer(tmp_path / name, progress=False, **options) as writer:
            for number, value, label in samples:
                writer.write(number=number, array=np.full(3, value), label=label)
        return tmp_path / name

    a = write("a", [(0, 0, "real"), (1, 1, "real"), (2, 2, "real")])
    b = write("b", [(2, 2, "real"), (7, 7, "fake"), (0, 5, "real"), (0, 0, "real")], format="npy")
    c = write("c", [(0, 0, "fake"), (1, 1, "real"), (7, 7, "fake")])
    assert merge([a, b, c], tmp_path / "out", classes="unite", **QUIET).repeated == {str(b): 2, str(c): 2}
    assert merge([c, a], tmp_path / "ca", classes="unite", **QUIET).repeated == {str(a): 1}
    photos = [(write_pixels(tmp_path / name, values)) for name, values in [("p", [1, 2]), ("q", [3, 2, 2])]]
    assert merge(photos, tmp_path / "pq", **QUIET).repeated == {str(photos[1]): 2}


def write_pixels(out: Path, values: Sequence[int]) -> Path:
    with packer.Writer(out, progress=False) as writer:
        for value in values:
            writer.write(image=np.full((4, 4, 3), value, np.uint8))
    return out


def test_the_command_merges_with_worker_processes(tmp_path: Path) -> None:
    for seed, name in enumerate("abc"):
        write_faces(tmp_path / name, 6, seed=seed)
    done = run_packer(
        "merge", *(tmp_path / name for name in "abc"), tmp_path / "out", "--shard-size", "9000", "--quiet"
    )
    assert "18 samples in 9 lmdb shards" in done.stdout
    inline = merge([tmp_path / name for name in "abc"], tmp_path / "inline", shard_size=9000, **QUIET).manifest
    assert Layout(tmp_path / "out").load().digest == inline.digest
