"""``--boxes DATASET`` and ``packer detect``: faces are found once, and cropped as often as one likes."""

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command import environment, file_of, read_jsonl, run_packer
from support.errors import raises
from support.face_source import FACELESS_FRAMES, views, write_frames
from support.media import photograph, write_image
from support.packed import check_whole, read_samples

import packer
from packer.vision.geometry.affine import apply, invert
from packer.vision.geometry.crop import crop_matrix
from shardspec.errors import DatasetError, ShardCorruptError, TooManyRejectsError, UsageError
from shardspec.layout import Layout

Samples = list[dict[str, Any]]
EVERY = 3
SAMPLED_WITHOUT = [frame for frame in FACELESS_FRAMES if frame % EVERY == 0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packed")


@pytest.fixture(scope="module")
def crops(source: Path, folder: Path) -> Path:
    """Crops that a detector's faces gave."""
    build(source, folder / "crops")
    return folder / "crops"


@pytest.fixture(scope="module")
def detections(source: Path, folder: Path) -> Path:
    run_packer("detect", source, folder / "boxes", "--every", EVERY, "--quiet")
    return folder / "boxes"


def build(source: Any, out: Path, **options: Any) -> packer.BuildResult:
    how = {"preset": "faces", "size": 64, "every": EVERY, "encode": "png", "max_rejects": 1.0, "engine": "inline"}
    result = packer.build(source, out, progress=False, **{**how, **options})
    check_whole(out)
    return result


def shards(out: Path) -> list[tuple[str, str]]:
    return [(entry.name, entry.sha256) for shard in Layout(out).load().shards for entry in shard.files]


def rejects(out: Path) -> list[tuple[str, str, str, Any]]:
    lines = read_jsonl(file_of(out, "rejects.jsonl"))
    return [(line["kind"], line["item"], line["reason"], line.get("frames")) for line in lines]


def of(samples: Samples, name: str) -> Samples:
    return [sample for sample in samples if sample["source"] == name]


class TestTheSameFaces:
    """What a detector's faces gave, the boxes give again, byte for byte."""

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"align": True, "margin": 0.1},
            {"align_as": "arcface", "size": 112, "choose": "main"},
            {"keep_faceless": True, "frames": 4, "every": None},
        ],
        ids=lambda options: "-".join(options) or "plain",
    )
    def test_of_crops_with_the_same_options(self, source: Path, tmp_path: Path, options: Mapping[str, Any]) -> None:
        build(source, tmp_path / "first", **options)
        build(source, tmp_path / "again", **options, boxes=str(tmp_path / "first"))
        assert shards(tmp_path / "again") == shards(tmp_path / "first")

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"align": True, "margin": 0.1},
            {"align_as": "deepfakebench", "size": None, "choose": "largest"},
            {"choose": "track", "format": "parquet", "encode": "jpeg"},
            {"keep_faceless": True},
        ],
        ids=lambda options: "-".join(options) or "plain",
    )
    def test_of_detections_with_any_options(
        self, source: Path, detections: Path, tmp_path: Path, options: Mapping[str, Any]
    ) -> None:
        """The reasons for what gave no sample are the same, too."""
        build(source, tmp_path / "direct", **options)
        build(source, tmp_path / "again", **options, boxes=str(detections))
        assert shards(tmp_path / "again") == shards(tmp_path / "direct")
        assert rejects(tmp_path / "again") == rejects(tmp_path / "direct")

    @pytest.mark.parametrize(
        ("format", "shuffle"),
        [("hdf5", 5), ("lmdb", 5), ("npy", None), ("parquet", 5), ("tfrecord", None), ("webdataset", 5)],
    )
    def test_of_any_format_and_order(
        self, source: Path, crops: Path, tmp_path: Path, format: str, shuffle: int | None
    ) -> None:
        packer.convert(crops, tmp_path / "other", format=format, shuffle=shuffle, engine="inline", progress=False)
        build(source, tmp_path / "again", boxes=str(tmp_path / "other"))
        assert shards(tmp_path / "again") == shards(crops)

    def test_through_the_command_line_and_with_other_crops(self, source: Path, crops: Path, tmp_path: Path) -> None:
        how = ("--preset", "faces", "--every", EVERY, "--max-rejects", "100%", "--quiet")
        other = ("--size", 200, "--margin", 0.8, "--landmarks", "68", "--boxes", crops)
        run_packer("build", source, tmp_path / "out", *how, *other, "--workers", 2)
        check_whole(tmp_path / "out")
        before, after = read_samples(crops), read_samples(tmp_path / "out")
        assert len(before) == len(after) == 9
        for old, new in zip(before, after, strict=True):
            for name in ("key", "source", "frame", "time", "track", "score"):
                assert old[name] == new[name], name
            assert np.array_equal(old["box"], new["box"])
            assert new["image"].shape == (200, 200, 3)
            assert new["landmarks"].shape == (68, 2)
            assert new["landmarks_valid"]
        assert rejects(tmp_path / "out") == [
            (
                "frames",
                "clip.mp4",
                "no face of it in crops: no face of 40 px and more with a score of 0.95 and more: found none",
                SAMPLED_WITHOUT,
            ),
            (
                "item",
                "coffee.png",
                "boxes: rejected in crops (faces: no face of 40 px and more with a score of 0.95 and more: found none "
                "(1 frame))",
                None,
            ),
        ]

    def test_points_come_from_denser_landmarks(self, source: Path, crops: Path, tmp_path: Path) -> None:
        """The same pixels, and points that are near the detector's."""
        build(source, tmp_path / "dense", landmarks="68")
        build(source, tmp_path / "again", boxes=str(tmp_path / "dense"))
        for old, new in zip(read_samples(crops), read_samples(tmp_path / "again"), strict=True):
            assert np.array_equal(old["image"], new["image"])
            assert 0 < np.abs(old["landmarks"] - new["landmarks"]).max() < 4

    @given(
        st.tuples(*[st.floats(-50, 4000, width=32)] * 2, *[st.floats(20, 2000, width=32)] * 2),
        st.floats(0, 1),
        st.integers(16, 1024),
        st.lists(st.tuples(st.floats(-0.2, 1.2), st.floats(-0.2, 1.2)), min_size=5, max_size=5),
    )
    def test_points_come_back_from_a_crop_as_they_were_stored(
        self, place: tuple[float, ...], margin: float, size: int, inside: list[tuple[float, float]]
    ) -> None:
        left, top, width, height = place
        points = (np.array([left, top]) + np.array(inside) * (width, height)).astype(np.float32)
        matrix = crop_matrix((left, top, left + width, top + height), margin, size)
        stored = apply(matrix, points).astype(np.float32)
        found = apply(invert(matrix.astype(np.float32)), stored)
        back = apply(matrix, found).astype(np.float32)
        on_axis = np.abs(stored) < 1e-3  # pixels: float32 is finer there than the rounding of sums in float64
        assert np.array_equal(back[~on_axis], stored[~on_axis])
        assert np.all(np.abs(back[on_axis] - stored[on_axis]) < 1e-9)

    def test_a_forgery_takes_the_boxes_of_its_original(self, tmp_path: Path) -> None:
        """Its file has another size, which is not compared, and its faces cannot be found."""
        frames = list(views(6))
        write_frames(tmp_path / "in" / "real.mp4", frames)
        write_frames(tmp_path / "in" / "fake.mp4", (np.ascontiguousarray(frame[::-1]) for frame in frames))
        with (tmp_path / "in" / "table.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["path", "original"], ["real.mp4", ""], ["fake.mp4", "real.mp4"]])
        packer.detect(tmp_path / "in", tmp_path / "boxes", include="real.mp4", engine="inline", progress=False)
        build(
            tmp_path / "in" / "table.csv",
            tmp_path / "out",
            boxes=str(tmp_path / "boxes"),
            boxes_from="original",
            every=1,
        )
        samples = read_samples(tmp_path / "out")
        real, fake = of(samples, "real.mp4"), of(samples, "fake.mp4")
        assert len(real) == len(fake) == 6
        assert all(np.array_equal(a["matrix"], b["matrix"]) for a, b in zip(real, fake, strict=True))


class TestDetect:
    def test_a_sample_is_a_face_or_a_frame_without_one(self, source: Path, crops: Path, detections: Path) -> None:
        check_whole(detections)
        samples = read_samples(detections)
        faces = [sample for sample in samples if sample["box_valid"]]
        assert "image" not in samples[0]
        for face, crop in zip(faces, read_samples(crops), strict=True):
            for name in ("source", "frame", "time", "track", "score"):
                assert face[name] == crop[name], name
            assert np.array_equal(face["box"], crop["box"])
            assert np.array_equal(apply(crop["matrix"], face["landmarks"]).astype(np.float32), crop["landmarks"])
            assert face["landmarks_valid"]
        without = [(s["source"], int(s["frame"])) for s in samples if not s["box_valid"]]
        assert without == [*(("clip.mp4", frame) for frame in SAMPLED_WITHOUT), ("coffee.png", 0)]
        for sample in samples:
            assert sample["source_bytes"] == (source / sample["source"]).stat().st_size
        sizes = {sample["source"]: sample["frame_size"].tolist() for sample in samples}
        assert sizes == {
            "astronaut.png": [512, 512],
            "clip.mp4": [320, 240],
            "coffee.png": [600, 400],
            "pair.png": [870, 512],
        }
        assert rejects(detections) == []
        assert packer.verify(detections, deep=True, progress=False).ok

    def test_boxes_in_parquet_are_a_table_for_other_tools(self, source: Path, detections: Path, tmp_path: Path) -> None:
        run_packer(
            "detect", source, tmp_path / "out", "--every", EVERY, "--format", "parquet", "--shared-detector", "--quiet"
        )
        (file,) = (tmp_path / "out").glob("*.parquet")
        rows = pq.read_table(file).to_pylist()
        samples = read_samples(detections)
        assert [row["source"] for row in rows] == [sample["source"] for sample in samples]
        assert [row["box"] for row in rows] == [sample["box"].tolist() for sample in samples]
        assert [row["box_valid"] for row in rows] == [bool(sample["box_valid"]) for sample in samples]
        build(source, tmp_path / "again", boxes=str(tmp_path / "out"))
        build(source, tmp_path / "other", boxes=str(detections))
        assert shards(tmp_path / "again") == shards(tmp_path / "other")

    def test_the_same_bytes_after_an_interruption(
        self, source: Path, detections: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        detect, calls = packer.Detector.detect, []

        def stop(self: Any, frames: Any) -> Any:
            calls.append(len(frames))
            if len(calls) == 3:
                raise KeyboardInterrupt
            return detect(self, frames)

        how: dict[str, Any] = {"every": EVERY, "engine": "inline", "progress": False}
        with monkeypatch.context() as patch:
            patch.setattr(packer.Detector, "detect", stop)
            with pytest.raises(KeyboardInterrupt):
                packer.detect(source, tmp_path / "out", **how)
        with pytest.raises(DatasetError, match=r"found an unfinished build: repeat its command"):
            build(source, tmp_path / "early", boxes=str(tmp_path / "out"))
        result = packer.detect(source, tmp_path / "out", **how)
        assert result.resumed
        assert shards(tmp_path / "out") == shards(detections)
        assert packer.detect(source, tmp_path / "out", **how).found_finished

    def test_labels_and_columns_are_kept(self, source: Path, tmp_path: Path) -> None:
        rows = [{"path": "astronaut.png", "label": "real", "person": 7}]
        packer.detect(rows, tmp_path / "out", root=str(source), engine="inline", progress=False)
        (sample,) = read_samples(tmp_path / "out")
        assert (int(sample["label"]), int(sample["person"])) == (0, 7)

    def test_boxes_of_new_items_are_added(self, source: Path, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        for name in ("a.png", "b.png"):
            shutil.copy(source / "pair.png", tmp_path / "in" / name)
            packer.detect(tmp_path / "in", tmp_path / "boxes", update=name == "b.png", engine="inline", progress=False)
        assert [sample["source"] for sample in read_samples(tmp_path / "boxes")] == ["a.png"] * 2 + ["b.png"] * 2

    def test_more_faces_with_a_lower_score(self, source: Path, detections: Path, tmp_path: Path) -> None:
        build(source, tmp_path / "direct", min_score=0.5, min_face=20)
        result = build(source, tmp_path / "out", boxes=str(detections), min_score=0.5, min_face=20)
        assert result.notes == (
            "boxes: packed with min_face 40, so faces below 40 have no box (this build has min_face 20)",
            "boxes: packed with min_score 0.95, so faces below 0.95 have no box (this build has min_score 0.5)",
        )
        packer.detect(
            source, tmp_path / "all", every=EVERY, min_score=0.5, min_face=20, engine="inline", progress=False
        )
        assert build(source, tmp_path / "more", boxes=str(tmp_path / "all"), min_score=0.5, min_face=20).notes == ()
        assert shards(tmp_path / "more") == shards(tmp_path / "direct")


def test_nothing_of_a_detector_is_loaded(source: Path, detections: Path, tmp_path: Path) -> None:
    """Neither here nor in the workers: their libraries leave a mark when they are imported, and fail."""
    for name in ("openvino", "torch"):
        (tmp_path / "mark" / name).mkdir(parents=True)
        (tmp_path / "mark" / name / "__init__.py").write_text(
            f"open({str(tmp_path / 'loaded')!r}, 'a').write({name!r})\nraise ImportError('not here')\n"
        )
    env = environment(python_path=tmp_path / "mark")
    how = ("--preset", "faces", "--every", EVERY, "--max-rejects", "100%", "--quiet")
    run_packer("build", source, tmp_path / "out", *how, "--boxes", detections, "--align", "--workers", 1, env=env)
    check_whole(tmp_path / "out")
    assert not (tmp_path / "loaded").exists()
    subprocess.run([sys.executable, "-c", "import openvino"], env=env, capture_output=True, check=False)
    assert (tmp_path / "loaded").exists(), "the mark is not seen"


class TestWhatDoesNotMatch:
    def test_frames_that_were_never_looked_at(
        self, source: Path, crops: Path, detections: Path, tmp_path: Path
    ) -> None:
        for boxes in (crops, detections):
            result = build(source, tmp_path / boxes.name, boxes=str(boxes), every=2)
            frames = [int(s["frame"]) for s in of(read_samples(tmp_path / boxes.name), "clip.mp4")]
            assert frames == [frame for frame in range(0, 20, 6) if frame not in FACELESS_FRAMES]
            reason = f"{boxes.name} has no entry for it: it was not among the frames searched for faces"
            asked = [frame for frame in range(0, 20, 2) if frame % EVERY]
            assert ("frames", "clip.mp4", reason, asked) in rejects(tmp_path / boxes.name)
            assert result.unused_boxes == 2  # in frames 3 and 15; 9 has none
            assert "unused boxes: 2" in result.describe()

    def test_items_of_only_the_source_or_the_boxes(self, source: Path, crops: Path, tmp_path: Path) -> None:
        shutil.copytree(source, tmp_path / "in")
        (tmp_path / "in" / "pair.png").unlink()
        write_image(tmp_path / "in" / "more.png", photograph("astronaut"))
        result = build(tmp_path / "in", tmp_path / "out", boxes=str(crops))
        assert result.notes == ("crops: boxes of 1 item that are not in the source, such as 'pair.png'",)
        reason = "boxes: expected samples with source 'more.png' in crops, found none"
        assert ("item", "more.png", reason, None) in rejects(tmp_path / "out")

    def test_other_sources(self, crops: Path, tmp_path: Path) -> None:
        write_image(tmp_path / "in" / "other.png", photograph("astronaut"))
        done = run_packer(
            "build", tmp_path / "in", tmp_path / "out", "--preset", "faces", "--boxes", crops, "--quiet", expect=2
        )
        assert "expected boxes under the items' paths, such as 'other.png', found others, such as" in done.stderr
        assert not (tmp_path / "out").exists()

    def changed(self, source: Path, tmp_path: Path, **video: Any) -> Path:
        shutil.copytree(source, tmp_path / "in")
        write_frames(tmp_path / "in" / "clip.mp4", views(20, faceless=FACELESS_FRAMES), **video)
        return tmp_path / "in"

    def reason(self, out: Path) -> str:
        return next(reason for _, item, reason, _ in rejects(out) if item == "clip.mp4")

    def test_a_file_that_was_changed(self, source: Path, detections: Path, tmp_path: Path) -> None:
        file = self.changed(source, tmp_path, codec="mpeg4") / "clip.mp4"
        build(tmp_path / "in", tmp_path / "out", boxes=str(detections))
        before, now = (source / "clip.mp4").stat().st_size, file.stat().st_size
        assert self.reason(tmp_path / "out") == (
            f"boxes: expected 'clip.mp4' as it was when boxes was packed, with {before:,} bytes, found {now:,}"
        )

    def test_frames_of_another_size(self, tmp_path: Path) -> None:
        """With a scale, those of copies of half the size are meant for these."""
        for name, size in (("small", (320, 240)), ("large", (640, 480))):
            write_frames(tmp_path / name / "clip.mp4", views(6, size=size))
            write_frames(tmp_path / "both" / f"{name}.mp4", views(6, size=size))
        how: dict[str, Any] = {"engine": "inline", "progress": False}
        packer.detect(tmp_path / "small", tmp_path / "boxes", **how)
        result = build(tmp_path / "large", tmp_path / "out", boxes=str(tmp_path / "boxes"), boxes_scale=2, every=1)
        assert (result.counts.packed_items, result.counts.samples) == (1, 6)
        packer.detect(tmp_path / "both", tmp_path / "more", include="small.mp4", **how)
        rows = [{"path": "large.mp4", "original": "small.mp4"}, {"path": "small.mp4", "original": ""}]
        boxes = str(tmp_path / "more")
        build(rows, tmp_path / "forged", root=str(tmp_path / "both"), boxes=boxes, boxes_from="original", every=1)
        ((kind, item, reason, _),) = rejects(tmp_path / "forged")
        assert (kind, item) == ("item", "large.mp4")
        assert reason == "boxes: expected frames of the same size as their boxes, found 320 x 240 and 640 x 480"

    def test_another_rate(self, source: Path, crops: Path, tmp_path: Path) -> None:
        """Crops do not say how large their file was, but when their frames were shown."""
        build(self.changed(source, tmp_path, rate=20), tmp_path / "out", boxes=str(crops))
        assert self.reason(tmp_path / "out") == (
            "boxes: expected frame 3 at 0.12 s, as when its boxes were packed, found it at 0.15 s"
        )


class TestWrong:
    def test_a_dataset_without_boxes(self, source: Path, tmp_path: Path) -> None:
        packer.build(source, tmp_path / "images", every=10, engine="inline", progress=False)
        done = run_packer(
            *("build", source, tmp_path / "out", "--preset", "faces", "--boxes", tmp_path / "images", "--quiet"),
            expect=2,
        )
        assert done.stderr == (
            f"packer build: {tmp_path}/images: expected a packed dataset of faces, with the fields source, frame, box, "
            "found none called box: pack one with --preset faces, or with packer detect\n"
        )

    def test_a_damaged_shard(self, source: Path, crops: Path, tmp_path: Path) -> None:
        shutil.copytree(crops, tmp_path / "crops")
        (shard,) = (tmp_path / "crops").glob("shard-*.lmdb")
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)
        with pytest.raises(ShardCorruptError):
            build(source, tmp_path / "out", boxes=str(tmp_path / "crops"))
        assert not (tmp_path / "out").exists()

    def test_other_boxes_are_another_plan(self, source: Path, crops: Path, detections: Path, tmp_path: Path) -> None:
        shutil.copytree(crops, tmp_path / "moved" / "crops")
        build(source, tmp_path / "out", boxes=str(crops))
        assert build(source, tmp_path / "out", boxes=str(tmp_path / "moved" / "crops")).found_finished
        with pytest.raises(UsageError, match="made by another plan"):
            build(source, tmp_path / "out", boxes=str(detections))

    def test_points_are_needed_for_aligned_crops(self, source: Path, crops: Path, tmp_path: Path) -> None:
        """Crops of boxes that came without points have none."""
        boxes = {sample["source"]: {"0": [sample["box"].tolist()]} for sample in read_samples(crops)}
        (tmp_path / "boxes.json").write_text(json.dumps(boxes))
        build(source, tmp_path / "plain", boxes=str(tmp_path / "boxes.json"))
        build(source, tmp_path / "again", boxes=str(tmp_path / "plain"))
        assert shards(tmp_path / "again") == shards(tmp_path / "plain")
        with raises(UsageError, expected="landmarks with the boxes, which --align needs", found="none"):
            build(source, tmp_path / "aligned", boxes=str(tmp_path / "plain"), align=True)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"box": [5, 5, 5, 9]}, "expected boxes with an area, found [5.0, 5.0, 5.0, 9.0]"),
            ({"box": [float("nan")] * 4}, "expected boxes with an area, found [nan"),
            ({"score": 1.5}, "expected scores from 0 to 1, found 1.5"),
            ({"track": -2}, "expected tracks of -1 and more, found -2"),
            ({"frame": -1}, "expected frames of 0 and more, found -1"),
        ],
    )
    def test_impossible_values_reject_only_their_item(
        self, source: Path, tmp_path: Path, change: Mapping[str, Any], message: str
    ) -> None:
        self.write(tmp_path, [{}, {"source": "pair.png", **change}])
        build(source, tmp_path / "out", boxes=str(tmp_path / "boxes"))
        (found,) = [reason for _, item, reason, _ in rejects(tmp_path / "out") if item == "pair.png"]
        assert found.startswith(f"boxes: boxes, 'pair.png': {message}")
        assert len(read_samples(tmp_path / "out")) == 1

    def test_a_track_twice_in_a_frame(self, source: Path, tmp_path: Path) -> None:
        self.write(tmp_path, [{}, {}])
        with pytest.raises(TooManyRejectsError, match="expected each track once in a frame, found 3"):
            build(source, tmp_path / "out", boxes=str(tmp_path / "boxes"))

    def test_fields_of_another_kind(self, source: Path, tmp_path: Path) -> None:
        self.write(tmp_path, [{"box": [1, 2, 3]}])
        with pytest.raises(UsageError, match=r"field 'box' is not that of faces: found <f4 of shape \[3\]"):
            build(source, tmp_path / "out", boxes=str(tmp_path / "boxes"))

    def write(self, folder: Path, faces: list[dict[str, Any]]) -> None:
        """A dataset of faces of one's own, made by a step."""
        plain = {"source": "astronaut.png", "frame": 0, "box": [170, 50, 280, 185], "score": 0.99, "track": 3}
        kinds = {"box": np.float32, "score": np.float32, "track": np.int64, "frame": np.int64}

        def make(samples: Any) -> Any:
            for sample in samples:
                face = {**plain, **faces[int(sample["number"])]}
                del sample["image"]
                yield {**sample, **face, **{name: np.asarray(face[name], kind) for name, kind in kinds.items()}}

        rows = [{"image": np.zeros((8, 8, 3), np.uint8), "number": number} for number in range(len(faces))]
        packer.build(rows, folder / "boxes", steps=[make], progress=False)

    def test_detect_takes_no_other_options_and_columns(self, source: Path, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="unknown option 'margin'"):
            packer.detect(source, tmp_path / "out", margin=0.5)
        with raises(UsageError, option="detect", hint="leave it out with `drop`, or rename it"):
            packer.detect([{"path": "pair.png", "box_valid": 1}], tmp_path / "out", root=str(source))
        assert list(tmp_path.iterdir()) == []
