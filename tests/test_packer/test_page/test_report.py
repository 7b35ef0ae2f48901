"""``packer report``: one file that holds what it says, escapes everything, and loads nothing."""

import base64
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from support.command import run_packer
from support.datasets import fixed, picture, text, write_dataset
from support.errors import raises
from support.media import scene, write_image
from support.packed_files import face_columns, read_all, write_faces
from support.pages import HOSTILE, Page, assert_harmless, descendants, write_hostile

from packer import build, compute, report
from packer.page.rendering import static
from packer.page.report import ReportResult
from readers import open_dataset
from shardspec.errors import DatasetError, UsageError
from shardspec.schema import Schema


def read_page(result: ReportResult) -> Page:
    return Page(result.path.read_text("utf-8"))


def points_of(card: object) -> np.ndarray:
    """The coordinates of all points in a card's overlay, sorted."""
    paths = [e for e in descendants(card) if e.tag == "path" and "points" in e.classes]
    found = re.findall(r"M(-?[0-9.]+) (-?[0-9.]+)h0", "".join(e.attributes["d"] for e in paths))
    return np.array(sorted((float(x), float(y)) for x, y in found))


def test_the_file_has_images_as_stored_and_points_where_they_are(tmp_path: Path) -> None:
    write_faces(tmp_path / "faces", 12, codec="jpeg")
    columns, stored = face_columns(12, codec="jpeg"), read_all(tmp_path / "faces")
    made = report(tmp_path / "faces", tmp_path / "r.html", progress=False)
    cards = read_page(made).find("div", "card")
    assert len(cards) == made.samples == 12
    by_key = {key: row for row, key in enumerate(columns["key"])}
    for card in cards:
        row = by_key[next(e.text for e in descendants(card) if e.text in by_key)]
        image = next(e for e in descendants(card) if e.tag == "img")
        kind, data = image.attributes["src"].split(",")
        assert kind == "data:image/jpeg;base64"
        assert base64.b64decode(data) == stored["image"][row]
        overlay = [e for e in descendants(card) if e.tag == "svg"]
        assert bool(overlay) == bool(columns["landmarks_valid"][row])
        if overlay:
            expected = np.array(sorted(map(tuple, columns["landmarks"][row].tolist())))
            assert np.allclose(points_of(card), expected, atol=0.006)
            assert overlay[0].attributes["viewbox"] == "0 0 32 32"
            layers = {e.classes[1] for e in descendants(overlay[0])}
            assert layers == {"points", "outline", "regions"}


def test_hostile_texts_are_shown_as_text_and_nothing_is_loaded(tmp_path: Path) -> None:
    write_hostile(tmp_path / "<b>hostile")
    made = report([tmp_path / "<b>hostile", tmp_path / "<b>hostile"], tmp_path / "r.html", progress=False)
    page, html = read_page(made), made.path.read_text("utf-8")
    assert_harmless(page)
    assert "<b>hostile" in page.text
    for name in HOSTILE[:4]:
        assert name in page.text
    assert not re.search(r"(src|href|action)\s*=\s*[\"']?(https?:)?//", html)
    assert {e.attributes["src"][:5] for e in page.find("img")} == {"data:"}
    policy = next(e for e in page.find("meta") if "http-equiv" in e.attributes).attributes["content"]
    assert policy.startswith("default-src 'none'; img-src data:;")
    for tag in ("script", "style"):
        (element,) = page.find(tag)
        digest = base64.b64encode(hashlib.sha256(element.text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not [e for e in page.elements if "style" in e.attributes]  # which the policy would refuse


def test_a_build_with_rejects_is_accounted_for(tmp_path: Path, mixed: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for path in sorted(mixed.glob("real/00*.jpg"))[:3]:
        (source / path.name).write_bytes(path.read_bytes())
    (source / "<i>broken.jpg").write_bytes(b"no image")
    run_packer("build", source, tmp_path / "out", "--size", "32", "--quiet", "--max-rejects", "100%")
    done = run_packer("report", tmp_path / "out", "-o", tmp_path / "r.html", "--json", "--quiet")
    facts = json.loads(done.stdout)
    page = Page((tmp_path / "r.html").read_text("utf-8"))
    packed = open_dataset(tmp_path / "out")
    assert facts["samples"] == len(packed) > 0
    assert f"items: {len(packed) + 1} = {len(packed)} packed + 1 rejected." in page.text
    assert "<i>broken.jpg" in page.text
    assert "found a file that begins with" in page.text
    assert "--size=32" in page.text
    assert packed.manifest.digest in page.text
    assert any("were rejected" in line for line in facts["warnings"])


def test_samples_are_drawn_evenly_over_classes_and_from_all_over_the_dataset(tmp_path: Path) -> None:
    columns = face_columns(300, size=8)
    columns["label"][:] = 0
    columns["label"][-6:] = 1
    schema = Schema((text("key"), fixed("image", "|u1", 8, 8, 3), fixed("label", "<i8", classes=("real", "fake"))))
    write_dataset(tmp_path / "d", "npy", schema, {name: columns[name] for name in schema.names})
    made = report(tmp_path / "d", tmp_path / "r.html", count=20, progress=False)
    labels = [
        next(e.text for e in descendants(card) if "label" in e.classes) for card in read_page(made).find("div", "card")
    ]
    assert (labels.count("real"), labels.count("fake")) == (14, 6)
    assert any("very different size: 294 samples of real, 6 of fake" in line for line in made.warnings)


def test_fields_are_ordered_by_relevance_and_long_lists_are_folded(tmp_path: Path) -> None:
    rows = 1200
    schema = Schema(
        (fixed("constant", "<i8"), text("name"), fixed("n", "<i8"), fixed("label", "<i8", classes=("real", "fake")))
    )
    columns = {
        "constant": np.full(rows, 3),
        "name": [f"n{row}" for row in range(rows)],
        "n": np.arange(rows),
        "label": np.arange(rows) % 2,
    }
    write_dataset(tmp_path / "d", "npy", schema, columns)
    page = read_page(report(tmp_path / "d", tmp_path / "r.html", progress=False))
    fields = page.find("section", "field")
    assert [e.children[0].text for e in fields] == ["label", "name", "n", "constant"]
    folded = [any(e.tag == "details" for e in descendants(field)) for field in fields]
    assert folded == [False, True, False, False]


def luminance(color: str) -> float:
    """The relative luminance of WCAG 2.2."""
    parts = color * 2 if len(color) == 3 else color
    values = [int(parts[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def test_texts_have_enough_contrast() -> None:
    schemes = re.findall(r":root \{(.*?)\}", static("page.css").decode(), re.DOTALL)
    assert len(schemes) == 2
    for scheme in schemes:
        colors = {name: luminance(value) for name, value in re.findall(r"--([\w-]+): #(\w+)", scheme)}
        pairs = [(text, ground) for text in ("text", "faint", "accent", "bad") for ground in ("ground", "panel")]
        for text_color, ground in [*pairs, ("text", "bar"), ("text", "bar-all"), ("warn", "warn-ground")]:
            low, high = sorted((colors[text_color], colors[ground]))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (text_color, ground)


def test_values_shared_by_several_datasets_are_a_warning(tmp_path: Path) -> None:
    write_faces(tmp_path / "a", 6)
    write_faces(tmp_path / "b", 3)
    made = report([tmp_path / "a", tmp_path / "b"], tmp_path / "r.html", progress=False)
    assert made.warnings[0].startswith("3 sources in more than one of these datasets: 'person0/vidéo 0.mp4'")
    assert len(read_page(made).find("div", "card")) == 9


def test_a_dataset_without_images_labels_or_rows_has_a_report(tmp_path: Path) -> None:
    write_dataset(tmp_path / "n", "npy", Schema((fixed("x", "<f8"),)), {"x": np.array([1.0, np.nan, np.inf, 2.0])})
    page = read_page(report(tmp_path / "n", tmp_path / "n.html", progress=False))
    assert "2 samples without a value" in page.text
    write_dataset(tmp_path / "e", "npy", Schema((text("key"), picture("image"))), {"key": [], "image": []})
    assert read_page(report(tmp_path / "e", tmp_path / "e.html", progress=False)).find("div", "card") == []


def test_damage_and_wrong_calls_are_errors_without_a_file(tmp_path: Path) -> None:
    with raises(DatasetError, expected="a packed dataset with a manifest.json", found="no such folder"):
        report(tmp_path / "none", tmp_path / "r.html")
    write_faces(tmp_path / "faces", 3)
    for out, message in (
        ("r.txt", "ends in .html"),
        ("missing/r.html", "existing folder"),
        ("faces/r.html", "outside the dataset"),
    ):
        with pytest.raises(UsageError, match=message):
            report(tmp_path / "faces", tmp_path / out, progress=False)
    with raises(UsageError, option="count", found="-1"):
        report(tmp_path / "faces", tmp_path / "r.html", count=-1)
    with raises(UsageError, expected="a packed dataset or several", found="none"):
        report([], tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()
    assert run_packer("report", tmp_path / "none", "-o", tmp_path / "r.html", expect=2).stderr.count("\n") == 1


def test_the_worst_samples_and_duplicates_are_in_the_report(tmp_path: Path) -> None:
    for name in ("train", "test"):
        for number in range(3):
            write_image(tmp_path / "in" / name / f"{number}.png", scene(number, (96, 96)))
        build(tmp_path / "in" / name, tmp_path / name, engine="inline", progress=False)
    compute(tmp_path / "train", "quality", workers=0, progress=False)
    made = report([tmp_path / "train", tmp_path / "test"], tmp_path / "r.html", duplicates=True, progress=False)
    page = read_page(made)
    assert len(page.find("section", "group")) == 3
    keys, blurred = open_dataset(tmp_path / "train").column("key"), open_dataset(tmp_path / "train").column("sharpness")
    worst = [one for one in page.find("section", "worst") if any(e.text == "Worst sharpness" for e in descendants(one))]
    titles = [e.text for e in descendants(worst[0]) if e.text in keys]
    assert titles == [keys[row] for row in np.argsort(blurred)]
    assert_harmless(page)


def test_no_section_of_the_report_embeds_more_images_than_it_may(tmp_path: Path, monkeypatch) -> None:
    for number in range(4):
        write_image(tmp_path / "in" / f"{number}.png", scene(0, (96, 96)))
    out = tmp_path / "out"
    build(tmp_path / "in", out, encode="png", engine="inline", progress=False)
    compute(out, "quality", workers=0, progress=False)

    def images(section: str) -> list[str]:
        page = read_page(report(out, tmp_path / "r.html", duplicates=True, progress=False))
        within = [e for one in page.find("section", section) for e in descendants(one) if e.tag == "img"]
        return [e.attributes["src"] for e in within]

    largest = max(map(len, images("group"))) * 3 // 4
    assert len(images("group")) == 4
    assert len(images("worst")) > 4
    monkeypatch.setattr("packer.page.report._IMAGE_BYTES", 2 * largest + 4)
    assert len(images("group")) == len(images("worst")) == 2
