"""The dataset card of Parquet and WebDataset datasets: other tools find the data, and people may edit it."""

import html
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support.builds import QUIET, write_images
from support.command import file_of, run_packer
from support.errors import raises
from support.media import scene
from support.packed_files import read_all, write_faces

from packer import add, build, card, convert, copy, describe, drop_field, split, verify
from shardspec.errors import UsageError
from shardspec.formats import FORMATS
from shardspec.layout import Layout

ROWS = [{"image": scene(number, (16, 12)), "label": "ab"[number % 2], "n": number} for number in range(6)]


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_it_is_there_in_formats_that_have_one(tmp_path: Path, format: str) -> None:
    build(ROWS, tmp_path / "out", format=format, **QUIET)
    has_card = FORMATS[format].card
    assert has_card is (format in ("parquet", "webdataset"))
    assert (tmp_path / "out" / "README.md").exists() is has_card
    assert verify(tmp_path / "out", deep=True).problems == ()
    assert verify(tmp_path / "out").unlisted == ()


def test_every_job_writes_the_card(tmp_path: Path) -> None:
    write_faces(tmp_path / "npy", 12)
    run_packer("convert", tmp_path / "npy", tmp_path / "parquet", "--format", "parquet", "--quiet")
    parts = split(tmp_path / "parquet", tmp_path / "parts", into="label", **QUIET).parts
    convert(tmp_path / "parquet", tmp_path / "back", format="lmdb", **QUIET)
    roots = [tmp_path / "parquet", *(part.result.path for part in parts)]
    assert all(f"`{Layout(root).load().digest}`" in (root / "README.md").read_text() for root in roots)
    assert all(verify(root).problems == () for root in roots)
    assert not (tmp_path / "back" / "README.md").exists()


def test_the_card_is_written_and_removed_as_the_format_changes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for format in ("parquet", "lmdb", "parquet", "parquet"):
        build(ROWS, out, format=format, quality=90 + len(format), overwrite=True, **QUIET)
        assert (out / "README.md").exists() is (format == "parquet")
        assert verify(out, deep=True).problems == ()
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "README.md").write_text("mine")
    with raises(UsageError, expected="a new or empty folder", found="'README.md', which no build made"):
        build(ROWS, tmp_path / "own", format="parquet", overwrite=True, **QUIET)
    assert (tmp_path / "own" / "README.md").read_text() == "mine"


def test_an_edited_card_stays(tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(ROWS, out, format="parquet", title="Scenes", **QUIET)
    generated = (out / "README.md").read_text()
    edited = generated.replace("# Scenes", "# My scenes")
    (out / "README.md").write_text(edited)
    assert verify(out).problems == ()
    assert "README.md: edited by hand" in describe(out, title="Other").describe()
    for change in (
        lambda: describe(out),
        lambda: add(out, {"n": [*range(6)], "score": [*range(6)]}, on="n", progress=False),
        lambda: drop_field(out, "score", progress=False),
        lambda: build([*ROWS, {**ROWS[0], "n": 9}], out, format="parquet", update=True, **QUIET),
        lambda: build(ROWS, out, format="parquet", quality=80, overwrite=True, **QUIET),
        lambda: build(ROWS, out, format="lmdb", overwrite=True, **QUIET),
    ):
        change()
        assert (out / "README.md").read_text() == edited
        assert verify(out, deep=True).problems == ()
        copy(out, tmp_path / "copy", overwrite=True, progress=False)
        assert (tmp_path / "copy" / "README.md").read_text() == edited
    (out / "README.md").write_text(generated)
    build(ROWS, out, format="lmdb", quality=70, overwrite=True, **QUIET)
    assert not (out / "README.md").exists()


def test_a_card_follows_its_dataset(tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(ROWS, out, format="parquet", **QUIET)
    describe(out, title="Scenes | 6")
    add(out, {"n": [*range(6)], "score": [*range(6)]}, on="n", progress=False)
    text = (out / "README.md").read_text()
    assert f"`{Layout(out).load().digest}`" in text
    assert "# Scenes \\| 6\n" in text
    assert "| `score` | one value | int64 |" in text
    assert verify(out, deep=True).problems == ()
    assert card(out).text == text


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_the_card_of_any_format_says_what_is_in_it_and_how_it_was_made(tmp_path: Path, format: str) -> None:
    write_images(tmp_path / "raw/train/a|b", ["1.png", "2.png", "3.png"])
    write_images(tmp_path / "raw/test/real", ["4.png"])
    (tmp_path / "raw/test/real/5.png").write_bytes(b"no image")
    options: dict[str, Any] = {
        "fields_from_path": "{split}/{label}/*",
        "root": str(tmp_path / "raw"),
        "max_rejects": 1,
        "size": 16,
    }
    said: dict[str, Any] = {
        "title": "Tiny",
        "license": ["CC-BY-4.0", "https://example.org/terms"],
        "citation": "@misc{tiny}",
    }
    build(tmp_path / "raw", tmp_path / "out", format=format, **options, **said, **QUIET)
    run_packer("card", tmp_path / "out", "-o", tmp_path / "card.md")
    text = (tmp_path / "card.md").read_text()
    for line in (
        "license: other", 'license_name: "CC-BY-4.0 and https://example.org/terms"', 'pretty_name: "Tiny"', "- n<1K",
        "# Tiny", f"| digest | `{Layout(tmp_path / 'out').load().digest}` |", "| a\\|b | 3 |", "| real | 1 |",
        "| train | 3 |", "| test | 1 |", 'fields_from_path = "{split}/{label}/*"', 'root = ["raw"]', "size = 16",
        "* https://example.org/terms", "@misc{tiny}",
    ):  # fmt: skip
        assert f"\n{line}\n" in text
    assert "| `image` | 16 x " in text
    assert re.search(r"^\| decode \| .* \| 1 \|$", text, re.MULTILINE)
    assert ("configs:" in text) == FORMATS[format].card
    assert str(tmp_path) not in text
    head = text.split("---\n")[1]
    assert yaml.safe_load(head)["size_categories"] == ["n<1K"]
    describe(tmp_path / "out", license=["CC-BY-4.0", "MIT"])
    run_packer("card", tmp_path / "out", "-o", tmp_path / "card.md")  # replaces its own text
    assert yaml.safe_load((tmp_path / "card.md").read_text().split("---\n")[1])["license"] == ["cc-by-4.0", "mit"]
    (tmp_path / "card.md").write_text(text.replace("Tiny", "Mine"))
    with raises(UsageError, place=str(tmp_path / "card.md")):
        card(tmp_path / "out", out=tmp_path / "card.md")
    assert "Mine" in (tmp_path / "card.md").read_text()
    with raises(UsageError, found=f"one in {tmp_path / 'out'}"):
        card(tmp_path / "out", out=tmp_path / "out/card.md")


def test_names_in_a_card_are_text(tmp_path: Path) -> None:
    names = ["<script>alert(1)</script>", "<unk>", "AT&amp;T", "__init__", "a|b", "x\\y", "`c`", "[a](b)"]
    rows = [{**ROWS[number % len(ROWS)], "label": name} for number, name in enumerate(names)]
    build(rows, tmp_path / "out", title="<b>*Scenes*", **QUIET)
    text = card(tmp_path / "out").text
    cells = re.findall(r"^\| (.*) \| 1 \|$", text, re.MULTILINE)
    assert sorted(html.unescape(re.sub(r"\\(.)", r"\1", cell)) for cell in cells) == sorted(names)
    assert not re.search(r"<(?!!--)|(?<!\\)\*", text.split("---\n", 2)[2].partition("## Use")[0])
    assert all(not re.search(r"(?<!\\)[`_\[|]|\\$|&(?!amp;|lt;|gt;)", cell) for cell in cells)


@pytest.mark.external
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("format", "image", "label"), [("parquet", "image", "label"), ("webdataset", "png", "cls")])
def test_hugging_face_datasets_load_the_folder(tmp_path: Path, format: str, image: str, label: str) -> None:
    datasets = pytest.importorskip("datasets")
    write_faces(tmp_path / "npy", 40, codec="png")
    run_packer("convert", tmp_path / "npy", tmp_path / "out", "--format", format, "--shard-size", "20kB", "--quiet")
    assert len(list((tmp_path / "out").glob(f"shard-*{FORMATS[format].suffix}"))) > 1
    assert file_of(tmp_path / "out", "index/landmarks_valid.npy").exists()
    found = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert list(found) == ["train"]
    assert len(found["train"]) == 40
    assert list(found["train"][label]) == read_all(tmp_path / "npy")["label"].tolist()
    assert format == "webdataset" or found["train"].features[label].names == ["real", "fake"]
    assert np.asarray(found["train"][0][image]).shape == (32, 32, 3)


def test_a_copy_brings_the_card_unless_it_was_edited_there(tmp_path: Path) -> None:
    out, target = tmp_path / "out", tmp_path / "copy"
    build(ROWS, out, format="parquet", title="Scenes", **QUIET)
    copy(out, target, progress=False)
    describe(out, title="Other")
    copy(out, target, progress=False)
    assert (target / "README.md").read_text() == (out / "README.md").read_text()
    (target / "README.md").write_text("mine")
    copy(out, target, progress=False)
    assert (target / "README.md").read_text() == "mine"
    (target / "README.md").write_bytes((out / "README.md").read_bytes())
    build(ROWS, tmp_path / "lmdb", **QUIET)
    copy(tmp_path / "lmdb", target, overwrite=True, progress=False)
    assert not (target / "README.md").exists()
