"""``--encode-field``: another encoding for one picture field."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command import read_jsonl, run_packer
from support.media import scene, write_picture
from support.packed import check_whole, fingerprints, read_samples

from packer import Recipe, build
from shardspec.errors import TooManyRejectsError, UsageError
from shardspec.layout import Layout
from shardspec.schema import NamedConfig

QUIET: dict[str, Any] = {"engine": "inline", "progress": False}
FIELDS = ["ir_image=webp:40", "depth_image=jpeg", "raw_image=raw", "mask=png"]


def rows(count: int = 4) -> list[dict[str, Any]]:
    """Samples with five pictures each, and one that has no encoding of its own."""
    names = ("image", "ir_image", "depth_image", "raw_image", "mask", "parts_image")
    return [{name: scene(10 * n + i, (40, 30)) for i, name in enumerate(names)} for n in range(count)]


def test_each_field_has_its_own_encoding(tmp_path: Path) -> None:
    made = build(rows(), tmp_path / "out", encode_field=FIELDS, quality=80, **QUIET)
    check_whole(tmp_path / "out")
    schema = made.manifest.schema
    assert {name: schema[name].codec for name in rows(1)[0]} == {
        "image": NamedConfig("jpeg", {"quality": 80, "subsampling": "420"}),
        "ir_image": NamedConfig("webp", {"quality": 40}),
        "depth_image": NamedConfig("jpeg", {"quality": 80, "subsampling": "420"}),
        "raw_image": NamedConfig("raw"),
        "mask": NamedConfig("png"),
        "parts_image": NamedConfig("png"),
    }
    assert all(schema[name].is_image for name in rows(1)[0])
    for sample, row in zip(read_samples(tmp_path / "out"), rows(), strict=True):
        for name in ("raw_image", "mask", "parts_image"):
            assert np.array_equal(sample[name], row[name])
        for name in ("image", "ir_image", "depth_image"):
            assert 0 < np.abs(sample[name].astype(int) - row[name]).mean() < 12
    assert build(rows(), tmp_path / "out", encode_field=FIELDS, quality=80, **QUIET).found_finished


def test_the_second_picture_of_a_table_at_any_number_of_workers(tmp_path: Path) -> None:
    for number in range(4):
        for name in ("a", "b"):
            write_picture(tmp_path / name / f"{number}.png", scene(number, (48, 32)))
    lines = ["path,ir", *(f"a/{number}.png,b/{number}.png" for number in range(4))]
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    how = (
        "--also",
        "ir",
        "--also-resample",
        "area",
        "--size",
        24,
        "--encode",
        "png",
        "--encode-field",
        "ir_image=jpeg:90",
    )
    for workers in (1, 2):
        run_packer("build", tmp_path / "table.csv", tmp_path / str(workers), *how, "--workers", workers, "--quiet")
    assert fingerprints(tmp_path / "1") == fingerprints(tmp_path / "2")
    schema = Layout(tmp_path / "1").load().schema
    assert schema["image"].codec == NamedConfig("png")
    assert schema["ir_image"].codec == NamedConfig("jpeg", {"quality": 90, "subsampling": "420"})
    write_picture(tmp_path / "a" / "4.png", scene(4, (48, 32)))
    (tmp_path / "table.csv").write_text("\n".join([*lines, "a/4.png,b/0.png"]) + "\n")
    run_packer("build", tmp_path / "table.csv", tmp_path / "1", *how, "--update", "--workers", 1, "--quiet")
    assert len(read_samples(tmp_path / "1")) == 5


def test_a_field_that_is_missing_or_no_picture_is_a_reject_with_its_reason(tmp_path: Path) -> None:
    for name, reason in (("thermal_image", "expected a field 'thermal_image', found "), ("n", "as a picture, uint8")):
        given = [{**row, "n": 3} for row in rows(2)]
        with pytest.raises(TooManyRejectsError):
            build(given, tmp_path / name, encode_field=f"{name}=png", **QUIET)
        (found, _) = [line["reason"] for line in read_jsonl(Layout(tmp_path / name).build / "rejects.jsonl")]
        assert f"encode_field: expected {reason.removeprefix('expected ')}"[:20] in found
        assert reason in found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["ir_image"], "expected FIELD=ENCODING, such as ir_image=jpeg:90"),
        (["Ir=png"], "expected FIELD=ENCODING"),
        (["image=png"], "a field other than image.*encode and quality are for image"),
        (["ir_image=jpg"], "expected one of jpeg, png, webp, raw, found 'jpg'; did you mean 'jpeg'"),
        (["ir_image=png:9"], "a quality only with jpeg or webp"),
        (["ir_image=jpeg:"], "quality of 1 to 100"),
        (["ir_image=jpeg:101"], "quality of 1 to 100"),
        (["ir_image=webp:²"], "quality of 1 to 100"),
        (["ir_image=png", "ir_image=jpeg"], "one encoding of ir_image, found two"),
        (3, "encode_field: expected a text"),
    ],
)
def test_wrong_encodings(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Recipe.from_options({"encode_field": given})


def test_a_recipe_without_it_says_nothing_of_it() -> None:
    assert "encode_field" not in Recipe().to_json()
    assert Recipe(encode_field="ir_image=png").to_json()["encode_field"] == ["ir_image=png"]
