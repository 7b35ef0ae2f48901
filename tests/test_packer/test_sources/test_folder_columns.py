"""Folders as tables: files chosen by globs, fields from paths and sidecars, links, and what is said about labels."""

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command import file_of, read_jsonl, run_packer
from support.errors import raises
from support.media import scene, write_image, write_video

from packer import Recipe, build, dry_run
from packer.builds.planning.listing import list_items
from packer.sources.folders.sidecars import SIDECAR_BYTES, read_sidecars
from packer.sources.opening import open_source
from readers import open_dataset
from shardspec.errors import UsageError
from shardspec.layout import Layout

QUIET: dict[str, Any] = {"engine": "inline", "progress": False, "max_rejects": 1}
PATTERN = "{split}/{label}/{person}_{clip}.png"


def write_tree(root: Path, *names: str) -> Path:
    """Small images of those names; by default two splits with two classes each."""
    grid = [
        f"{part}/{label}/{number:03d}_{number + 7}.png"
        for part in ("train", "val")
        for label in ("fake", "real")
        for number in range(2)
    ]
    for number, name in enumerate(names or grid):
        write_image(root / name, scene(number, (24, 16)))
    return root


def sources(out: Path) -> list[str]:
    """The names of the packed items."""
    return [str(sample["source"]) for sample in open_dataset(out)]


def reasons(out: Path) -> dict[str, str]:
    """Why each item was rejected."""
    return {line["item"]: line["reason"] for line in read_jsonl(file_of(out, "rejects.jsonl"))}


class TestChoosing:
    @pytest.mark.parametrize(
        ("include", "exclude", "names"),
        [
            (
                "*_7.png",
                (),
                ["train/fake/000_7.png", "train/real/000_7.png", "val/fake/000_7.png", "val/real/000_7.png"],
            ),
            ("val/", (), ["val/fake/000_7.png", "val/fake/001_8.png", "val/real/000_7.png", "val/real/001_8.png"]),
            (["train/*/001*", "/val/real/**"], "**/real/001_8.png", ["train/fake/001_8.png", "val/real/000_7.png"]),
            ((), ["fake", "train/**/0*_7.png"], ["train/real/001_8.png", "val/real/000_7.png", "val/real/001_8.png"]),
        ],
    )
    def test_files_are_chosen(self, tmp_path: Path, include: Any, exclude: Any, names: list[str]) -> None:
        write_tree(tmp_path / "in")
        made = build(tmp_path / "in", tmp_path / "out", include=include, exclude=exclude, **QUIET)
        assert sources(tmp_path / "out") == names
        assert "left out by --include or --exclude (such as 'train/" in made.notes[-1]
        assert (made.counts.items, made.counts.packed_items) == (len(names), len(names))
        assert "matches no" not in made.describe()

    def test_a_pattern_that_matches_nothing_is_reported(self, tmp_path: Path) -> None:
        write_tree(tmp_path / "in")
        call = (tmp_path / "in", tmp_path / "out", "--include", "train", "--include", "*.mp4", "--exclude", "Fake")
        for done in (run_packer("build", *call, "--dry-run"), run_packer("build", *call, "--quiet")):
            assert "--include '*.mp4' matches no image or video" in done.stdout
            assert "--exclude 'Fake' matches no file or folder" in done.stdout
            assert "'train' matches" not in done.stdout
        done = run_packer("build", tmp_path / "in", tmp_path / "none", "--include", "*.mp4", expect=2)
        assert "found none (looked for images and videos, known by suffixes such as" in done.stderr
        assert "; --include '*.mp4' matches no image" in done.stderr
        assert "ignored: 8 left out by" in done.stderr

    def test_an_excluded_folder_is_not_searched(self, tmp_path: Path) -> None:
        """It may be one that this user cannot read."""
        write_tree(tmp_path / "in", "a/0.png", "#recycle/1.png", "#recycle/2.png")
        made = build(tmp_path / "in", tmp_path / "out", exclude="#recycle", **QUIET)
        assert sources(tmp_path / "out") == ["a/0.png"]
        assert made.counts.ignored_files == 1
        assert made.notes == ("ignored: 1 left out by --include or --exclude (such as '#recycle')",)


class TestPaths:
    def test_placeholders_become_fields_of_every_sample(self, tmp_path: Path) -> None:
        write_tree(tmp_path / "in")
        write_video(tmp_path / "in" / "val" / "real" / "9_8.mp4", frames=4)
        pattern = PATTERN.replace(".png", ".*")
        call = (tmp_path / "in", tmp_path / "out", "--fields-from-path", pattern, "--int", "person", "--text", "clip")
        run_packer("build", *call, "--workers", 2, "--quiet")
        ds = open_dataset(tmp_path / "out")
        assert ds.manifest.schema["label"].classes == ("fake", "real")
        assert ds.column("label").tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1]
        assert ds.column("person").tolist() == [0, 1] * 4 + [9] * 4
        assert [sample["clip"] for sample in ds][-5:] == ["8", *["8"] * 4]
        assert [sample["split"] for sample in ds][:5] == [*["train"] * 4, "val"]
        assert "finished already" in run_packer("build", *call, "--quiet").stdout

    def test_columns_have_types_by_the_rules_of_tables(self, tmp_path: Path) -> None:
        write_tree(tmp_path / "in", "000_7_0.5.png", "001_8_2.png")
        build(tmp_path / "in", tmp_path / "out", fields_from_path="{person}_{clip}_{age}.png", **QUIET)
        schema = Layout(tmp_path / "out").load().schema
        assert {name: (schema[name].kind, schema[name].dtype) for name in ("person", "clip", "age")} == {
            "person": ("text", "|u1"),
            "clip": ("fixed", "<i8"),
            "age": ("fixed", "<f8"),
        }
        with raises(UsageError, place="column 'age', '000_7_0.5.png'", found="'0.5'"):
            build(tmp_path / "in", tmp_path / "no", fields_from_path="{person}_{clip}_{age}.png", int="age", **QUIET)
        with raises(UsageError, option="text", found="'x'"):
            build(tmp_path / "in", tmp_path / "no", fields_from_path="{person}_*", text="x", **QUIET)
        with raises(UsageError, option="text"):
            build(tmp_path / "in", tmp_path / "no", text="x", **QUIET)

    def test_paths_that_do_not_match_are_rejects_counted_and_named(self, tmp_path: Path) -> None:
        write_tree(tmp_path / "in")
        write_tree(tmp_path / "in", "stray.png", "val/deep/real/0_1.png")
        call = (tmp_path / "in", tmp_path / "out", "--fields-from-path", PATTERN, "--quiet")
        run_packer("build", *call, expect=3)
        reason = "expected a path like '{split}/{label}/{person}_{clip}.png' (--fields-from-path)"
        assert reasons(tmp_path / "out") == dict.fromkeys(("stray.png", "val/deep/real/0_1.png"), reason)
        assert len(sources(tmp_path / "out")) == 8
        run_packer("build", *call, "--exclude", "/stray.png", "--exclude", "deep/", "--overwrite")

    def test_no_matching_path_is_an_error_with_an_example(self, tmp_path: Path) -> None:
        write_tree(tmp_path / "in")
        done = run_packer("build", tmp_path / "in", tmp_path / "out", "--fields-from-path", "in/" + PATTERN, expect=2)
        assert "found none among 8 paths below the source, such as 'train/fake/000_7.png'" in done.stderr
        assert not (tmp_path / "out").exists()

    def test_labels_come_from_any_placeholder(self, tmp_path: Path) -> None:
        write_tree(tmp_path / "in")
        options = {**QUIET, "fields_from_path": PATTERN}
        made = build(tmp_path / "in", tmp_path / "out", label_from="person", **options)
        assert made.manifest.schema["label"].classes == ("000", "001")
        assert "label" in made.describe()
        assert "the column 'label' is not packed, since --label-from person replaces it" in made.describe()
        made = build(tmp_path / "in", tmp_path / "folder", label_from="folder", **options)
        assert made.manifest.schema["label"].classes == ("train", "val")
        assert "the classes 'train', 'val' look like splits" in made.describe()
        assert "label" not in build(tmp_path / "in", tmp_path / "n", label_from="none", **options).manifest.schema
        with raises(UsageError, option="label_from", found="'Person'; did you mean 'person'?"):
            build(tmp_path / "in", tmp_path / "no", label_from="Person", **options)

    def test_names_that_are_not_utf8_become_fields(self, tmp_path: Path) -> None:
        write_tree(tmp_path / "in", "caf\udce9/a.png", "the/b.png")
        for name, how in (("path", {"fields_from_path": "{label}/{name}.png"}), ("folder", {"label_from": "folder"})):
            made = build(tmp_path / "in", tmp_path / name, **how, **QUIET)
            assert made.manifest.schema["label"].classes == ("caf\\xe9", "the")
            assert made.counts.packed_items == 2


class TestSidecars:
    def write(self, root: Path) -> Path:
        """Three images; one without a text, one without an object."""
        write_tree(root, "a/0.png", "a/1.jpg", "b/2.png")
        (root / "a" / "0.txt").write_text("\ufeffa cat,\n on a mat \r\n", encoding="utf-8")
        (root / "a" / "1.TXT").write_text("12")
        (root / "a" / "0.json").write_text(json.dumps({"Age": 3, "box": [1, 2, 3, 4], "tags": ["x"], "label": "cat"}))
        (root / "a" / "1.json").write_text(json.dumps({"Age": 4.5, "box": [5, 6, 7, 8], "label": "dog", "more": None}))
        (root / "b" / "2.txt").write_text("")
        (root / "b" / "2.json").write_text(json.dumps({"label": "cat"}))
        (root / "b" / "3.json").write_text("{}")
        return root

    def test_text_and_objects_become_fields(self, tmp_path: Path) -> None:
        self.write(tmp_path / "in")
        run = run_packer("build", tmp_path / "in", tmp_path / "out", "--sidecars", "--quiet")
        ds = open_dataset(tmp_path / "out")
        assert ds.manifest.schema["label"].classes == ("cat", "dog")
        assert ds.column("label").tolist() == [0, 1, 0]
        assert ds.column("age").tolist() == [3.0, 4.5, None]
        assert ds.column("age_valid").tolist() == [True, True, False]
        assert [sample["text"] for sample in ds] == ["a cat,\n on a mat", "12", ""]
        assert ds.column("text_valid").tolist() == [True, True, False]
        assert np.array_equal(ds[1]["sidecar_box"], [5, 6, 7, 8])
        assert "'box' of the sidecars is packed as 'sidecar_box'" in run.stdout
        assert "ignored: 1 .json (such as 'b/3.json')" in run.stdout
        assert "no labels" not in run.stdout

    def test_paths_and_sidecars_together(self, tmp_path: Path) -> None:
        self.write(tmp_path / "in")
        options: dict[str, Any] = {
            "sidecars": True,
            "fields_from_path": "{set}/{number}.*",
            "label_from": "set",
            **QUIET,
        }
        made = build(tmp_path / "in", tmp_path / "out", text="number", **options)
        assert made.manifest.schema["label"].classes == ("a", "b")
        assert [sample["number"] for sample in open_dataset(tmp_path / "out")] == ["0", "1", "2"]
        with pytest.raises(UsageError, match=r"found \{age\} and 'Age': rename the placeholder"):
            build(tmp_path / "in", tmp_path / "no", sidecars=True, fields_from_path="{age}/*", **QUIET)

    def test_no_sidecar_next_to_any_item_is_an_error(self, tmp_path: Path) -> None:
        write_tree(tmp_path / "in", "a/0.png")
        (tmp_path / "in" / "a" / "0.png.txt").write_text("x")
        done = run_packer("build", tmp_path / "in", tmp_path / "out", "--sidecars", expect=2)
        assert "expected .txt or .json files next to the items, such as 'a/0.txt', found none" in done.stderr

    @pytest.mark.parametrize(
        ("suffix", "content", "reason"),
        [
            (".txt", b"\xff\xfe", "expected UTF-8, found the byte 0xff at 0"),
            (".txt", b"x" * (SIDECAR_BYTES + 1), "expected at most 1,048,576 bytes, found more"),
            (".json", b"", "expected JSON, found a syntax error: Expecting value (line 1 column 1)"),
            (".json", b"[1]", "expected a JSON object, found list"),
            (".json", b'{"a": 1', "expected JSON, "),
            (".json", b'{"a": 1, "a": 2}', "expected every name once, found 1 name repeated"),
            (".json", b'{"a": -Infinity}', "expected finite numbers, found -Infinity"),
            (".json", b'{"a": [[NaN]]}', "expected finite numbers in lists, found NaN"),
            (".json", b'{"a": -1e999}', "expected finite numbers, found '-1e999'"),
            (".json", b'{"a": "\\ud800"}', "found half of a surrogate pair"),
            (".json", b'{"a": ' + b"9" * 5000 + b"}", "Exceeds the limit"),
            (".json", b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}", "expected at most 32 levels"),
            (".json", b'{"a": ' + b"[" * 10**5 + b"]" * 10**5 + b"}", "expected at most 32 levels"),
            (".json", b'{"Key": 1, "key": 2}', "found two that become 'sidecar_key'"),
            (".json", b'{"text": "y"}', "expected other names than in the .json file, found text"),
        ],
    )
    def test_odd_sidecars_are_rejects_with_a_reason(
        self, tmp_path: Path, suffix: str, content: bytes, reason: str
    ) -> None:
        write_tree(tmp_path / "in", "0.png", "1.png")
        (tmp_path / "in" / "0.txt").write_text("x")
        (tmp_path / "in" / "1.txt").write_text("x")
        (tmp_path / "in" / f"1{suffix}").write_bytes(content)
        build(tmp_path / "in", tmp_path / "out", sidecars=True, **QUIET)
        assert sources(tmp_path / "out") == ["0.png"]
        (found,) = reasons(tmp_path / "out").values()
        assert re.match(r"sidecar '1\.(txt|json)': expected |sidecar '1\.json': Exceeds", found)
        assert reason in found
        assert len(found) < 300

    def test_an_item_that_is_not_a_file_of_the_source_is_a_reject(self, tmp_path: Path) -> None:
        write_tree(tmp_path / "in", "0.png", "1.png", "2.png", "3.png")
        (tmp_path / "secret.txt").write_text("secret")
        (tmp_path / "in" / "0.txt").symlink_to(tmp_path / "secret.txt")
        os.mkfifo(tmp_path / "in" / "1.txt")
        for name in ("2.txt", "2.TXT", "3.txt"):
            (tmp_path / "in" / name).write_text("x")
        build(tmp_path / "in", tmp_path / "out", sidecars=True, **QUIET)
        found = reasons(tmp_path / "out")
        assert "found a symbolic link that leaves it: name the folder it leads to with --root DIR" in found["0.png"]
        assert "expected a regular file" in found["1.png"]
        assert "expected one such file, found '2.TXT' as well" in found["2.png"]
        assert sources(tmp_path / "out") == ["3.png"]
        build(tmp_path / "in", tmp_path / "all", sidecars=True, root=tmp_path, **QUIET)
        assert sources(tmp_path / "all") == ["0.png", "3.png"]

    def test_values_that_no_column_can_hold_are_named_with_a_way(self, tmp_path: Path) -> None:
        write_tree(tmp_path / "in", "0.png", "1.png")
        for first, second, message in (
            (1, "x", "column 'a': expected values of one type, found int in '0.png', str in '1.png'"),
            (1, 2**70, "column 'a', '1.png': expected signed 64-bit integers, found 1180591620717411303424: make it"),
        ):
            for number, value in enumerate((first, second)):
                (tmp_path / "in" / f"{number}.json").write_text(json.dumps({"a": value}))
            with pytest.raises(UsageError, match=re.escape(message)):
                build(tmp_path / "in", tmp_path / "out", sidecars=True, **QUIET)
            build(tmp_path / "in", tmp_path / str(second), sidecars=True, text="a", **QUIET)
            assert [sample["a"] for sample in open_dataset(tmp_path / str(second))] == ["1", str(second)]

    def test_names_that_are_values_are_refused(self, tmp_path: Path) -> None:
        write_tree(tmp_path / "in", "0.png")
        (tmp_path / "in" / "0.json").write_text(json.dumps({f"id_{number}": 1 for number in range(2000)}))
        with raises(UsageError, option="sidecars", found="more than 1,000"):
            build(tmp_path / "in", tmp_path / "out", sidecars=True, **QUIET)

    @given(st.binary(max_size=80) | st.text('{}[]",:0123456789eE.-\\utrnfals ', max_size=40).map(str.encode))
    def test_any_bytes_are_columns_or_one_reason(self, content: bytes) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name).resolve()
            (folder / "a.json").write_bytes(content)
            try:
                columns, _ = read_sidecars(["a.json"], folder, [folder])
            except ValueError as error:
                assert str(error).startswith("sidecar 'a.json': ")  # noqa: PT017 -- either is right
            else:
                json.dumps(columns, allow_nan=False, ensure_ascii=False).encode()

    def test_a_change_makes_another_plan_and_one_during_the_build_a_reject(self, tmp_path: Path) -> None:
        root = write_tree(tmp_path / "in", "0.png", "1.png")
        for name in ("0.txt", "1.txt"):
            (root / name).write_text("x")

        def meddle(samples: Any) -> Any:
            (root / "1.txt").write_text("changed meanwhile")
            yield from samples

        made = build(root, tmp_path / "out", sidecars=True, steps=["decode", meddle], **QUIET)
        assert made.counts.packed_items == 1
        assert reasons(tmp_path / "out") == {"1.png": "'1.txt' has changed since the build was planned"}
        run_packer("build", root, tmp_path / "two", "--sidecars", "--quiet")
        os.utime(root / "0.txt", ns=(1, 1))
        done = run_packer("build", root, tmp_path / "two", "--sidecars", "--quiet", expect=None)
        assert done.returncode != 0
        assert "size, time or columns" in done.stderr
        assert "finished already" not in done.stdout

    def test_an_unfinished_build_resumes_with_changed_items(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root = write_tree(tmp_path / "in", "a/0.png", "a/1.png")
        (root / "a" / "0.json").write_text('{"age": 3}')
        options: dict[str, Any] = {"sidecars": True, "fields_from_path": "{label}/*", **QUIET}

        def stop(*_: object) -> Any:
            raise KeyboardInterrupt

        for out in ("same", "changed"):
            with monkeypatch.context() as patch:
                patch.setattr("packer.builds.work.BuildWork.run", stop)
                with pytest.raises(KeyboardInterrupt):
                    build(root, tmp_path / out, **options)
        assert build(root, tmp_path / "same", **options).resumed
        build(root, tmp_path / "whole", **options)
        digests = [Layout(tmp_path / out).load().shards[0].files[0].sha256 for out in ("same", "whole")]
        assert digests[0] == digests[1]
        (root / "a" / "0.json").write_text('{"age": 4}')
        build(root, tmp_path / "changed", **options)
        assert open_dataset(tmp_path / "changed").column("age").tolist()[0] == 4

    def test_further_files_may_be_named_in_them(self, tmp_path: Path) -> None:
        """As with `--also` and `--boxes-from` for a table; rejected items have no columns."""
        root = write_tree(tmp_path / "in", "v/0.png", "v/1.png", "masks/0.png")
        (root / "v" / "0.json").write_text(json.dumps({"mask": "masks/0.png"}))
        recipe = Recipe(preset="faces", also="mask", sidecars=True, fields_from_path="v/{name}.png")
        found = list_items(open_source(root, tmp_path / "out", recipe), recipe).items
        assert [item.name for item in found if item.reject] == ["masks/0.png"]
        assert [file.name for file in found[1].files.values()] == ["v/0.json", "masks/0.png"]
        assert found[2].files == {}


class TestLinks:
    def write(self, root: Path) -> Path:
        """A folder of links into a disk: one to a class, and one to an image."""
        write_tree(root / "disk", "faces/0.png", "faces/deep/1.png", "other/2.png")
        (root / "in" / "fake").mkdir(parents=True)
        (root / "in" / "real").symlink_to(root / "disk" / "faces", target_is_directory=True)
        (root / "in" / "fake" / "x.png").symlink_to(root / "disk" / "other" / "2.png")
        return root / "in"

    def test_they_are_rejects_that_name_the_option(self, tmp_path: Path) -> None:
        done = run_packer("build", self.write(tmp_path), tmp_path / "out", expect=3)
        assert "found a symbolic link that leaves it: name the folder it leads to with --root DIR" in done.stderr
        done = run_packer("build", tmp_path / "in", tmp_path / "out", "--root", tmp_path / "none", expect=2)
        assert "root: expected a folder, found none at" in done.stderr

    def test_with_the_root_they_are_followed(self, tmp_path: Path) -> None:
        call = (self.write(tmp_path), tmp_path / "out", "--label-from", "folder", "--root", tmp_path / "disk")
        run_packer("build", *call, "--quiet")
        assert sources(tmp_path / "out") == ["fake/x.png", "real/0.png", "real/deep/1.png"]
        assert open_dataset(tmp_path / "out").column("label").tolist() == [0, 1, 1]
        recipe = Layout(tmp_path / "out").load().generations[0].recipe
        assert recipe["root"] == ["disk"]
        build(tmp_path / "in", tmp_path / "part", root=tmp_path / "disk" / "faces", **QUIET)
        assert sources(tmp_path / "part") == ["real/0.png", "real/deep/1.png"]
        assert set(reasons(tmp_path / "part")) == {"fake/x.png"}

    def test_folders_of_one_name_may_be_roots(self, tmp_path: Path) -> None:
        """They are only the targets of links: the names of items do not begin with theirs."""
        write_tree(tmp_path, "a/faces/0.png", "b/faces/1.png")
        (tmp_path / "in").mkdir()
        for name in "ab":
            (tmp_path / "in" / name).symlink_to(tmp_path / name / "faces", target_is_directory=True)
        roots = [tmp_path / "a" / "faces", tmp_path / "b" / "faces", tmp_path / "b"]
        build(tmp_path / "in", tmp_path / "out", root=roots, **QUIET)
        assert sources(tmp_path / "out") == ["a/0.png", "b/1.png"]

    def test_each_folder_is_entered_once_regardless_of_links(self, tmp_path: Path) -> None:
        root = self.write(tmp_path)
        faces = tmp_path / "disk" / "faces"
        (faces / "up").symlink_to(tmp_path / "disk", target_is_directory=True)
        (faces / "back").symlink_to(root, target_is_directory=True)
        (faces / "deep" / "again").symlink_to(faces, target_is_directory=True)
        (tmp_path / "disk" / "other" / "round").symlink_to(faces / "deep", target_is_directory=True)
        made = build(root, tmp_path / "out", root=tmp_path / "disk", **QUIET)
        assert sources(tmp_path / "out") == ["fake/x.png", "real/0.png", "real/deep/1.png", "real/up/other/2.png"]
        assert "behind links to folders that are listed anyway (such as 'real/back')" in made.describe()


class TestNotes:
    def test_class_folders_without_labels_are_reported(self, tmp_path: Path) -> None:
        write_tree(tmp_path / "in", "real/0.png", "fake/1.png")
        line = "no labels: --label-from folder makes 2 classes from the folders 'fake', 'real'"
        call = (tmp_path / "in", tmp_path / "out", "--quiet")
        assert line in run_packer("build", *call).stdout
        made = build(tmp_path / "in", tmp_path / "out", **{**QUIET, "max_rejects": 0.05})
        assert made.found_finished
        assert line in made.describe()
        assert made.to_json()["notes"][0].startswith(line)
        for choice in ("folder", "none"):
            assert build(tmp_path / "in", tmp_path / choice, label_from=choice, **QUIET).notes == ()
        assert dry_run(tmp_path / "in" / "real", tmp_path / "o", progress=False).notes == ()

    def test_boxes_need_no_labels(self, tmp_path: Path) -> None:
        root = write_tree(tmp_path / "in", "real/0.png", "fake/1.png")
        recipe = Recipe(preset="faces", steps=("decode", "detect"))
        assert list(list_items(open_source(root, tmp_path / "out", recipe), recipe).notes) == []

    def test_folders_of_splits_get_other_advice(self, tmp_path: Path) -> None:
        write_tree(tmp_path / "in", "Train/cat/0.png", "Train/dog/x/2.png", "val/cat/1.png")
        made = build(tmp_path / "in", tmp_path / "out", **QUIET)
        line = "no labels: --fields-from-path '{split}/{label}/**' takes them from the folders in 'Train', 'val'"
        assert line in made.describe()
        made = build(tmp_path / "in", tmp_path / "labels", fields_from_path="{split}/{label}/**", **QUIET)
        assert made.manifest.schema["label"].classes == ("cat", "dog")
        assert made.notes == ()

    def test_a_class_folder_without_images_is_reported(self, tmp_path: Path) -> None:
        write_tree(tmp_path / "in", "real/0.png", "fake/1.png")
        (tmp_path / "in" / "deepfake").mkdir()
        (tmp_path / "in" / "deepfake" / "x.docx").write_bytes(b"x")
        done = run_packer("build", tmp_path / "in", tmp_path / "out", "--label-from", "folder", "--quiet")
        assert "ignored folders without images or videos: 'deepfake'" in done.stdout
        assert "ignored: 1 .docx (such as 'deepfake/x.docx')" in done.stdout

    def test_ignored_files_are_named_by_suffix_with_a_bound(self, tmp_path: Path) -> None:
        write_tree(tmp_path / "in", "0.png")
        for number in range(1200):
            (tmp_path / "in" / f"x.{number}{'y' * 100}").touch()
        for name in ("b.DOCX", "a.docx", "README", ".hidden", "c.do\ncx"):
            (tmp_path / "in" / name).touch()
        made = build(tmp_path / "in", tmp_path / "out", **QUIET)
        assert made.counts.ignored_files == 1205
        (line,) = made.notes
        assert "2 .docx (such as 'a.docx')" in line
        assert "other kinds" in line
        assert len(line) < 1200
        assert "\n" not in line

    def test_files_with_two_labels_are_reported(self, tmp_path: Path) -> None:
        write_tree(tmp_path, "0.png", "1.png", "2.png")
        (tmp_path / "t.csv").write_text("path,label\n0.png,real\n1.png,real\n0.png,fake\n1.png,real\n2.png,fake\n")
        line = "1 file with different labels in several rows, such as '0.png' (fake, real): each row is packed"
        assert line in run_packer("build", tmp_path / "t.csv", tmp_path / "out", "--dry-run").stdout
        assert line in build(tmp_path / "t.csv", tmp_path / "out", **QUIET).describe()
        assert build(tmp_path / "t.csv", tmp_path / "few", limit=2, **QUIET).notes == ()
        with (tmp_path / "t.csv").open("a") as table:
            table.write("2.png,real\n")
        equal, noted = build(tmp_path / "t.csv", tmp_path / "out", update=True, **QUIET).notes
        assert equal.startswith("1 row equal to an earlier row, such as '1.png'")
        assert noted.startswith("2 files with different labels")
        (tmp_path / "t.csv").write_text("path,label\n0.png,1\n0.png,-1\n")
        (line,) = build(tmp_path / "t.csv", tmp_path / "numbers", classes=["fake", "real"], **QUIET).notes
        assert "such as '0.png' (-1, real)" in line
