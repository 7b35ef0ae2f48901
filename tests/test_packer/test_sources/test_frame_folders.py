"""Folders of images as videos (``--frame-folders``): order, times, bytes, tracks, tables, masks, and what is wrong."""

import os
import shutil
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.builds import write_images
from support.command import file_of, read_jsonl, run_packer, run_unprivileged
from support.errors import raises
from support.face_source import views, write_frames
from support.media import scene, write_image
from support.packed import check_whole

import packer
from packer.packed.browse.originals import Originals, read_frame
from packer.recipe import Recipe
from packer.sources.folders.folder import FolderSource
from packer.sources.folders.frames import frame_numbers
from packer.sources.item import Item
from readers import LMDBDataset, PackedDataset, open_dataset
from shardspec.errors import ItemError, UsageError

RATE = ("--frame-folders", "12.5")


def write_folder(folder: Path, names: list[str], first: int = 0) -> Path:
    """Images of different content."""
    for number, name in enumerate(names):
        write_image(folder / name, scene(first + number, (40, 30)))
    return folder


def numbered(count: int, pattern: str = "frame{}.jpg", start: int = 0) -> list[str]:
    return [pattern.format(number) for number in range(start, start + count)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two classes with two videos: frames 0 to 11, whose numbers have no zeros before them, and frames 1 to 5."""
    root = tmp_path / "frames"
    for place, label in enumerate(("fake", "real")):
        write_folder(root / label / "a", numbered(12), 40 * place)
        write_folder(root / label / "b", numbered(5, "img_{:05d}.png", 1), 40 * place + 20)
    return root


def build(source: Path, out: Path, *options: object, expect: int = 0) -> PackedDataset:
    run_packer("build", source, out, *RATE, "--quiet", *options, expect=expect)
    check_whole(out)
    return open_dataset(out)


def test_each_folder_is_a_video_in_the_order_of_the_numbers(source: Path, tmp_path: Path) -> None:
    done = run_packer("build", source, tmp_path / "out", *RATE, "--label-from", "folder")
    assert "taken as videos: 4 folders with 34 images" in done.stdout
    dataset = LMDBDataset(tmp_path / "out")
    found = [(sample["source"], int(sample["frame"]), float(sample["time"])) for sample in dataset]
    expected = []
    for label in ("fake", "real"):
        for name, numbers in (("a", range(12)), ("b", range(1, 6))):
            expected += [(f"{label}/{name}", number, number / 12.5) for number in numbers]
    assert found == expected
    assert [int(sample["label"]) for sample in dataset] == [0] * 17 + [1] * 17
    for number in (1, 9, 10, 11):
        with Image.open(source / "fake" / "a" / f"frame{number}.jpg") as picture:
            np.testing.assert_array_equal(dataset[number]["image"], np.asarray(picture.convert("RGB")))
    clips = dataset.clips(4, stride=4, by=None)
    assert [clip["frame"].tolist() for clip in clips][:3] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert len(clips) == 2 * (3 + 1)


@pytest.mark.parametrize(
    ("folders", "label_from", "hinted"),
    [
        ({"fake/a": numbered(12), "real/b": numbered(5, "img_{:05d}.png", 1)}, "folder", True),
        ({"a": numbered(12), "b": numbered(6)}, "auto", True),
        ({"a": numbered(12), "b": numbered(6)}, "folder", False),  # two classes
        ({"fake/a": numbered(12)}, "folder", False),
        ({"c/0000": numbered(6, "{:05d}.png"), "c/1000": numbered(6, "{:05d}.png", 1000)}, "folder", False),
        ({"c/a": numbered(6, "{0}0.png"), "c/b": numbered(6, "{0}0.png")}, "folder", False),
        ({"c/a": numbered(4), "c/b": numbered(4)}, "folder", False),
        ({"c/a": numbered(6), "c/b": numbered(6), "c/c": ["cat.png", "dog.png"]}, "folder", False),
        ({"": numbered(12)}, "auto", False),
    ],
)
def test_folders_that_look_like_frames_are_reported(
    tmp_path: Path, folders: dict[str, list[str]], label_from: str, hinted: bool
) -> None:
    """Packed image by image, a split by source would tear videos apart."""
    for folder, names in folders.items():
        write_folder(tmp_path / folder, names)
    done = run_packer("build", tmp_path, tmp_path.with_name("out"), "--label-from", label_from, "--dry-run")
    assert ("--frame-folders FPS keeps them together" in done.stdout) == hinted
    done = run_packer("build", tmp_path, tmp_path.with_name("out"), *RATE, "--dry-run", expect=None)
    assert "FPS keeps" not in done.stdout + done.stderr


def test_jpegs_are_kept_byte_for_byte(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "out", "--format", "npy")
    packed = b"".join(path.read_bytes() for path in sorted((tmp_path / "out").glob("shard-*/image.*")))
    for path in source.rglob("*.jpg"):
        assert path.read_bytes() in packed


def test_another_rate_is_another_build(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "out", "--workers", "2", "--size", "24")
    again = run_packer("build", source, tmp_path / "out", *RATE, "--size", "24")
    assert "finished already" in again.stdout
    other = run_packer("build", source, tmp_path / "out", "--frame-folders", "25", "--size", "24", expect=2)
    assert "frame_folders" in other.stderr


@pytest.mark.parametrize(
    ("options", "frames"),
    [
        (("--every", "5"), [0, 5, 10]),
        (("--frames", "3"), [2, 6, 10]),
        (("--fps", "2.5"), [0, 5, 10]),
        (("--keyframes",), list(range(12))),
    ],
)
def test_frames_are_sampled_as_those_of_a_video(
    source: Path, tmp_path: Path, options: tuple[str, ...], frames: list[int]
) -> None:
    dataset = build(source, tmp_path / "out", *options)
    assert [int(sample["frame"]) for sample in dataset if sample["source"] == "fake/a"] == frames


def test_faces_are_found_and_followed(tmp_path: Path) -> None:
    root = tmp_path / "frames"
    for number, picture in enumerate(islice(views(36), 6)):
        write_image(root / "person" / f"{number}.png", picture)
    dataset = build(root, tmp_path / "out", "--preset", "faces", "--size", "64", "--choose", "track")
    assert [int(sample["frame"]) for sample in dataset] == list(range(6))
    assert {int(sample["track"]) for sample in dataset} == {0}
    run_packer("detect", root, tmp_path / "boxes", *RATE, "--quiet")
    again = build(root, tmp_path / "again", "--preset", "faces", "--size", "64", "--boxes", tmp_path / "boxes")
    for one, other in zip(dataset, again, strict=True):
        np.testing.assert_allclose(one["box"], other["box"], atol=1e-3)


def test_videos_next_to_frames_are_videos(tmp_path: Path) -> None:
    root = tmp_path / "mixed"
    write_folder(root / "a", numbered(3))
    write_frames(root / "a" / "b.mp4", views(2))
    write_frames(root / "c.mp4", views(2))
    dataset = build(root, tmp_path / "out")
    assert [sample["source"] for sample in dataset] == ["a"] * 3 + ["a/b.mp4"] * 2 + ["c.mp4"] * 2


def test_fields_from_paths_and_patterns(source: Path, tmp_path: Path) -> None:
    dataset = build(
        source, tmp_path / "out", "--fields-from-path", "{label}/{clip}", "--include", "*.jpg", "--exclude", "fake/"
    )
    assert {(sample["source"], sample["clip"]) for sample in dataset} == {("real/a", "a")}
    assert len(dataset) == 12


def test_rows_name_folders(source: Path, tmp_path: Path) -> None:
    rows = [("fake/a", "x"), ("real/b/", "y"), ("real/none", "x"), (".", "x")]
    table = tmp_path / "rows.csv"
    table.write_text("path,label\n" + "".join(f"{path},{label}\n" for path, label in rows))
    dataset = build(table, tmp_path / "out", "--root", source, "--max-rejects", "100%")
    assert [sample["source"] for sample in dataset] == ["fake/a"] * 12 + ["real/b"] * 5
    assert [int(sample["label"]) for sample in dataset] == [0] * 12 + [1] * 5
    reasons = [line["reason"] for line in read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))]
    assert reasons[0].startswith("expected a file or a folder, found No such file")
    assert reasons[1] == "expected a folder of images, found none in it"
    run_packer("build", table, tmp_path / "without", "--root", source, "--max-rejects", "100%", expect=3)
    rows_of_python = [{"path": path, "label": label} for path, label in rows[:2]]
    packer.build(rows_of_python, tmp_path / "python", root=source, frame_folders=12.5, progress=False)
    assert [s["source"] for s in LMDBDataset(tmp_path / "python")] == [sample["source"] for sample in dataset]


def test_a_folder_in_a_table_is_a_reject_that_names_the_option(source: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("path\nfake/a\nfake/a/frame1.jpg\n")
    run_packer("build", tmp_path / "rows.csv", tmp_path / "out", "--root", source, "--max-rejects", "100%")
    (line,) = read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
    assert "found a folder (--frame-folders FPS" in line["reason"]


def test_masks_in_folders_next_to_the_frames(source: Path, tmp_path: Path) -> None:
    masks = tmp_path / "masks"
    for number in range(12):
        if number != 4:  # nothing is known of frame 4, and the others keep their masks
            write_image(masks / "a" / f"{number:03d}.png", np.full((30, 40, 3), 20 * number, np.uint8))
    (tmp_path / "rows.csv").write_text("path,mask\nframes/fake/a,masks/a\nframes/real/b,\n")
    dataset = build(tmp_path / "rows.csv", tmp_path / "out", "--also", "mask", "--every", "2")
    first = [sample for sample in dataset if sample["source"] == "frames/fake/a"]
    assert [int(sample["mask_image"].max()) for sample in first] == [0, 40, 0, 120, 160, 200]
    assert [bool(sample["mask_image_valid"]) for sample in first] == [True, True, False, True, True, True]
    assert not any(sample["mask_image_valid"] for sample in dataset if sample["source"] != "frames/fake/a")
    (damage,) = read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
    assert damage["reason"].endswith("1 missing frame (the first is frame 4)")


def test_names_without_an_order_are_a_reject(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "frames" / "good", ["one.jpg"]).parent
    wrong = [
        (["img_1.jpg", "img_2.jpg", "flow_x_1.jpg"], "differ only in their numbers"),
        (["1.jpg", "2.jpg", "2.png"], "differ only in their numbers"),
        (["a.jpg", "b.jpg"], "differ only in their numbers"),
        (["1.jpg", "#.jpg"], "differ only in their numbers"),
        (["2.jpg", "02.jpg"], "expected each number once at the end of the frames' names, found '02.jpg' and '2.jpg'"),
        (["video1_0.jpg", "video1_1.jpg", "video2_0.jpg"], "put each video into a separate folder"),
        (["t0.25.jpg", "t0.5.jpg", "t0.125.jpg"], "found a decimal"),
        ([f"{2**53}.jpg"], "expected numbers of frames up to"),
    ]
    for number, (names, _) in enumerate(wrong):
        write_folder(root / f"bad{number}", names)
    dataset = build(root, tmp_path / "out", "--max-rejects", "100%")
    assert [sample["source"] for sample in dataset] == ["good"]
    lines = read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
    for number, (line, (_, reason)) in enumerate(zip(lines, wrong, strict=True)):
        assert line["item"] == f"bad{number}"
        assert reason in line["reason"]


def test_frames_are_known_by_their_numbers(tmp_path: Path) -> None:
    """A frame that is missing is a gap: in clips, and for masks, boxes and whatever else has the numbers."""
    root = tmp_path / "frames"
    write_folder(root / "gaps", numbered(12, "clip7_{}.jpg", 5))
    (root / "gaps" / "clip7_9.jpg").unlink()
    write_folder(root / "steps", numbered(4, "{}0.jpg", 1))
    write_folder(root / "seconds", ["s0_1.jpg", "s0_2.jpg", "s1_3.jpg", "s10_4.jpg"])
    done = run_packer("build", root, tmp_path / "out", *RATE)
    assert "3 folders with 19 images" in done.stdout
    dataset = LMDBDataset(tmp_path / "out")
    numbers: dict[str, list[int]] = {}
    for sample in dataset:
        numbers.setdefault(sample["source"], []).append(int(sample["frame"]))
    expected = {"gaps": [5, 6, 7, 8, *range(10, 17)], "steps": [10, 20, 30, 40], "seconds": [1, 2, 3, 4]}
    assert numbers == expected
    clips = [(clip["source"], clip["frame"].tolist()) for clip in dataset.clips(4, by=None)]
    assert clips[0] == ("gaps", [5, 6, 7, 8])
    assert ("gaps", [10, 11, 12, 13]) in clips
    assert ("steps", [10, 20, 30, 40]) in clips
    assert not any(name == "gaps" and 8 in frames and 10 in frames for name, frames in clips)
    for names, found in (
        (["a.jpg"], [0]),
        (["b7_01.jpg"], [1]),
        (["2.png", "10.png"], [2, 10]),
        (["v0.0001.png", "v0.0100.png"], [1, 100]),
    ):
        assert frame_numbers(names) == found


def test_boxes_of_another_folder_are_those_of_the_same_numbers(tmp_path: Path) -> None:
    """The original lacks a frame: the forgery's later frames are cut where the faces are in theirs."""
    for name in ("original", "forged"):
        for number, picture in enumerate(views(6)):
            write_image(tmp_path / name / f"{number}.png", picture)
    (tmp_path / "original" / "2.png").unlink()
    (tmp_path / "rows.csv").write_text("path,from\noriginal,\nforged,original\n")
    faces = ("--preset", "faces", "--size", "64")
    dataset = build(tmp_path / "rows.csv", tmp_path / "out", *faces, "--boxes-from", "from")
    boxes = {(sample["source"], int(sample["frame"])): sample["box"] for sample in dataset}
    assert sorted(boxes) == [(name, number) for name in ("forged", "original") for number in (0, 1, 3, 4, 5)]
    for number in (0, 1, 3, 4, 5):
        np.testing.assert_array_equal(boxes["forged", number], boxes["original", number])


def test_damaged_frames_are_left_out_and_reported(source: Path, tmp_path: Path) -> None:
    (source / "fake" / "a" / "frame3.jpg").write_bytes(b"no image")
    (source / "fake" / "a" / "frame7.jpg").write_bytes(b"")
    for path in (source / "real" / "b").iterdir():
        path.write_bytes(path.read_bytes()[:60])
    dataset = build(source, tmp_path / "out", "--max-rejects", "100%")
    assert [int(s["frame"]) for s in dataset if s["source"] == "fake/a"] == [0, 1, 2, 4, 5, 6, 8, 9, 10, 11]
    damage, reject = read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
    assert (damage["kind"], damage["item"]) == ("damage", "fake/a")
    assert damage["reason"].startswith("2 frames left out, the first is frame 3 ('frame3.jpg'): expected an image")
    assert (reject["kind"], reject["item"]) == ("item", "real/b")
    assert "found no undamaged frame" in reject["reason"]


def test_the_folders_that_are_counted_are_those_that_are_packed(source: Path, tmp_path: Path) -> None:
    done = run_packer("build", source, tmp_path / "out", *RATE, "--limit", "2")
    assert "taken as videos: 2 folders with 17 images" in done.stdout


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_links_never_lead_outside(tmp_path: Path) -> None:
    root, outside = tmp_path / "frames", tmp_path / "outside"
    write_folder(root / "in", numbered(2))
    (root / "in" / "frame3.jpg").symlink_to(root / "in" / "frame0.jpg")
    write_folder(root / "out", numbered(2))
    write_folder(outside, ["frame3.jpg"])
    (root / "out" / "frame3.jpg").symlink_to(outside / "frame3.jpg")
    (root / "gone").mkdir()
    (root / "gone" / "frame1.jpg").symlink_to(root / "nothing.jpg")
    dataset = build(root, tmp_path / "packed", "--max-rejects", "100%")
    assert [sample["source"] for sample in dataset] == ["in"] * 3
    reasons = {line["item"]: line["reason"] for line in read_jsonl(file_of(tmp_path / "packed", "rejects.jsonl"))}
    assert "a symbolic link that leaves it" in reasons["out"]
    assert reasons["gone"].startswith("frame 'frame1.jpg': expected a file, found")


def items_of(root: Path) -> list[Item]:
    return list(FolderSource(root, Recipe(frame_folders=10)).list_items("auto", "path").items)


def test_changes_of_any_frame_are_noticed(source: Path) -> None:
    before = items_of(source)[0]
    assert list(before.changes()) == []
    assert Item.from_line(before.to_line()) == before == Item.unpack(before.pack())
    third = source / "fake" / "a" / "frame3.jpg"
    was = third.stat()
    os.utime(third, ns=(was.st_atime_ns, was.st_mtime_ns - 10**9))  # older, and so not the newest of them
    assert list(before.changes()) == ["'fake/a' has changed since the build was planned"]
    third.unlink()
    assert list(before.changes()) == ["'fake/a/frame3.jpg' existed when the build was planned"]


def test_an_update_takes_new_folders_and_replaces_changed_ones(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "out")
    write_folder(source / "fake" / "c", numbered(2))
    write_folder(source / "real" / "a", ["frame12.jpg"], 90)
    run_packer("build", source, tmp_path / "out", *RATE, "--quiet", "--update", "--changed", "replace")
    check_whole(tmp_path / "out")
    sources = [sample["source"] for sample in LMDBDataset(tmp_path / "out")]
    counts = {name: sources.count(name) for name in set(sources)}
    assert counts == {"fake/a": 12, "fake/b": 5, "fake/c": 2, "real/a": 13, "real/b": 5}


def test_the_originals_are_shown(source: Path) -> None:
    options = {"include": ["*.jpg"], "frame_folders": 10.0}
    write_image(source / "fake" / "a" / "frame0.png", scene(99, (40, 30)))
    (source / "fake" / "a" / "frame5.jpg").unlink()
    originals = Originals(source, options)
    with Image.open(source / "fake" / "a" / "frame11.jpg") as picture:
        np.testing.assert_array_equal(originals.frame("fake/a", 11), np.asarray(picture.convert("RGB")))
    for item, frame in (
        ("fake/a", 12),
        ("fake/a", 5),
        ("fake", 0),
        ("fake/none", 0),
        (".", 0),
        ("..", 0),
        ("real/b", 0),
    ):
        with pytest.raises(ItemError):
            originals.frame(item, frame)
    with raises(ItemError, place="'fake/a'", found="none"):
        Originals(source).frame("fake/a", 0)


def test_a_rejected_folder_is_shown_by_its_first_whole_frame(source: Path, tmp_path: Path) -> None:
    write_folder(source / "masks", numbered(5, start=1))
    write_image(source / "masks" / "frame1.jpg", scene(0, (8, 8)))
    rows = [{"path": "real/b", "mask": "masks"}, {"path": "real/a", "mask": ""}]
    how = {"root": source, "frame_folders": 10, "also": "mask", "max_rejects": 1.0, "progress": False}
    packer.build(rows, tmp_path / "out", **how)
    (source / "real" / "b" / "img_00001.png").write_bytes(b"no image")
    with Image.open(source / "real" / "b" / "img_00002.png") as picture:
        second = np.asarray(picture.convert("RGB"))
    np.testing.assert_array_equal(Originals(source, {"frame_folders": 10.0}).frame("real/b"), second)
    (file,) = (item.file for item in items_of(source) if item.name == "real/b")
    np.testing.assert_array_equal(read_frame(file), second)


def test_sources_that_have_no_frames(source: Path, tmp_path: Path) -> None:
    done = run_packer("build", source / "fake" / "a", tmp_path / "out", *RATE, expect=2)
    assert "'frame0.jpg' directly in" in done.stderr
    assert "use the folder above it, or --exclude images that are not frames" in done.stderr
    labelled = run_packer("build", source / "fake", tmp_path / "l", *RATE, "--label-from", "folder", expect=3)
    assert "expected a folder to name the label (--label-from folder), found it directly" in labelled.stderr
    build(source, tmp_path / "packed")
    for kind in ("packed", "tar"):
        if kind == "tar":
            shutil.make_archive(str(tmp_path / "tar"), "tar", write_images(tmp_path / "p", ["1.png"]))
        path = tmp_path / ("tar.tar" if kind == "tar" else kind)
        done = run_packer("build", path, tmp_path / "other", *RATE, expect=2)
        assert "--frame-folders: applies only to folders" in done.stderr
    write_frames(tmp_path / "videos" / "v.mp4", views(2))
    done = run_packer("build", tmp_path / "videos", tmp_path / "v", *RATE)
    assert "no folder holds frames: --frame-folders had no effect" in done.stdout
    with pytest.raises(UsageError, match="frame_folders"):
        packer.build(source, tmp_path / "x", frame_folders=-1, progress=False)


def test_a_folder_that_cannot_be_listed_is_a_reject(source: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("path\nfake/a\nfake/b\n")
    (source / "fake" / "a").chmod(0)
    try:
        out, options = tmp_path / "out", ("--root", source, "--max-rejects", "50%", "--quiet")
        run_unprivileged("build", tmp_path / "rows.csv", out, *RATE, *options)
    finally:
        (source / "fake" / "a").chmod(0o755)
    (line,) = read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
    assert line["reason"] == "expected a folder that can be listed, found: Permission denied"


def test_listing_a_network_file_system_finds_the_same(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    near = items_of(source)
    monkeypatch.setattr("packer.workspace.shared_files.is_on_network", lambda folder: True)
    assert items_of(source) == near
