"""Faces cut by the boxes of another item, and second images cut with them."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from support.command import file_of, read_jsonl, run_packer
from support.detectors import count_searched
from support.face_source import FACELESS_FRAMES, views, write_frames
from support.media import FAST_START, Picture, cut_file, photograph, write_image
from support.packed import check_whole, encoded_values, read_samples

import packer
from packer.vision.decode.sampling import Sampling
from packer.vision.decode.video import VideoReader
from packer.vision.geometry.crop import cut, pick
from shardspec.errors import UsageError
from shardspec.layout import Layout

SIZE = 96
FRAMES = 20
GEOMETRY = ("box", "score", "matrix", "landmarks", "hull", "regions", "track", "frame", "time")

Samples = list[dict[str, Any]]


def blurred(picture: Picture) -> Picture:
    """A clumsy forgery, in which the detector finds another box or none."""
    return np.ascontiguousarray(cv2.GaussianBlur(picture, (0, 0), 6))


def mask_of(picture: Picture) -> Picture:
    """White where the image is bright: an image that JPEG would not keep."""
    return np.repeat(np.where(picture.mean(axis=2, keepdims=True) > 120, 255, 0), 3, axis=2).astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An original video, a forgery of it, a short one, and images of the same kinds, with masks."""
    root = tmp_path_factory.mktemp("companions")
    frames = list(views(FRAMES, faceless=FACELESS_FRAMES))
    write_frames(root / "original.mp4", frames)
    write_frames(root / "forged.mp4", map(blurred, frames))
    write_frames(root / "short.mp4", frames[:7])
    write_frames(root / "small.mp4", (np.ascontiguousarray(frame[:200]) for frame in frames))
    write_frames(root / "mask.mp4", map(mask_of, frames))
    portrait = photograph("astronaut")
    write_image(root / "original.png", portrait)
    write_image(root / "forged.png", blurred(portrait))
    write_image(root / "mask.png", mask_of(portrait))
    return root


def build(folder: Path, out: Path, rows: Sequence[Mapping[str, Any]], **options: Any) -> Samples:
    """Build rows with paths in a folder, in this process."""
    placed = [
        {name: str(folder / v) if name in ("path", "original", "Forgery Mask") and v else v for name, v in row.items()}
        for row in rows
    ]
    chosen = {"preset": "faces", "size": SIZE, "every": 2, "encode": "png", "max_rejects": 1, **options}
    packer.build(placed, out, engine="inline", progress=False, **chosen)
    check_whole(out)
    return read_samples(out)


def of(samples: Samples, name: str) -> Samples:
    return [sample for sample in samples if sample["source"].endswith(name)]


def lines_of(out: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in read_jsonl(file_of(out, "rejects.jsonl")) if line["kind"] == kind]


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.chdir(folder)  # rows of Python are relative to the current folder, and must not leave it


class TestBoxesFrom:
    @pytest.mark.parametrize("sampling", [{"every": 3}, {"every": None, "frames": 6}, {"every": None, "fps": 10.0}])
    def test_a_forged_video_is_cut_as_its_original(
        self, folder: Path, tmp_path: Path, sampling: dict[str, Any]
    ) -> None:
        rows = [{"path": "forged.mp4", "original": "original.mp4"}, {"path": "original.mp4", "original": None}]
        samples = build(folder, tmp_path / "out", rows, boxes_from="original", **sampling)
        forged, original = of(samples, "forged.mp4"), of(samples, "original.mp4")
        assert len(forged) == len(original) > 2
        for a, b in zip(forged, original, strict=True):
            for name in GEOMETRY:
                assert np.array_equal(a[name], b[name]), name
            assert not np.array_equal(a["image"], b["image"])

    def test_keyframes_are_those_of_the_item(self, folder: Path, tmp_path: Path) -> None:
        write_frames(folder / "cut-anew.mp4", views(FRAMES), codec="mpeg4")  # its key frames lie elsewhere
        rows = [{"path": "forged.mp4", "original": "cut-anew.mp4"}]
        samples = build(folder, tmp_path / "out", rows, boxes_from="original", keyframes=True, every=None)
        keys = {}
        for name in ("forged.mp4", "cut-anew.mp4"):
            with VideoReader(folder / name, Sampling(keyframes=True)) as video:
                keys[name] = list(video.sampled or ())
        assert keys["forged.mp4"] != keys["cut-anew.mp4"]
        assert [int(sample["frame"]) for sample in samples] == keys["forged.mp4"]

    def test_images(self, folder: Path, tmp_path: Path) -> None:
        rows = [{"path": "original.png", "original": ""}, {"path": "forged.png", "original": "original.png"}]
        original, forged = build(folder, tmp_path / "out", rows, boxes_from="original")
        assert np.array_equal(forged["matrix"], original["matrix"])
        assert np.array_equal(forged["image"], cut(blurred(photograph("astronaut")), original["matrix"], SIZE))

    def test_frames_that_the_original_lacks_are_reported(self, folder: Path, tmp_path: Path) -> None:
        rows = [{"path": "forged.mp4", "original": "short.mp4"}]
        samples = build(folder, tmp_path / "out", rows, boxes_from="original")
        assert [int(sample["frame"]) for sample in samples] == [0, 2, 4, 6]
        (line,) = lines_of(tmp_path / "out", "frames")
        assert "no undamaged frame with that index" in line["reason"]
        assert "short.mp4" in line["reason"]
        assert line["frames"] == [8, 10, 12, 14, 16, 18]

    def test_frames_that_the_item_lacks_are_none(self, folder: Path, tmp_path: Path) -> None:
        rows = [{"path": "short.mp4", "original": "original.mp4"}]
        samples = build(folder, tmp_path / "out", rows, boxes_from="original")
        assert [int(sample["frame"]) for sample in samples] == [0, 2, 4, 6]
        assert not lines_of(tmp_path / "out", "frames")

    def test_what_a_damaged_original_lacks_is_reported(self, folder: Path, tmp_path: Path) -> None:
        write_frames(folder / "cut.mp4", views(60), container=FAST_START)
        cut_file(folder / "cut.mp4", 0.6)
        write_frames(folder / "long.mp4", views(60))
        samples = build(folder, tmp_path / "out", [{"path": "long.mp4", "original": "cut.mp4"}], boxes_from="original")
        assert 0 < len(samples) < 30
        (frames,) = lines_of(tmp_path / "out", "frames")
        assert "no undamaged frame with that index in 'cut.mp4', whose boxes are used" in frames["reason"]
        assert len(frames["frames"]) + len(samples) == 30

    def test_an_original_is_searched_once_for_forgeries_of_any_length(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_frames(folder / "cropped.mp4", views(FRAMES - 1, faceless=FACELESS_FRAMES))
        searched = count_searched(monkeypatch)
        rows = [{"path": "original.mp4", "original": ""}]
        rows += [{"path": path, "original": "original.mp4"} for path in ("forged.mp4", "cropped.mp4", "short.mp4")]
        samples = build(folder, tmp_path / "out", rows, boxes_from="original", every=1)
        assert sum(searched) == FRAMES
        lengths = [len(of(samples, row["path"])) for row in rows]
        assert lengths[0] == lengths[1] == lengths[2] + 1 > lengths[3] == 7

    def test_results_do_not_depend_on_what_a_worker_searched_before(self, folder: Path, tmp_path: Path) -> None:
        write_frames(folder / "hurt.mp4", views(60), container=FAST_START)
        cut_file(folder / "hurt.mp4", 0.6)
        write_frames(folder / "fake.mp4", views(60))
        rows = [{"path": "hurt.mp4", "original": ""}, {"path": "fake.mp4", "original": "hurt.mp4"}]
        found = {}
        for name, chosen in (("knew", rows), ("alone", rows[1:])):
            samples = build(folder, tmp_path / name, chosen, boxes_from="original", every=4)
            lines = [
                line
                for line in read_jsonl(file_of(tmp_path / name, "rejects.jsonl"))
                if line["item"].endswith("fake.mp4")
            ]
            found[name] = lines, [sample["image"].tobytes() for sample in of(samples, "fake.mp4")]
        assert found["knew"][1]
        assert found["knew"] == found["alone"]

    @pytest.mark.parametrize(
        ("other", "reason"),
        [
            ("small.mp4", "expected frames of the same size, found 320 x 240 and 320 x 200"),
            ("original.png", "expected a video like"),
            ("nowhere.mp4", "expected a file"),
            ("../outside.mp4", "expected a file"),
            ("not.mp4", "boxes_from"),
        ],
    )
    def test_an_unusable_original_makes_a_reject(self, folder: Path, tmp_path: Path, other: str, reason: str) -> None:
        (folder / "not.mp4").write_text("no video")
        rows = [{"path": "forged.mp4", "original": other}, {"path": "original.mp4", "original": "original.mp4"}]
        samples = build(folder, tmp_path / "out", rows, boxes_from="original")
        assert {sample["source"].rpartition("/")[2] for sample in samples} == {"original.mp4"}
        (reject,) = lines_of(tmp_path / "out", "item")
        assert reason in reject["reason"]
        assert other.rpartition("/")[2] in reject["reason"]

    def test_the_plan_depends_on_the_original(self, folder: Path, tmp_path: Path) -> None:
        write_image(folder / "changing.png", photograph("astronaut"))
        rows = [{"path": "forged.png", "original": "changing.png"}]
        build(folder, tmp_path / "out", rows, boxes_from="original")
        write_image(folder / "changing.png", photograph("coffee"))
        with pytest.raises(UsageError, match="made by another plan"):
            build(folder, tmp_path / "out", rows, boxes_from="original")

    def test_through_the_command_line(self, folder: Path, tmp_path: Path) -> None:
        with (folder / "table.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["path", "original", "Forgery Mask"])
            for _ in range(3):
                rows.writerow(["forged.mp4", "original.mp4", "mask.mp4"])
                rows.writerow(["original.mp4", "", ""])
        options = ("--preset", "faces", "--size", SIZE, "--every", 5, "--quiet")
        options += ("--boxes-from", "original", "--also", "Forgery Mask")
        run_packer("build", folder / "table.csv", tmp_path / "out", *options, "--workers", 2)
        assert check_whole(tmp_path / "out").samples == 6 * 3

    def test_a_missing_column(self, folder: Path, tmp_path: Path) -> None:
        rows = [{"path": "forged.png", "original": "original.png"}]
        with pytest.raises(UsageError, match="boxes_from: expected the column 'orig' of paths, found 'original'"):
            build(folder, tmp_path / "out", rows, boxes_from="orig")
        with pytest.raises(UsageError, match="found a source without columns"):
            packer.build(folder, tmp_path / "out", preset="faces", boxes_from="original", progress=False)
        with pytest.raises(UsageError, match="boxes_from: read only by the step 'faces'"):
            build(folder, tmp_path / "out", rows, boxes_from="original", preset="images")


class TestAlso:
    def test_a_mask_is_cut_as_its_image_and_kept_without_loss(self, folder: Path, tmp_path: Path) -> None:
        rows = [{"path": "original.png", "Forgery Mask": "mask.png"}]
        (sample,) = build(folder, tmp_path / "out", rows, also="Forgery Mask", encode="jpeg")
        field = Layout(tmp_path / "out").load().schema["forgery_mask_image"]
        assert (field.codec.name, field.shape) == ("png", (SIZE, SIZE, 3))
        assert Layout(tmp_path / "out").load().schema["image"].codec.name == "jpeg"
        (data,) = encoded_values(tmp_path / "out", "forgery_mask_image").values()
        assert bytes(data[:8]) == b"\x89PNG\r\n\x1a\n"
        expected = cut(mask_of(photograph("astronaut")), sample["matrix"], SIZE)
        assert np.array_equal(sample["forgery_mask_image"], expected)
        assert sample["forgery_mask_image_valid"]

    def test_raw(self, folder: Path, tmp_path: Path) -> None:
        rows = [{"path": "original.png", "Forgery Mask": "mask.png"}]
        (sample,) = build(folder, tmp_path / "out", rows, also="Forgery Mask", encode="raw")
        assert Layout(tmp_path / "out").load().schema["forgery_mask_image"].kind == "fixed"
        expected = cut(mask_of(photograph("astronaut")), sample["matrix"], SIZE)
        assert np.array_equal(sample["forgery_mask_image"], expected)

    def test_nearest_mixes_no_pixels(self, folder: Path, tmp_path: Path) -> None:
        rows = [{"path": "original.png", "Forgery Mask": "mask.png"}]
        found = {
            how: build(folder, tmp_path / how, rows, also="Forgery Mask", also_resample=how, size=48)[0]
            for how in ("area", "nearest")
        }
        assert set(np.unique(found["nearest"]["forgery_mask_image"])) == {0, 255}
        assert len(np.unique(found["area"]["forgery_mask_image"])) > 10
        matrix = found["nearest"]["matrix"]
        assert np.array_equal(
            found["nearest"]["forgery_mask_image"], pick(mask_of(photograph("astronaut")), matrix, 48)
        )

    @pytest.mark.parametrize("how", ["area", "nearest"])
    def test_of_an_aligned_crop(self, folder: Path, tmp_path: Path, how: str) -> None:
        rows = [{"path": "original.png", "Forgery Mask": "original.png"}]
        (sample,) = build(folder, tmp_path / "out", rows, also="Forgery Mask", also_resample=how, align=True)
        difference = np.abs(sample["forgery_mask_image"].astype(int) - sample["image"])
        assert difference.mean() < (0.01 if how == "area" else 12)

    def test_a_video_frame_by_frame(self, folder: Path, tmp_path: Path) -> None:
        # The video itself as its mask: the same pixels, cut by the same matrices.
        rows = [{"path": "original.mp4", "Forgery Mask": "original.mp4"}]
        samples = build(folder, tmp_path / "out", rows, also="Forgery Mask")
        assert len(samples) == 8
        for sample in samples:
            assert np.array_equal(sample["forgery_mask_image"], sample["image"])
            assert sample["forgery_mask_image_valid"]

    def test_a_missing_second_image_is_black_and_not_valid(self, folder: Path, tmp_path: Path) -> None:
        rows = [{"path": "original.png", "Forgery Mask": None}, {"path": "original.mp4", "Forgery Mask": "short.mp4"}]
        samples = build(folder, tmp_path / "out", rows, also="Forgery Mask")
        valid = {0: True, 2: True, 4: True, 6: True}
        for sample in of(samples, "original.mp4"):
            assert sample["forgery_mask_image_valid"] == valid.get(int(sample["frame"]), False)
            assert sample["forgery_mask_image"].any() == sample["forgery_mask_image_valid"]
        (picture,) = of(samples, "original.png")
        assert not picture["forgery_mask_image_valid"]
        assert not picture["forgery_mask_image"].any()
        (damage,) = lines_of(tmp_path / "out", "damage")
        assert "4 missing frames (the first is frame 12)" in damage["reason"]

    def test_a_row_without_a_mask_may_count_as_all_zeros(self, folder: Path, tmp_path: Path) -> None:
        """Through the command line, as real videos beside forgeries; frames that a named mask lacks stay invalid."""
        rows = ["path,mask", "original.mp4,", "original.png,", "forged.mp4,short.mp4"]
        (folder / "masks.csv").write_text("\n".join(rows) + "\n")
        how = ("--preset", "faces", "--size", SIZE, "--every", 2, "--min-score", 0.5, "--quiet", "--also", "mask")
        run_packer("build", folder / "masks.csv", tmp_path / "out", *how, "--also-missing", "zero")
        samples = read_samples(tmp_path / "out")
        real = [sample for sample in samples if sample["source"].startswith("original")]
        assert len(real) == 9
        for sample in real:
            assert sample["mask_image_valid"]
            assert not sample["mask_image"].any()
        forged = of(samples, "forged.mp4")
        assert {bool(sample["mask_image_valid"]) for sample in forged} == {False, True}
        for sample in forged:
            assert sample["mask_image_valid"] == (int(sample["frame"]) < 7) == sample["mask_image"].any()
        run_packer("build", folder / "masks.csv", tmp_path / "not", *how)
        assert not any(sample["mask_image_valid"] for sample in read_samples(tmp_path / "not")[:8])

    def test_also_missing_zero_applies_only_to_empty_cells(self, folder: Path, tmp_path: Path) -> None:
        rows = [
            {"path": "original.png", "Forgery Mask": "nowhere.png"},
            {"path": "forged.png", "Forgery Mask": "mask.png"},
        ]
        build(folder, tmp_path / "out", rows, also="Forgery Mask", also_missing="zero", min_score=0.5)
        (reject,) = lines_of(tmp_path / "out", "item")
        assert reject["item"].endswith("original.png")
        with pytest.raises(UsageError, match="also_missing: read only with also, found no also"):
            build(folder, tmp_path / "other", rows, also_missing="zero")

    @pytest.mark.parametrize("frames", [1, 4])
    def test_a_second_video_that_ends_before_the_sampled_frames_is_missing(
        self, folder: Path, tmp_path: Path, frames: int
    ) -> None:
        write_frames(folder / "stub.mp4", views(2))
        rows = [{"path": "short.mp4", "Forgery Mask": "stub.mp4"}]
        samples = build(folder, tmp_path / "out", rows, also="Forgery Mask", every=None, frames=frames)
        assert [bool(sample["forgery_mask_image_valid"]) for sample in samples] == [
            int(sample["frame"]) < 2 for sample in samples
        ]
        assert len(samples) == frames
        assert "missing frame" in lines_of(tmp_path / "out", "damage")[0]["reason"]

    def test_a_faceless_frame_has_its_mask_whole(self, folder: Path, tmp_path: Path) -> None:
        write_image(folder / "coffee.png", photograph("coffee"))
        rows = [{"path": "coffee.png", "Forgery Mask": "coffee.png"}]
        (sample,) = build(folder, tmp_path / "out", rows, also="Forgery Mask", keep_faceless=True)
        assert np.array_equal(sample["forgery_mask_image"], sample["image"])

    def test_another_size_makes_a_reject(self, folder: Path, tmp_path: Path) -> None:
        rows = [
            {"path": "original.mp4", "Forgery Mask": "small.mp4"},
            {"path": "original.png", "Forgery Mask": "mask.png"},
        ]
        build(folder, tmp_path / "out", rows, also="Forgery Mask")
        (reject,) = lines_of(tmp_path / "out", "item")
        assert "also: expected images of the same size, found 320 x 240 and 320 x 200 at frame 0" in reject["reason"]

    def test_a_column_with_the_name_of_the_new_field_is_refused(self, folder: Path, tmp_path: Path) -> None:
        rows = [{"path": "original.png", "mask": "mask.png", "mask_image": "x"}]
        with pytest.raises(UsageError, match="already becomes field 'mask_image'"):
            build(folder, tmp_path / "out", rows, also="mask")


def test_pick_takes_the_pixel_under_the_centre() -> None:
    frame = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    assert np.array_equal(pick(frame, [[1, 0, 0], [0, 1, 0]], 4), frame[:, :4])
    doubled = pick(frame, [[2, 0, 0], [0, 2, 0]], 6)
    assert np.array_equal(doubled, np.repeat(np.repeat(frame[:3, :3], 2, axis=0), 2, axis=1))
    outside = pick(frame, [[1, 0, 2], [0, 1, 1]], 4)
    assert not outside[0].any()
    assert not outside[:, :2].any()
    assert np.array_equal(outside[1:, 2:], frame[:3, :2])
    turned = pick(frame, [[0, 1, 0], [1, 0, 0]], 4)  # transposed
    assert np.array_equal(turned, frame.transpose(1, 0, 2)[:4, :4])
