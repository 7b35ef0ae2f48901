"""``--encode-field``: another encoding for one image field."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.archives import encoded, npy, write_tar
from support.builds import QUIET
from support.command import file_of, read_jsonl, run_packer
from support.media import scene, write_image
from support.packed import check_whole, read_samples

from packer import build
from shardspec.errors import TooManyRejectsError
from shardspec.layout import Layout
from shardspec.schema import NamedConfig

FIELDS = ["ir_image=webp:40", "depth_image=jpeg", "raw_image=raw", "mask=png"]


def rows(count: int = 4) -> list[dict[str, Any]]:
    """Samples with five images each, and one that has no encoding of its own."""
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


def test_the_second_image_of_a_table(tmp_path: Path) -> None:
    for number in range(4):
        for name in ("a", "b"):
            write_image(tmp_path / name / f"{number}.png", scene(number, (48, 32)))
    lines = ["path,ir", *(f"a/{number}.png,b/{number}.png" for number in range(4))]
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    how = ("--also", "ir", "--also-resample", "area", "--size", 24, "--encode", "png", "--quiet")
    how += ("--encode-field", "ir_image=jpeg:90")
    run_packer("build", tmp_path / "table.csv", tmp_path / "out", *how)
    schema = Layout(tmp_path / "out").load().schema
    assert schema["image"].codec == NamedConfig("png")
    assert schema["ir_image"].codec == NamedConfig("jpeg", {"quality": 90, "subsampling": "420"})
    write_image(tmp_path / "a" / "4.png", scene(4, (48, 32)))
    (tmp_path / "table.csv").write_text("\n".join([*lines, "a/4.png,b/0.png"]) + "\n")
    run_packer("build", tmp_path / "table.csv", tmp_path / "out", *how, "--update")
    assert len(read_samples(tmp_path / "out")) == 5


def test_a_field_that_no_sample_has_is_an_error_before_anything_is_packed(tmp_path: Path) -> None:
    for number in range(2):
        write_image(tmp_path / "files" / f"{number}.png", scene(number, (48, 32)))
    (tmp_path / "table.csv").write_text("path,ir,n\nfiles/0.png,files/1.png,3\nfiles/1.png,,4\n")
    out = tmp_path / "out"

    def refused(source: str, *how: object) -> str:
        error = run_packer("build", tmp_path / source, out, "--encode-field", *how, expect=2).stderr
        assert not out.exists()
        assert error.count("\n") == 1
        return error

    assert "(there is none), found 'ir_image'" in refused("files", "ir_image=png")
    for dry_run in ((), ("--dry-run",)):
        error = refused("table.csv", "ir_imag=png", "--also", "ir", *dry_run)
        assert "other than image (ir_image), found 'ir_imag'; did you mean 'ir_image'?" in error
    assert "(ir_image), found 'n'" in refused("table.csv", "n=png", "--also", "ir")
    run_packer("build", tmp_path / "table.csv", tmp_path / "packed", "--also", "ir", "--quiet")
    assert "(ir_image), found 'ir_mage'; did you mean 'ir_image'?" in refused("packed", "ir_mage=png")


def test_a_field_that_only_some_items_have(tmp_path: Path) -> None:
    members = [(f"{number}.jpg", encoded(number)) for number in range(3)]
    members.insert(2, ("1.ir_image.npy", npy(scene(7, (48, 32)))))
    write_tar(tmp_path / "a.tar", members)
    out, how = tmp_path / "out", ("--encode-field", "ir_image=webp:40", "--max-rejects", "90%", "--quiet")
    run_packer("build", tmp_path / "a.tar", out, *how)
    assert Layout(out).load().schema["ir_image"].codec == NamedConfig("webp", {"quality": 40})
    assert len(read_samples(out)) == 1
    for line in read_jsonl(file_of(out, "rejects.jsonl")):
        assert "encode_field: expected a field 'ir_image', found " in line["reason"]


STEP = """
def add(samples):
    for sample in samples:
        yield {**sample, "ir_image": sample["image"]}
"""


def test_a_field_of_a_step_of_the_user(tmp_path: Path) -> None:
    """What such a step gives is known only when it has run."""
    for number in range(2):
        write_image(tmp_path / "files" / f"{number}.png", scene(number, (48, 32)))
    (tmp_path / "own.py").write_text(STEP)

    def built(field: str, expect: int) -> str:
        how = ("--steps", "decode,own:add", "--encode-field", f"{field}=png", "--quiet")
        return run_packer("build", tmp_path / "files", tmp_path / field, *how, cwd=tmp_path, expect=expect).stderr

    built("ir_image", 0)
    assert Layout(tmp_path / "ir_image").load().schema["ir_image"].codec == NamedConfig("png")
    assert "expected a field 'ir_imag', found source" in (error := built("ir_imag", 3))
    assert "did you mean 'ir_image'?" in error


def test_a_field_that_is_not_an_image_is_a_reject_with_a_reason(tmp_path: Path) -> None:
    given = [{**row, "n": np.arange(3)} for row in rows(2)]
    with pytest.raises(TooManyRejectsError):
        build(given, tmp_path / "out", encode_field="n=png", **QUIET)
    (found, _) = [line["reason"] for line in read_jsonl(Layout(tmp_path / "out").build / "rejects.jsonl")]
    assert "encode_field: expected 'n' as an image, uint8 (H, W, 3), found int64 (3,)" in found
