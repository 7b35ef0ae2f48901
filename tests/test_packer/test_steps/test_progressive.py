"""Progressive JPEGs whose bytes are stored: counted, and coded as baseline without loss where the recipe says so."""

import errno
import os
import re
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image
from support.command import file_of, read_jsonl, run_packer
from support.media import photograph, write_image
from support.packed import stored_images

from packer import Recipe, build, dry_run
from packer.vision.decode.jpeg_header import is_progressive, read_header
from readers import open_dataset
from shardspec.errors import BuildError, MissingDependencyError
from shardspec.layout import Layout

OPTIONS: dict[str, Any] = {"engine": "inline", "progress": False, "format": "npy"}
MARKERS: dict[str, Any] = {"icc_profile": bytes(range(256)) * 300, "comment": b"a comment", "exif": Image.Exif()}
MARKERS["exif"][0x010E] = "a description"
CASES: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "whole": ((300, 451), {}),
    "one pixel": ((1, 1), {}),
    "flat": ((7, 129), {"subsampling": "4:2:0"}),
    "4:2:0": ((61, 83), {"subsampling": "4:2:0"}),
    "4:2:2": ((61, 83), {"subsampling": "4:2:2"}),
    "4:4:4": ((61, 83), {"subsampling": "4:4:4"}),
    "4:1:1": ((61, 83), {"subsampling": "4:1:1"}),
    "grey": ((61, 83), {"grey": True}),
    "worst": ((61, 83), {"quality": 1}),
    "best": ((61, 83), {"quality": 100}),
    "restarts": ((61, 83), {"restart_marker_blocks": 3}),
    "markers": ((61, 83), MARKERS),
}
"""Height and width, and how Pillow saves it."""


def saved(height: int, width: int, *, grey: bool = False, **options: Any) -> bytes:
    """A corner of a photograph as a JPEG; `options` go to Pillow's ``save``."""
    corner = Image.fromarray(photograph("chelsea")[:height, :width])
    file = BytesIO()
    (corner.convert("L") if grey else corner).save(file, "JPEG", **{"quality": 90, **options})
    return file.getvalue()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two progressive images, a baseline one, a PNG, and a progressive one that is cut off."""
    root = tmp_path / "in"
    for name, progressive in (("a.jpg", True), ("b.jpg", False), ("c.jpg", True)):
        write_image(root / name, photograph("coffee"), progressive=progressive)
    write_image(root / "d.png", photograph("coffee"))
    (root / "e.jpg").write_bytes((root / "a.jpg").read_bytes()[:-9000])
    return root


def test_kept_progressive_images_are_counted_and_reported(source: Path, tmp_path: Path) -> None:
    done = run_packer("build", source, tmp_path / "out", "--format", "npy", "--quiet", "--max-rejects", "100%")
    assert "2 of 4 images are progressive JPEGs, which take about three times" in done.stdout
    assert "--progressive baseline" in done.stdout
    assert stored_images(tmp_path / "out")[0] == (source / "a.jpg").read_bytes()
    assert Layout(tmp_path / "out").load().generations[-1].counts.progressive_jpegs == 2
    lines = read_jsonl(file_of(tmp_path / "out", "items.jsonl"))
    assert [line.get("progressive", 0) for line in lines] == [1, 0, 1, 0, 0]
    assert "2 progressive JPEGs" in run_packer("inspect", tmp_path / "out").stdout


def test_images_that_are_encoded_again_are_baseline_and_not_counted(source: Path, tmp_path: Path) -> None:
    result = build(source, tmp_path / "out", size=64, max_rejects=1.0, **OPTIONS)
    assert result.counts.progressive_jpegs == 0
    assert "progressive" not in result.describe()
    assert not any(map(is_progressive, stored_images(tmp_path / "out")))


def test_a_split_counts_its_own_samples(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "out", max_rejects=1.0, **OPTIONS)
    run_packer("split", tmp_path / "out", tmp_path / "parts", "--by", "source", "--ratios", "x=0.5,y=0.5", "--seed", 0)
    for part in (tmp_path / "parts" / "x", tmp_path / "parts" / "y"):
        counts = Layout(part).load().generations[-1].counts
        assert counts.progressive_jpegs == sum(map(is_progressive, stored_images(part)))


def test_without_the_library_the_build_ends_before_it_begins(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "packer.vision.decode.baseline", None)
    with pytest.raises(MissingDependencyError, match=r"--progressive baseline .*facepack\[progressive\]"):
        build(source, tmp_path / "out", progressive="baseline", **OPTIONS)
    assert not (tmp_path / "out").exists()


class TestBaseline:
    @pytest.fixture(autouse=True)
    def jpeglib(self) -> Iterator[Any]:
        """The library of the extra `progressive`."""
        return pytest.importorskip("jpeglib")

    def coefficients(self, jpeglib: Any, folder: Path, data: bytes) -> dict[str, Any]:
        """Quantised DCT coefficients and quantisation tables."""
        path = folder / "image.jpg"
        path.write_bytes(data)
        picture = jpeglib.read_dct(str(path))
        return {name: getattr(picture, name) for name in ("Y", "Cb", "Cr", "qt") if getattr(picture, name) is not None}

    @pytest.mark.parametrize(("shape", "options"), CASES.values(), ids=CASES)
    def test_same_coefficients_same_pixels_same_markers(
        self, jpeglib: Any, tmp_path: Path, shape: tuple[int, int], options: dict[str, Any]
    ) -> None:
        before = saved(*shape, progressive=True, **options)
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.jpg").write_bytes(before)
        result = build(tmp_path / "in", tmp_path / "out", progressive="baseline", **OPTIONS)
        assert "1 of 1 image were progressive JPEGs: converted to baseline" in result.describe()
        (after,) = stored_images(tmp_path / "out")
        header = read_header(after)
        assert header is not None
        assert header.frame_marker == 0xC0
        pixels = simplejpeg.decode_jpeg(before, "RGB", strict=True)
        assert np.array_equal(simplejpeg.decode_jpeg(after, "RGB", strict=True), pixels)
        assert np.array_equal(open_dataset(tmp_path / "out")[0]["image"], pixels)
        old, new = (self.coefficients(jpeglib, tmp_path, data) for data in (before, after))
        assert old.keys() == new.keys()
        assert all(np.array_equal(old[name], new[name]) for name in old)
        with Image.open(BytesIO(before)) as one, Image.open(BytesIO(after)) as other:
            kept = {key: value for key, value in one.info.items() if not key.startswith("progress")}
            assert other.info == kept
        assert after.count(b"JFIF\0") == 1

    def test_the_command_line_in_worker_processes(self, source: Path, tmp_path: Path) -> None:
        call = ("--format", "npy", "--quiet", "--max-rejects", "100%", "--progressive", "baseline")
        done = run_packer("build", source, tmp_path / "out", *call, "--workers", "2")
        assert "2 of 4 images were progressive JPEGs: converted to baseline without loss" in done.stdout
        images = stored_images(tmp_path / "out")
        assert not any(map(is_progressive, images))
        assert images[1] == (source / "b.jpg").read_bytes()
        (reject,) = read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
        assert (reject["item"], reject["step"]) == ("e.jpg", "decode")
        generation = Layout(tmp_path / "out").load().generations[-1]
        assert generation.recipe["progressive"] == "baseline"
        assert generation.runtime["jpeglib"]
        run_packer("verify", tmp_path / "out", "--deep")
        run_packer("build", source, tmp_path / "again", *call)
        assert stored_images(tmp_path / "again") == images

    def test_packed_progressive_images_become_baseline(self, source: Path, tmp_path: Path) -> None:
        build(source, tmp_path / "kept", max_rejects=1.0, **OPTIONS)
        result = build(tmp_path / "kept", tmp_path / "out", progressive="baseline", **OPTIONS)
        assert result.counts.progressive_jpegs == 2
        assert not any(map(is_progressive, stored_images(tmp_path / "out")))
        kept, made = open_dataset(tmp_path / "kept"), open_dataset(tmp_path / "out")
        assert all(np.array_equal(kept[row]["image"], made[row]["image"]) for row in range(len(kept)))

    def test_images_without_a_baseline_form_stay_progressive(self, tmp_path: Path) -> None:
        """Quantisation steps of 16 bits: libjpeg would write an extended sequential file, which we refuse to keep."""
        fine = saved(61, 83, progressive=True)
        before = re.sub(rb"\xff\xdb\x00\x43([\x00\x01]).{64}", _coarse_table, fine, flags=re.DOTALL)
        assert before != fine
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.jpg").write_bytes(before)
        build(tmp_path / "in", tmp_path / "out", progressive="baseline", **OPTIONS)
        assert is_progressive(before)
        assert stored_images(tmp_path / "out") == [before]

    @pytest.mark.parametrize(
        "where", ["tempfile.TemporaryDirectory", "jpeglib.DCTJPEG.load", "jpeglib.DCTJPEG.write_dct"]
    )
    def test_no_room_for_temporary_files_stops_the_build_and_it_resumes(
        self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        with monkeypatch.context() as full:
            full.setattr(where, _refuse if "write_dct" not in where else _fail)
            with pytest.raises(BuildError, match=r"cannot be written: .*: set TMPDIR to a folder"):
                build(source, tmp_path / "out", progressive="baseline", max_rejects=1.0, **OPTIONS)
        result = build(source, tmp_path / "out", progressive="baseline", max_rejects=1.0, **OPTIONS)
        assert result.resumed
        assert [reject["item"] for reject in read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))] == ["e.jpg"]

    def test_coefficients_that_cannot_be_read_are_a_reject(
        self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("jpeglib.DCTJPEG.load", _fail)
        build(source, tmp_path / "out", progressive="baseline", max_rejects=1.0, **OPTIONS)
        reasons = read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
        assert [reject["step"] for reject in reasons] == ["encode", "encode", "decode"]
        assert "--progressive keep" in reasons[0]["reason"]

    def test_a_dry_run_counts_the_baseline_bytes(self, source: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        sizes = {
            how: dry_run(source, out, recipe=Recipe(progressive=how, format="npy"), progress=False).bytes
            for how in ("keep", "baseline")
        }
        assert sizes["keep"] != sizes["baseline"]


def _coarse_table(found: re.Match[bytes]) -> bytes:
    """A table of quantisation steps of 16 bits, all 300, for one of 8 bits."""
    return b"\xff\xdb\x00\x83" + bytes([0x10 | found[1][0]]) + (300).to_bytes(2, "big") * 64


def _refuse(*_: object, **_options: object) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _fail(*_: object, **_options: object) -> Any:
    """Fail as jpeglib does, without saying why."""
    raise OSError("the library failed")
