"""What a dataset says of itself: given to a build, changed later, and kept by everything that copies samples."""

import json
from pathlib import Path

import pytest
from support.builds import QUIET, write_images
from support.command import run_packer
from support.datasets import manifest_document
from support.errors import raises
from support.packed_files import write_faces

import packer
from packer import build, convert, copy, describe, merge, split, verify
from readers import open_dataset
from shardspec.entries import About
from shardspec.errors import DatasetError, ManifestError, UsageError
from shardspec.formats import FORMATS
from shardspec.layout import Layout

BIBTEX = "@inproceedings{faces,\n  title = {Faces of {É}},\n}"
SAID = {"title": "Faces", "license": ["CC-BY-4.0"], "citation": [BIBTEX], "homepage": "https://example.org/faces"}


def said(root: Path) -> dict[str, object]:
    return Layout(root).load().about.to_json()


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_describe_changes_only_the_manifest_and_open_readers_continue(tmp_path: Path, format: str) -> None:
    write_faces(tmp_path / "a", 12, format)
    reader = open_dataset(tmp_path / "a")  # opens no shard yet
    digest, before = (
        Layout(tmp_path / "a").load().digest,
        {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("shard*")},
    )
    options = ["--title", "Faces", "--license=CC-BY-4.0", "--citation", BIBTEX, "--homepage", SAID["homepage"]]
    shown = run_packer("describe", tmp_path / "a", *options).stdout
    assert shown.splitlines()[:2] == [f"{tmp_path / 'a'}: digest {digest}", "title: Faces"]
    assert said(tmp_path / "a") == SAID
    assert reader.read_batch(range(12))["key"] == open_dataset(tmp_path / "a").read_batch(range(12))["key"]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert verify(tmp_path / "a", deep=True).digest == digest
    assert json.loads(run_packer("describe", tmp_path / "a", "--json").stdout)["about"] == SAID
    assert run_packer("describe", tmp_path / "a", "--title=", "--license=MIT", "--license=CC0-1.0").stdout != shown
    assert said(tmp_path / "a") == {
        **{name: SAID[name] for name in ("citation", "homepage")},
        "license": ["MIT", "CC0-1.0"],
    }
    describe(tmp_path / "a", license="", citation=[""], homepage="")
    assert "about" not in json.loads((tmp_path / "a/manifest.json").read_text())
    inspected = run_packer("inspect", tmp_path / "a").stdout
    describe(tmp_path / "a", title="Two\nlines", license=["MIT"])
    assert run_packer("inspect", tmp_path / "a").stdout == inspected.replace(
        "digest:", "title: Two lines\nlicense: MIT\ndigest:"
    )


def test_the_description_is_kept_by_every_command(tmp_path: Path) -> None:
    write_images(tmp_path / "raw/x", ["1.png", "2.png", "3.png", "4.png"])
    (tmp_path / "recipe.toml").write_text('title = "Faces"\nlicense = "CC-BY-4.0"\n')
    out = tmp_path / "out"
    line = ["build", tmp_path / "raw", out, "--quiet", "--label-from", "folder", "--config", tmp_path / "recipe.toml"]
    run_packer(*line, "--citation", BIBTEX, "--homepage", SAID["homepage"])
    assert said(out) == SAID
    run_packer(*line, "--title", "New")  # finished already
    assert said(out) == {**SAID, "title": "New"}
    write_images(tmp_path / "raw/y", ["5.png"])
    run_packer(*line, "--update", "--new-classes", "--title", "Faces")
    assert said(out) == SAID
    run_packer(*line, "--update", "--homepage", "https://example.org/2")  # nothing to add
    assert said(out) == {**SAID, "homepage": "https://example.org/2"}
    describe(out, homepage=str(SAID["homepage"]))
    convert(out, tmp_path / "converted", format="npy", **QUIET)
    build(tmp_path / "converted", tmp_path / "again", size=16, **QUIET)
    copy(tmp_path / "again", tmp_path / "copied", progress=False)
    copy(tmp_path / "again", tmp_path / "some", where="label == 'x'", progress=False)
    parts = split(out, tmp_path / "parts", into="label", **QUIET).parts
    roots = [tmp_path / name for name in ("converted", "again", "copied", "some")]
    assert [said(root) for root in (*roots, *(part.result.path for part in parts))] == [SAID] * 6
    build(tmp_path / "raw", out, overwrite=True, **QUIET)
    assert said(out) == {}


def test_a_changed_description_does_not_change_the_digest(tmp_path: Path) -> None:
    write_faces(tmp_path / "a", 6)
    made = convert(tmp_path / "a", tmp_path / "b", format="npy", **QUIET).manifest
    describe(tmp_path / "a", title="Faces")
    assert convert(tmp_path / "a", tmp_path / "b", format="npy", **QUIET).found_finished
    assert Layout(tmp_path / "b").load() == made


def test_a_merge_joins_licences_and_keeps_common_entries(tmp_path: Path) -> None:
    for name, more in (("a", {"license": ["CC-BY-4.0", "MIT"]}), ("b", {"license": ["MIT", "CC0-1.0"]}), ("c", {})):
        write_faces(tmp_path / name, 4, seed=ord(name))
        describe(tmp_path / name, title=name, citation=[BIBTEX, name], homepage="https://example.org", **more)
    merge([tmp_path / name for name in "abc"], tmp_path / "out", **QUIET)
    assert said(tmp_path / "out") == {
        "license": ["CC-BY-4.0", "MIT", "CC0-1.0"],
        "citation": [BIBTEX, "a", "b", "c"],
        "homepage": "https://example.org",
    }


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"license": "Creative Commons"}, "license"),
        ({"license": ["MIT", "ftp://example.org"]}, "license"),
        ({"license": ["MIT", ""]}, "license"),
        ({"license": 4}, "license"),
        ({"homepage": "example.org"}, "homepage"),
        ({"homepage": "javascript:alert(1)"}, "homepage"),
        ({"title": 4}, "title"),
        ({"title": "\ud800"}, "title"),
        ({"citation": "x" * 70_000}, "citation"),
    ],
)
def test_invalid_entries_are_refused_and_change_nothing(tmp_path: Path, options: dict[str, object], name: str) -> None:
    before = write_faces(tmp_path / "a", 3)
    with raises(UsageError, option=name):
        describe(tmp_path / "a", **options)  # type: ignore[arg-type]
    with raises(UsageError, option=name):
        build(tmp_path / "a", tmp_path / "out", **options, **QUIET)
    assert Layout(tmp_path / "a").load() == before
    assert not (tmp_path / "out").exists()


def test_a_manifest_with_an_invalid_description_is_refused(tmp_path: Path) -> None:
    write_faces(tmp_path / "a", 3)
    document = manifest_document(tmp_path / "a")
    for about in (
        {},
        {"title": ""},
        {"title": ["x"]},
        {"license": "MIT"},
        {"license": [1]},
        {"homepage": "x"},
        {"a": 1},
    ):
        (tmp_path / "a/manifest.json").write_text(json.dumps({**document, "about": about}))
        with pytest.raises(ManifestError, match="about"):
            Layout(tmp_path / "a").load()
    with pytest.raises(DatasetError):
        describe(tmp_path / "nowhere", title="x")
    assert not About()
    assert packer.describe is describe
