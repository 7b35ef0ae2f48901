"""Names that are no UTF-8, hold a line break, or are as long as names may be: of items and of the dataset's folder."""

import os
from pathlib import Path

import pytest
from support.command import environment, run_packer
from support.media import scene, write_image, write_video
from support.packed import check_whole, read_samples

import packer
from packer import verify
from shardspec.formats import FORMATS

RAW = os.fsdecode(b"\xff\xfe\n")
LONG = "x" * (255 - len(".png"))


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_every_format_accepts_odd_names(tmp_path: Path, format: str) -> None:
    source, out = tmp_path / f"in {RAW}", tmp_path / f"out {RAW}"
    for number, name in enumerate((f"{RAW}.png", f"{LONG}.png")):
        write_image(source / "plain.png", scene(number, (24, 18))).rename(source / name)
    write_video(tmp_path / "clip.mp4", frames=3).rename(source / f"{RAW}.mp4")
    packer.build(source, out, format=format, engine="inline", progress=False)
    check_whole(out)
    names = [sample["source"] for sample in read_samples(out)]
    assert sorted(names, key=os.fsencode) == names
    assert sorted(set(names)) == sorted([f"{RAW}.png", f"{LONG}.png", f"{RAW}.mp4"])
    assert verify(out, deep=True).problems == ()


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_an_output_of_another_encoding_shows_escapes(tmp_path: Path, encoding: str) -> None:
    name = f"sjö 日本 {'x' * 200}"
    write_image(tmp_path / "in" / name / "a.png", scene(0, (24, 18)))
    env = {**environment(), "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    run_packer("build", tmp_path / "in", tmp_path / "out", "--label-from", "folder", "--quiet", env=env)
    shown = run_packer("inspect", tmp_path / "out", env=env).stdout
    assert ("\\u65e5" in shown) == (encoding != "utf-8")
