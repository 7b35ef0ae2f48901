"""A folder full of what the world holds: every file is packed right, or a reject with a reason."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.command import environment, file_of, read_jsonl, run_packer
from support.media import FAST_START, cut_file, scene, write_image, write_png_bomb, write_video
from support.packed import check_whole, fingerprints, read_samples

import packer

NAME = "sp ace'\"\\\n\tö人🙂.png"
RAW_NAME = b"caf\xe9-\xff.png"


def write_hostile(root: Path) -> dict[str, str | None]:
    """Every kind of hostile file; for each name what its reject must say, None where it must be packed."""
    outside = root.parent / "outside"
    write_image(outside / "secret.jpg", scene(0, (30, 20)))
    good = write_image(root / "good.jpg", scene(0, (60, 40)))
    expected: dict[str, str | None] = {"good.jpg": None}

    def add(name: str, data: bytes, reported: str | None) -> None:
        (root / name).write_bytes(data)
        expected[name] = reported

    whole = good.read_bytes()
    add("truncated.jpg", whole[: len(whole) // 2], "decode: expected a whole JPEG")
    add("header-only.jpg", whole[:20], "decode: expected a JPEG's frame header")
    add("empty.jpg", b"", "decode: expected an image, found an empty file")
    add("empty.mp4", b"", "decode: expected a video, found an empty file")
    add("text.jpg", b"This is no image.\n" * 40, "decode: expected an image")
    add("text.mp4", b"This is no video.\n" * 40, "decode: expected a video")
    add("playlist.mp4", b"#EXTM3U\n#EXTINF:1,\n" + os.fsencode(good) + b"\n", "decode: expected a video")
    add("image.mp4", whole, "decode: expected a video")
    add("liar.png", whole, None)  # a JPEG whatever it is called
    add("zeros.jpg", bytes(3000), "decode: expected an image")
    write_image(root / "broken.png", scene(1, (60, 40)))
    cut_file(root / "broken.png", 0.6)
    expected["broken.png"] = "decode: expected a whole PNG"
    assert write_png_bomb(root / "bomb.png").stat().st_size < 200_000
    expected["bomb.png"] = "decode: expected at most 178956970 pixels, found a header that says 30000 x 30000"
    write_image(root / "black.png", np.zeros((20, 30, 3), np.uint8))
    write_image(root / "one-pixel.png", np.zeros((1, 1, 3), np.uint8))
    write_image(root / NAME, scene(2, (30, 20)))
    write_image(root / os.fsdecode(RAW_NAME), scene(3, (30, 20)))
    Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 100).save(root / "deep.png")
    Image.fromarray(scene(0, (30, 20))).convert("P").save(root / "palette.gif")
    Image.fromarray(scene(0, (30, 20))).convert("CMYK").save(root / "cmyk.jpg")
    for name in ("black.png", "one-pixel.png", NAME, os.fsdecode(RAW_NAME), "deep.png", "palette.gif", "cmyk.jpg"):
        expected[name] = None
    whole = write_video(root / "whole.mp4", frames=40, container=FAST_START)
    cut_file(write_video(root / "index-last.mp4", frames=40), 0.5)
    # The same bytes: x264 on several threads does not always give the same.
    cut_file(Path(shutil.copyfile(whole, root / "index-first.mp4")), 0.6)
    expected |= {"whole.mp4": None, "index-last.mp4": "decode: expected a video", "index-first.mp4": None}
    write_image(root / "strip.png", np.zeros((1, 800_000, 3), np.uint8))
    expected["strip.png"] = "resize: expected at most 178956970 pixels after the shorter side is scaled to 16"
    (root / "leaves.jpg").symlink_to(outside / "secret.jpg")
    (root / "nowhere.jpg").symlink_to("no-such-file.jpg")
    (root / "circle.jpg").symlink_to("circle.jpg")
    (root / "outside").symlink_to(outside, target_is_directory=True)
    (root / "myself").symlink_to(".", target_is_directory=True)
    os.mkfifo(root / "pipe.mp4")
    (root / "folder.jpg").mkdir()
    expected |= {
        "leaves.jpg": "source: expected a file inside the source, found a symbolic link that leaves it: "
        "name the folder it leads to with --root DIR",
        "outside": "source: expected a file inside the source, found a symbolic link that leaves it: "
        "name the folder it leads to with --root DIR",
        "nowhere.jpg": "source: expected a file, found a symbolic link to nothing",
        "circle.jpg": "source: expected a file, found a symbolic link to nothing",
        "pipe.mp4": "source: expected a regular file, found something else",
    }
    return expected


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, str | None]]:
    """The folder, what became of it, and what should have."""
    root = tmp_path_factory.mktemp("hostile")
    expected = write_hostile(root / "source")
    done = run_packer("build", root / "source", root / "out", "--size", 16, "--workers", 2, "--quiet", expect=3)
    assert "were rejected, more than 5.0%" in done.stderr
    return root / "source", root / "out", expected


def test_every_file_is_packed_or_rejected_with_its_reason(hostile: tuple[Path, Path, dict[str, str | None]]) -> None:
    _, out, expected = hostile
    counts = check_whole(out).generations[0].counts
    states = {line["item"]: line["state"] for line in read_jsonl(file_of(out, "items.jsonl"))}
    assert states == {name: "packed" if reported is None else "rejected" for name, reported in expected.items()}
    reasons = {
        line["item"]: f"{line['step']}: {line['reason']}"
        for line in read_jsonl(file_of(out, "rejects.jsonl"))
        if line["kind"] == "item"
    }
    for name, reported in expected.items():
        if reported is not None:
            assert reasons[name].startswith(reported), (name, reasons[name])
    assert counts.items == len(expected) == counts.packed_items + counts.rejected_items
    assert counts.ignored_files == 1  # the link to the folder itself


def test_names_come_back_as_they_are(hostile: tuple[Path, Path, dict[str, str | None]]) -> None:
    _, out, _ = hostile
    by_name = {sample["source"]: sample for sample in read_samples(out)}
    assert os.fsencode(next(name for name in by_name if name.startswith("caf"))) == RAW_NAME
    for name, number in ((NAME, 2), (os.fsdecode(RAW_NAME), 3)):
        assert np.abs(by_name[name]["image"].astype(int) - scene(number, (24, 16))).mean() < 25
    assert not by_name["black.png"]["image"].any()


def test_a_video_cut_midway_gives_the_frames_before_the_cut(hostile: tuple[Path, Path, dict[str, str | None]]) -> None:
    _, out, _ = hostile
    frames: dict[str, list[int]] = {}
    for sample in read_samples(out):
        frames.setdefault(sample["source"], []).append(int(sample["frame"]))
    assert frames["whole.mp4"] == list(range(40))
    cut = frames["index-first.mp4"]
    assert cut == list(range(len(cut)))
    assert 5 < len(cut) < 40
    (damage,) = [line for line in read_jsonl(file_of(out, "rejects.jsonl")) if line["kind"] == "damage"]
    assert damage["item"] == "index-first.mp4"
    assert damage["reason"]
    assert check_whole(out).generations[0].counts.damaged_items == 1
    # What was packed of it are the frames of the whole video.
    whole = [s["image"] for s in read_samples(out) if s["source"] == "whole.mp4"]
    part = [s["image"] for s in read_samples(out) if s["source"] == "index-first.mp4"]
    for a, b in zip(whole, part, strict=False):
        assert np.array_equal(a, b)


def test_a_image_of_more_bytes_than_pixels_can_take_is_not_read(tmp_path: Path) -> None:
    """Eight gigabytes that take no room on disk, in a process that may have half of one more than it needs."""
    source = tmp_path / "source"
    write_image(source / "good.jpg", scene(0, (30, 20)))
    write_image(source / "tail.jpg", scene(1, (30, 20)))
    (source / "zeros.jpg").touch()
    for name in ("tail.jpg", "zeros.jpg"):
        os.truncate(source / name, 8 << 30)
    limited = f"ulimit -v 4000000; exec {sys.executable} -m packer build {source} {tmp_path}/out --workers 1 --quiet"
    done = subprocess.run(
        ["bash", "-c", f"{limited} --max-rejects 100%"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reasons = {line["item"]: line["reason"] for line in read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))}
    assert reasons["tail.jpg"].startswith("expected an image of at most 1431655760 bytes")
    assert "found a file of 8589934592" in reasons["tail.jpg"]
    assert reasons["zeros.jpg"].startswith("expected an image (")
    assert [sample["source"] for sample in read_samples(tmp_path / "out")] == ["good.jpg"]


def test_a_file_that_vanishes_after_planning_is_a_reject(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "c.mp4"):
        if name.endswith("png"):
            write_image(tmp_path / "source" / name, scene(0, (20, 16)))
        else:
            write_video(tmp_path / "source" / name, frames=3)

    def vanish(samples: Any) -> Any:
        for sample in samples:
            for name in ("b.png", "c.mp4"):
                (tmp_path / "source" / name).unlink(missing_ok=True)
            yield sample

    result = packer.build(
        tmp_path / "source", tmp_path / "out", steps=["decode", vanish], progress=False, max_rejects=1
    )
    assert (result.counts.packed_items, result.counts.rejected_items) == (1, 2)
    for line in read_jsonl(file_of(tmp_path / "out", "rejects.jsonl")):
        assert "No such file or directory" in line["reason"]


class TestDisk:
    """A disk that is full, and one that cannot be written. Both are mounted in a namespace of their own."""

    @staticmethod
    def run_mounted(mount: str, command: str) -> "subprocess.CompletedProcess[str]":
        """Run a shell command with a file system of its own; skip where that is not allowed."""
        probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
        if probe.returncode:
            pytest.skip("expected to be allowed to mount in a namespace of one's own, found that it is not")
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", f"{mount} && {command}"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    @pytest.mark.parametrize("size", ["100k", "700k"])
    @pytest.mark.parametrize("format", ["lmdb", "npy"])
    def test_a_full_disk_is_reported_and_the_build_goes_on_when_there_is_room(
        self, tmp_path: Path, size: str, format: str
    ) -> None:
        """Small enough to fail in work, and in assembly."""
        for number in range(40):
            write_image(tmp_path / "source" / f"{number:02d}.png", scene(number, (64, 56)))
        disk = tmp_path / "disk"
        disk.mkdir()
        packer_command = f"{sys.executable} -m packer build {tmp_path}/source {disk}/out --encode raw --format {format}"
        script = (
            f"{packer_command} --shard-size 200kB --quiet; first=$?; test ! -e {disk}/out/manifest.json || exit 77; "
            f"mount -o remount,size=40M {disk} && {packer_command} --shard-size 200kB --quiet --json; second=$?; "
            f"cp -r {disk}/out {tmp_path}/out; echo $first $second"
        )
        done = self.run_mounted(f"mount -t tmpfs -o size={size} none {disk}", script)
        assert done.stdout.split()[-2:] == ["1", "0"], done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        assert re.search("cannot be written: .*No space left on device", done.stderr)
        packer.build(
            tmp_path / "source",
            tmp_path / "whole",
            encode="raw",
            format=format,
            shard_size=200_000,
            engine="inline",
            progress=False,
        )
        assert fingerprints(tmp_path / "out") == fingerprints(tmp_path / "whole")

    def test_a_read_only_folder_is_reported(self, tmp_path: Path) -> None:
        write_image(tmp_path / "source" / "a.png", scene(0, (20, 16)))
        disk = tmp_path / "disk"
        disk.mkdir()
        command = f"{sys.executable} -m packer build {tmp_path}/source {disk}/out --quiet"
        done = self.run_mounted(f"mount -t tmpfs -o ro none {disk}", f"{command}; echo $?")
        assert done.stdout.split() == ["1"], done.stderr
        assert "cannot be written: Read-only file system" in done.stderr
        assert "Traceback" not in done.stderr

    def test_a_full_disk_is_reported_for_a_single_file(self, tmp_path: Path) -> None:
        disk, dataset = tmp_path / "disk", tmp_path / "out"
        disk.mkdir()
        for number in range(40):
            write_image(tmp_path / "source" / "train" / "a" / f"{number:02d}.png", scene(number, (64, 56)))
        packer.build(tmp_path / "source", dataset, engine="inline", progress=False)
        calls = {
            "preview": f"preview {dataset} -o {disk}/sheet.png",
            "report": f"report {dataset} -o {disk}/report.html",
            "list": f"list imagefolder {tmp_path}/source -o {disk}/list.csv",
        }
        script = "; ".join(f"{sys.executable} -m packer {call}; echo $?" for call in calls.values())
        done = self.run_mounted(
            f"mount -t tmpfs -o size=4k none {disk} && : > {disk}/taken && echo 0 >> {disk}/taken", script
        )
        assert done.stdout.split() == ["1"] * 3, done.stdout + done.stderr
        assert [line for line in done.stderr.splitlines() if line.startswith("packer ")] == [
            f"packer {name}: {call.split()[-1]}: cannot be written: No space left on device"
            for name, call in calls.items()
        ]
