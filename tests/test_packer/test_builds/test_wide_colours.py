"""Videos in HDR or with a wide gamut are packed as stored, and counted at the end of the build."""

import json
from pathlib import Path

import numpy as np
from support.command import run_packer
from support.packed import read_samples
from support.video_files import write_video


def test_videos_in_hdr_or_with_a_wide_gamut_are_counted(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    colours = {
        "plain": {"primaries": 1, "transfer": 1},
        "pq": {"primaries": 9, "transfer": 16},
        "hlg1": {"primaries": 9, "transfer": 18},
        "hlg2": {"primaries": 9, "transfer": 18},
        "p3": {"primaries": 12, "transfer": 1},
        "bt2020": {"primaries": 9, "transfer": 14},
    }
    for name, found in colours.items():
        write_video(source / f"{name}.mp4", frames=4, matrix=1, **found)
    how = ("--encode", "png", "--every", 2, "--label-from", "none", "--engine", "inline")
    printed = run_packer("build", source, out, *how).stdout
    assert "5 videos with HDR or wide-gamut colours (1 in BT.2020, 1 in Display P3, 2 in HDR (HLG), 1 in HDR (PQ))" in (
        printed
    )
    images = {(sample["source"], int(sample["frame"])): sample["image"] for sample in read_samples(out)}
    assert len(images) == 12
    for (name, frame), image in images.items():
        np.testing.assert_array_equal(image, images["plain.mp4", frame], name)
    result = json.loads(run_packer("build", source, tmp_path / "json", *how, "--json").stdout)
    assert result["wide_colours"] == {"BT.2020": 1, "Display P3": 1, "HDR (HLG)": 2, "HDR (PQ)": 1}


def test_ordinary_videos_are_not_mentioned(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_video(tmp_path / "in" / "v.mp4", frames=2, matrix=1, primaries=1, transfer=1)
    printed = run_packer("build", tmp_path / "in", tmp_path / "out", "--label-from", "none").stdout
    assert "colours" not in printed
