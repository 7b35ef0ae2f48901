"""``packer split`` never parts a group, accounts for every sample, and ``packer inspect --by`` names leaks."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builds import QUIET
from support.command import file_of, run_packer
from support.datasets import assert_same, encode, face_schema, write_dataset
from support.errors import raises
from support.listeners import Listener
from support.packed_files import face_columns, read_all, write_faces

import packer
from packer import find_leaks, merge, split, verify
from packer.cli import main
from packer.packed.split.split import check_ratios, parse_ratios
from shardspec.errors import DatasetError, UsageError
from shardspec.layout import Layout, describe_file
from shardspec.splits.assignment import assign_groups

RATIOS = {"train": 0.8, "val": 0.1, "test": 0.1}


@given(
    sizes=st.lists(st.integers(1, 300), min_size=3, max_size=60),
    seed=st.integers(0, 5),
    shares=st.lists(st.integers(1, 50), min_size=2, max_size=3),
)
def test_the_assignment_is_complete_repeatable_and_near_the_ratios(
    sizes: list[int], seed: int, shares: list[int]
) -> None:
    names = [f"person {number}" for number in range(len(sizes))]
    ratios = {f"s{i}": share / sum(shares) for i, share in enumerate(shares)}
    chosen = assign_groups(names, sizes, ratios, seed)
    assert set(chosen) == set(ratios)
    backwards = assign_groups(names[::-1], sizes[::-1], ratios, seed)
    assert backwards[::-1] == chosen
    for name, ratio in ratios.items():
        got = sum(size for size, split in zip(sizes, chosen, strict=True) if split == name)
        # A split is filled while it lacks samples, so it exceeds its share by one group at most.
        assert got <= ratio * sum(sizes) + max(sizes)


@given(
    groups=st.lists(st.tuples(st.integers(1, 40), st.sets(st.integers(0, 3), max_size=1)), min_size=3, max_size=40),
    seed=st.integers(0, 3),
    shares=st.sampled_from([{"a": 0.8, "b": 0.2}, {"a": 0.8, "b": 0.1, "c": 0.1}, {"a": 0.5, "b": 0.2, "rest": 0.3}]),
)
def test_classes_are_shared_out_where_groups_suffice(
    groups: list[tuple[int, set[int]]], seed: int, shares: dict[str, float]
) -> None:
    names = [f"video {number}" for number in range(len(groups))]
    sizes, classes = [size for size, _ in groups], [sorted(found) for _, found in groups]
    chosen = assign_groups(names, sizes, shares, seed, classes, "rest")
    back = assign_groups(names[::-1], sizes[::-1], shares, seed, classes[::-1], "rest")
    assert back[::-1] == chosen
    wanted = set(shares) - {"rest"}
    assert wanted <= set(chosen)
    for label in range(4):
        has = [split for split, of in zip(chosen, classes, strict=True) if label in of]
        assert len(wanted & set(has)) == min(len(wanted), len(has))


def test_a_split_keeps_its_only_group_even_without_a_class() -> None:
    sizes, classes = [100, 127, 127, 100], [[1], [], [1], []]
    ratios = {"train": 0.9, "val": 0.05, "test": 0.05}
    chosen = assign_groups([str(number) for number in range(4)], sizes, ratios, 7669, classes)
    assert set(chosen) == set(ratios)


def test_a_split_that_lacks_a_class_gets_it_by_a_small_exchange() -> None:
    sizes = [44, 40, 36, 30, 25, 20, 10, 8, 4, 2, 1]
    names = [f"{number}.mp4" for number in range(len(sizes))]
    ratios = {"train": 0.8, "val": 0.2}
    for seed in range(20):
        for fakes in itertools.combinations(range(len(sizes)), 2):
            classes = [[1] if number in fakes else [0] for number in range(len(sizes))]
            chosen = assign_groups(names, sizes, ratios, seed, classes)
            assert {chosen[number] for number in fakes} == {"train", "val"}
            got = sum(size for size, split in zip(sizes, chosen, strict=True) if split == "val")
            assert abs(got - 44) <= sum(sizes) / 20


def test_ratios_may_be_percents() -> None:
    assert parse_ratios("train=80, val=20") == check_ratios({"train": 0.8, "val": 0.2})


def _write(root: Path, rows: int = 40, groups: int = 8, format: str = "npy") -> dict[str, Any]:
    columns = face_columns(rows, groups=groups)
    write_dataset(root, format, face_schema(), columns, shard_rows=9)
    return encode(face_schema(), columns)


def test_every_sample_is_in_one_split_and_no_group_in_two(tmp_path: Path) -> None:
    expected = _write(tmp_path / "in")
    parts = split(tmp_path / "in", tmp_path / "out", by="source", ratios=RATIOS, shard_size=12000, **QUIET).parts
    assert [part.name for part in parts] == list(RATIOS)
    assert sum(part.samples for part in parts) == 40
    assert sum(part.groups for part in parts) == 8
    seen: dict[bytes, str] = {}
    by_key = {key: row for row, key in enumerate(expected["key"])}
    rows = []
    for part in parts:
        assert verify(part.result.path, deep=True).problems == ()
        columns = read_all(part.result.path)
        mine = [by_key[key] for key in columns["key"]]
        assert mine == sorted(mine)
        assert_same(face_schema(), columns, expected, mine)
        rows += mine
        for source in columns["source"]:
            assert seen.setdefault(source, part.name) == part.name
        assert part.result.manifest.generations[0].counts.items == part.groups
    assert sorted(rows) == list(range(40))
    paths = [part.result.path for part in parts]
    assert all(find_leaks(pair, by="source").found == () for pair in itertools.combinations(paths, 2))
    merged = merge(paths, tmp_path / "merged", **QUIET)
    assert sorted(read_all(merged.path)["key"]) == sorted(expected["key"])


def test_a_split_can_be_made_again_by_number_and_class(tmp_path: Path) -> None:
    expected = _write(tmp_path / "in")
    for field in ("label", "frame", "landmarks_valid"):
        ratios = {"a": 0.5, "b": 0.5}
        parts = split(tmp_path / "in", tmp_path / field, by=field, ratios=ratios, shuffle=3, **QUIET).parts
        values = [set(read_all(part.result.path)[field].tolist()) for part in parts]
        assert values[0].isdisjoint(values[1])
        assert values[0] | values[1] == set(expected[field].tolist())
        again = split(tmp_path / "in", tmp_path / field, by=field, ratios=ratios, shuffle=3, **QUIET).parts
        assert [part.result.manifest for part in again] == [part.result.manifest for part in parts]
        with pytest.raises(UsageError, match="--overwrite"):
            split(tmp_path / "in", tmp_path / field, by=field, ratios=ratios, seed=1, shuffle=4, **QUIET)


def test_reports_follow_their_items(tmp_path: Path) -> None:
    _write(tmp_path / "in", rows=12, groups=3)
    layout = Layout(tmp_path / "in")
    manifest = layout.load()
    names = [f"person{n}/vidéo {n}.mp4" for n in range(3)]
    items = [{"item": name, "state": "packed", "samples": 4} for name in names] + [{"item": "bad", "state": "rejected"}]
    rejects = [{"kind": "frames", "item": name, "reason": "dark", "frames": [n, 9]} for n, name in enumerate(names)]
    rejects += [{"kind": "damage", "item": names[1]}, {"kind": "item", "item": "bad"}]
    for path, lines in ((file_of(layout.root, "items.jsonl"), items), (file_of(layout.root, "rejects.jsonl"), rejects)):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    generation = manifest.generations[0]
    counts = replace(generation.counts, items=4, packed_items=3, rejected_items=1, damaged_items=1)
    files = (
        *manifest.files,
        *(
            describe_file(layout.root, path)
            for path in (file_of(layout.root, "items.jsonl"), file_of(layout.root, "rejects.jsonl"))
        ),
    )
    made = replace(manifest, generations=(replace(generation, counts=counts),), files=files)
    layout.manifest.write_bytes(made.dumps())
    parts = split(tmp_path / "in", tmp_path / "out", by="source", ratios={"a": 0.7, "b": 0.3}, **QUIET).parts
    found = [part.result.manifest.generations[0].counts for part in parts]
    assert [(c.items, c.packed_items, c.rejected_items, c.frames_without_sample) for c in found] == [
        (2, 2, 0, 4),
        (1, 1, 0, 2),
    ]
    assert sum(c.damaged_items for c in found) == 1
    for part in parts:
        assert verify(part.result.path, deep=True).problems == ()
        reported = {
            json.loads(line)["item"] for line in file_of(part.result.path, "items.jsonl").read_text().splitlines()
        }
        assert reported == {source.decode() for source in read_all(part.result.path)["source"]}


def test_the_command_lists_every_reject(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write(tmp_path / "in")
    arguments = [
        "split",
        str(tmp_path / "in"),
        str(tmp_path / "out"),
        "--by",
        "source",
        "--engine",
        "inline",
        "--quiet",
    ]
    assert main([*arguments, "--ratios", "train=0.75,test=0.25"]) == 0
    out = capsys.readouterr().out
    assert "30 samples in" in out
    assert "75.00% (wanted 75.00%), 6 values of source" in out
    assert "samples: 30 + 10 = 40" in out
    assert "values of source: 6 + 2 = 8" in out


def test_inspect_names_leaks_between_datasets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_faces(tmp_path / "a", 6, groups=2)
    write_faces(tmp_path / "b", 9, "tfrecord", groups=3)
    columns = face_columns(4)
    columns["source"] = ["elsewhere"] * 4
    write_dataset(tmp_path / "c", "npy", face_schema(), columns)
    a, b, c = (str(tmp_path / name) for name in "abc")
    assert main(["inspect", a, b, c, "--by", "source"]) == 1
    out = capsys.readouterr().out
    assert "LEAK: 2 values of source" in out
    assert f"'person1/vidéo 1.mp4': 3 samples in {a}, 3 samples in {b}" in out
    assert main(["inspect", a, b, c, "--by", "source", "--json"]) == 1
    leaks = json.loads(capsys.readouterr().out)["leaks"]
    assert [leak["group"] for leak in leaks] == ["person0/vidéo 0.mp4", "person1/vidéo 1.mp4"]
    assert main(["inspect", a, c, "--by", "source"]) == 0
    assert "no source occurs in more than one" in capsys.readouterr().out
    assert main(["inspect", a, c, "--json"]) == 0
    assert [facts["samples"] for facts in json.loads(capsys.readouterr().out)] == [6, 4]
    with pytest.raises(DatasetError):
        find_leaks([tmp_path / "a", tmp_path / "nowhere"], by="source")
    for again in (a, f"{a}/../a"):
        assert main(["inspect", a, again, "--by", "source"]) == 2
        assert f"expected different datasets to compare, found one twice: {a}, {again}" in capsys.readouterr().err
    assert np.array_equal(read_all(tmp_path / "c")["frame"], np.arange(4) * 10)


def test_samples_without_a_value_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"image": np.full((8, 8, 3), number, np.uint8), "original": original}
        for number, original in enumerate(["a.mp4", "a.mp4", "b.mp4", "", None])
    ]
    packer.build(rows, tmp_path / "forged", **QUIET)
    packer.build(rows[2:], tmp_path / "other", **QUIET)
    with raises(
        UsageError, expected="a value of 'original' in every sample", found="none in 2 of 5, so they belong to no split"
    ):
        split(tmp_path / "forged", tmp_path / "out", by="original", ratios={"train": 0.5, "test": 0.5}, **QUIET)
    assert main(["inspect", str(tmp_path / "forged"), str(tmp_path / "other"), "--by", "original"]) == 1
    reported = capsys.readouterr().out
    assert "LEAK: 1 value of original in more than one (4 samples without a value not compared)" in reported
    assert "'b.mp4': 1 sample in" in reported


@pytest.mark.parametrize("own", [["no", "yes", "no"], [0, 1, 0]])
def test_a_user_column_called_valid_is_left_alone(tmp_path: Path, own: list[Any]) -> None:
    rows = [
        {"image": np.full((8, 8, 3), number, np.uint8), "person": name, "person_valid": own[number]}
        for number, name in enumerate("abc")
    ]
    packer.build(rows, tmp_path / "people", **QUIET)
    parts = split(tmp_path / "people", tmp_path / "out", by="person", ratios={"train": 0.7, "test": 0.3}, **QUIET).parts
    assert sorted(part.samples for part in parts) == [1, 2]


def _write_official(root: Path, values: Sequence[Any] = ("train", "val", "test"), rows: int = 12) -> None:
    """A dataset whose column ``split`` says what its makers publish it as; `values` one after another."""
    made = [
        {"image": np.full((8, 8, 3), n % 256, np.uint8), "number": n, "split": values[min(n // 3, len(values) - 1)]}
        for n in range(rows)
    ]
    packer.build(made, root, **QUIET)


@pytest.mark.parametrize("values", [("train", "val", "test"), ("Train", "TEST"), ("training", "validation", "rest")])
def test_official_splits_are_not_groups(tmp_path: Path, values: tuple[str, ...]) -> None:
    _write_official(tmp_path / "in", values)
    done = run_packer("split", tmp_path / "in", tmp_path / "out", "--by", "split", "--quiet", expect=2)
    assert f"found splits ('{values[0]}', '{values[1]}'" in done.stderr
    assert "--into split" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_field_named_like_a_split_cannot_be_a_group(tmp_path: Path) -> None:
    _write_official(tmp_path / "in", ("fold_a", "fold_b"))
    with raises(UsageError, option="by", found="splits ('fold_a', 'fold_b'), which would be put into others"):
        split(tmp_path / "in", tmp_path / "out", by="split", ratios={"fold_a": 0.5, "fold_b": 0.5}, **QUIET)
    split(tmp_path / "in", tmp_path / "out", by="split", ratios={"a": 0.5, "b": 0.5}, **QUIET)


def test_each_value_becomes_a_dataset_of_its_name(tmp_path: Path) -> None:
    """Of an official split above all: test stays test."""
    _write_official(tmp_path / "in")
    call = (tmp_path / "in", tmp_path / "out", "--into", "split", "--quiet")
    found = json.loads(run_packer("split", *call, "--json").stdout)
    assert {name: (facts["value"], facts["samples"]) for name, facts in found["splits"].items()} == {
        "train": ("train", 3),
        "val": ("val", 3),
        "test": ("test", 6),
    }
    for name, numbers in (("train", [0, 1, 2]), ("val", [3, 4, 5]), ("test", [6, 7, 8, 9, 10, 11])):
        columns = read_all(tmp_path / "out" / name)
        assert set(columns["split"]) == {name.encode()}
        assert columns["number"].tolist() == numbers
        assert verify(tmp_path / "out" / name, deep=True).problems == ()
        recipe = Layout(tmp_path / "out" / name).load().generations[0].recipe
        assert (recipe["into"], recipe["part"]) == ("split", name)
        assert not {"by", "ratios", "seed"} & set(recipe)
    again = run_packer("split", *call).stdout
    assert again.count("finished already") == 3
    assert "6 samples in" in again
    assert "50.00%, split test" in again
    paths = [tmp_path / "out" / name for name in found["splits"]]
    merged = merge(paths, tmp_path / "merged", **QUIET)
    assert sorted(read_all(merged.path)["key"]) == sorted(read_all(tmp_path / "in")["key"])


@pytest.mark.parametrize("parts", [3, 9])
def test_many_parts_have_one_progress(tmp_path: Path, parts: int) -> None:
    _write_official(tmp_path / "in", tuple(f"p{number}" for number in range(parts)), rows=3 * parts)
    seen = Listener()
    split(tmp_path / "in", tmp_path / "out", into="split", engine="inline", progress=seen)
    if parts == 3:
        assert seen.of("writing")
        assert not seen.of("splitting")
    else:
        assert seen.heard == seen.of("splitting")
        assert [(one.done, one.total) for one in seen.heard if one.ended] == [(9, 9)]
    assert seen.messages == []


def test_one_value_for_all_and_class_names_as_folders(tmp_path: Path) -> None:
    write_faces(tmp_path / "in", 6)
    parts = split(tmp_path / "in", tmp_path / "out", into="label", **QUIET).parts
    assert {part.name: part.value for part in parts} == {"real": "real", "fake": "fake"}
    (part,) = split(tmp_path / "out" / "fake", tmp_path / "one", into="label", shuffle=1, **QUIET).parts
    assert (part.name, part.ratio, part.groups, part.samples) == ("fake", None, 1, 3)


def test_folders_are_safe_whatever_the_values(tmp_path: Path) -> None:
    _write_official(tmp_path / "in", ("../up", "a/b", ".hidden", "é x"))
    parts = split(tmp_path / "in", tmp_path / "out", into="split", **QUIET).parts
    assert {part.value: part.name for part in parts} == {
        "../up": "_._up",
        "a/b": "a_b",
        ".hidden": "_hidden",
        "é x": "é x",
    }
    assert {path.name for path in (tmp_path / "out").iterdir()} == {part.name for part in parts}
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out"}


@pytest.mark.parametrize("values", [("a/b", "a_b"), ("Train", "train")])
def test_two_values_never_share_a_folder(tmp_path: Path, values: tuple[str, ...]) -> None:
    _write_official(tmp_path / "in", values)
    with pytest.raises(UsageError, match=f"different folders in 'split', found '{values[0]}' and '{values[1]}'"):
        split(tmp_path / "in", tmp_path / "out", into="split", **QUIET)
    assert not (tmp_path / "out").exists()


def test_more_values_than_datasets_are_refused(tmp_path: Path) -> None:
    _write_official(tmp_path / "in", rows=303)
    with pytest.raises(
        UsageError, match=r"at most 100 values, each of which becomes a dataset, found 303 .*--by number"
    ):
        split(tmp_path / "in", tmp_path / "out", into="number", **QUIET)
    assert not (tmp_path / "out").exists()


def test_a_part_far_from_its_ratio_is_warned_of(tmp_path: Path) -> None:
    with packer.Writer(tmp_path / "in", progress=False) as out:
        for person, samples in (("a", 60), ("b", 40), ("c", 20)):
            for number in range(samples):
                out.write(person=person, number=number)
    done = run_packer("split", tmp_path / "in", tmp_path / "out", "--by", "person")
    assert "warning: train, val: far from the requested ratio, because few or large values of person" in done.stdout
    assert "train 60" in done.stdout or "60 samples" in done.stdout
    done = run_packer("split", tmp_path / "in", tmp_path / "two", "--by", "person", "--ratios", "train=0.8,val=0.2")
    assert "warning" not in done.stdout
