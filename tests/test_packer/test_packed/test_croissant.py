"""The Croissant description: right by its own rules, and read by the library of its makers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builds import QUIET, write_images
from support.command import run_packer
from support.errors import raises
from support.packed_files import read_all, samples_of, write_faces

from packer import build, croissant, describe
from shardspec.entries import CARD_NAME
from shardspec.errors import UsageError
from shardspec.formats import FORMATS
from shardspec.layout import Layout, sha256_file

SAID: dict[str, Any] = {
    "title": "Tiny faces",
    "description": "Crops",
    "license": ["CC-BY-4.0", "https://example.org/terms"],
    "citation": "@misc{tiny}",
    "homepage": "https://example.org/tiny",
}


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_croissant_lists_every_file_and_the_manifests_entries(tmp_path: Path, format: str) -> None:
    write_images(tmp_path / "raw/real", ["1.png", "2.png"])
    (tmp_path / "raw/real/3.png").write_bytes(b"no image")
    build(tmp_path / "raw", tmp_path / "sets/out", format=format, label_from="folder", max_rejects=1, **SAID, **QUIET)
    run_packer("croissant", tmp_path / "sets/out", "-o", tmp_path / "tiny.json")
    found = json.loads((tmp_path / "tiny.json").read_text())
    manifest = Layout(tmp_path / "sets/out").load()
    assert found["conformsTo"][0] == "http://mlcommons.org/croissant/1.1"
    assert found["license"] == ["https://spdx.org/licenses/CC-BY-4.0.html", "https://example.org/terms"]
    named = [found[name] for name in ("name", "description", "citeAs", "url", "identifier")]
    assert named == ["Tiny faces", "Crops", "@misc{tiny}", SAID["homepage"], f"sha256:{manifest.digest}"]
    assert "1 item rejected" in found["rai:dataCollectionMissingData"]
    files = {one["contentUrl"]: one["sha256"] for one in found["distribution"] if one["@type"] == "cr:FileObject"}
    assert files == {
        path.relative_to(tmp_path).as_posix(): sha256_file(path)
        for path in (tmp_path / "sets/out").rglob("*")
        if path.is_file() and path.name != CARD_NAME
    }
    fields = [field.name for field in manifest.schema]
    listed = found.get("variableMeasured") or next(r for r in found["recordSet"] if r["@id"] == "samples")["field"]
    assert [field["name"] for field in listed] == fields
    remote = croissant(tmp_path / "sets/out", url="https://example.org/data/").document["distribution"]
    assert {one["contentUrl"] for one in remote if "contentUrl" in one} == {
        name.replace("sets/out", "https://example.org/data") for name in files
    }
    assert str(tmp_path) not in (tmp_path / "tiny.json").read_text()


def test_an_edited_file_is_never_replaced(tmp_path: Path) -> None:
    write_faces(tmp_path / "out", 3)
    first = croissant(tmp_path / "out", out=tmp_path / "a.json")
    assert first.missing == ("description", "license", "url", "creator")
    describe(tmp_path / "out", license="MIT")
    assert croissant(tmp_path / "out", out=tmp_path / "a.json").missing == ("description", "url", "creator")
    for text in ((tmp_path / "a.json").read_text().replace("MIT", "MIT-0"), "{", "[]", ""):
        (tmp_path / "a.json").write_text(text)
        with raises(UsageError, place=str(tmp_path / "a.json")):
            croissant(tmp_path / "out", out=tmp_path / "a.json")
        assert (tmp_path / "a.json").read_text() == text
    other = tmp_path / "other/a.json"
    other.parent.mkdir()
    for wrong, option in (
        ({"url": "example.org"}, "url"),
        ({"out": tmp_path / "out/a.json"}, None),
        ({"out": other}, None),
    ):
        with raises(UsageError, option=option):
            croissant(tmp_path / "out", **wrong)
    assert croissant(tmp_path / "out", out=other, url="https://example.org").path == other


RESPONSIBLE: dict[str, Any] = {
    "creator": ["Jane Doe", "Organization: Example"],
    "limitations": "L",
    "biases": "B",
    "use_cases": "U",
    "social_impact": "S",
    "sensitive": "P",
    "synthetic": "no",
    "derived_from": ["https://example.org/raw", "Raw videos"],
}


def test_the_fields_for_responsible_ai_come_from_the_manifest(tmp_path: Path) -> None:
    write_faces(tmp_path / "out", 3)
    lacking = croissant(tmp_path / "out").missing_responsible
    assert set(lacking) == RESPONSIBLE.keys() - {"creator", "sensitive"}  # there are faces
    words = [
        word
        for name, value in RESPONSIBLE.items()
        for text in ([value] if isinstance(value, str) else value)
        for word in (f"--{name.replace('_', '-')}", text)
    ]
    run_packer("describe", tmp_path / "out", *words)
    found = croissant(tmp_path / "out")
    assert found.missing_responsible == ()
    document = found.document
    assert document["creator"] == [
        {"@type": "sc:Person", "name": "Jane Doe"},
        {"@type": "sc:Organization", "name": "Example"},
    ]
    texts = [document[f"rai:data{name}"] for name in ("Limitations", "Biases", "UseCases", "SocialImpact")]
    assert texts == ["L", "B", "U", "S"]
    assert document["rai:hasSyntheticData"] is False
    assert document["prov:wasDerivedFrom"][0] == {"@id": "https://example.org/raw"}
    assert "P" in document["rai:personalSensitiveInformation"]
    with raises(UsageError, option="synthetic"):
        describe(tmp_path / "out", synthetic="maybe")
    describe(tmp_path / "out", synthetic="", derived_from="")
    assert set(croissant(tmp_path / "out").missing_responsible) == {"synthetic", "derived_from"}


@pytest.mark.external
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("format", sorted(FORMATS))
@pytest.mark.parametrize("codec", ["png", None])
def test_mlcroissant_validates_it_and_reads_the_records_of_parquet(
    tmp_path: Path, format: str, codec: str | None
) -> None:
    mlcroissant = pytest.importorskip("mlcroissant")
    write_faces(tmp_path / "out", 12, format, codec=codec)
    describe(tmp_path / "out", **SAID, **RESPONSIBLE)
    croissant(tmp_path / "out", out=tmp_path / "tiny.json")
    found = mlcroissant.Dataset(str(tmp_path / "tiny.json"))
    assert found.metadata.ctx.issues.errors == set()
    assert found.metadata.to_json()["name"] == "Tiny faces"
    if format != "parquet":
        return
    records = list(found.records("samples"))
    encoded, samples = read_all(tmp_path / "out"), samples_of(tmp_path / "out")
    assert [record["samples/key"] for record in records] == encoded["key"]
    for record, sample in zip(records, samples, strict=True):
        np.testing.assert_array_equal(np.asarray(record["samples/landmarks"], "<f4"), sample["landmarks"])
        assert record["samples/label"] == sample["label"]
        image = record["samples/image"]
        pixels = np.frombuffer(image, np.uint8).reshape(32, 32, 3) if codec is None else np.asarray(image)
        np.testing.assert_array_equal(pixels, sample["image"])
