"""``--sample``: the frames of a track, of a video, or of a piece become one sample."""

import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builds import QUIET
from support.command import file_of, read_jsonl, run_packer
from support.errors import raises
from support.media import FAST_START, scene, write_image, write_video
from support.packed import check_whole, read_samples
from support.sound import write_talk

import packer
from packer.recipe import Recipe
from packer.sources.item import Item
from packer.steps import gather
from packer.steps.chain import ITEM, REPORT
from packer.steps.gather import make_gathering
from packer.steps.report import ItemReport
from readers import open_dataset
from shardspec.errors import UsageError
from shardspec.formats import FORMATS
from shardspec.layout import Layout
from shardspec.schema import NamedConfig

LEFT = {"x0": 5, "y0": 5, "x1": 35, "y1": 40}
RIGHT = {"x0": 60, "y0": 5, "x1": 90, "y1": 40}


def write_faces(root: Path, right: range = range(20), left: range = range(20)) -> dict[str, Any]:
    """A video of twenty frames with two faces; the options that cut them."""
    write_video(root / "in" / "real" / "v.mp4", frames=20, container=FAST_START)
    rows = [{"frame": frame, **box} for box, frames in ((LEFT, left), (RIGHT, right)) for frame in frames]
    lines = [json.dumps({"path": "real/v.mp4", **row}) + "\n" for row in rows]
    (root / "boxes.jsonl").write_text("".join(lines))
    boxes = str(root / "boxes.jsonl")
    return {"preset": "faces", "size": 32, "min_face": 20, "boxes": boxes, "label_from": "folder", **QUIET}


def build(root: Path, out: str = "out", **options: Any) -> list[dict[str, Any]]:
    """Pack the folder ``in``, check the dataset, and return its samples."""
    packer.build(root / "in", root / out, **{**QUIET, **options})
    check_whole(root / out)
    return read_samples(root / out)


def test_a_track_is_one_sample_with_the_values_of_its_frames(tmp_path: Path) -> None:
    how = write_faces(tmp_path)
    frames = build(tmp_path, "frames", encode="png", smooth=5, **how)
    tracks = build(tmp_path, "tracks", encode="ffv1", sample="track", smooth=5, **how)
    assert [int(one["track"]) for one in tracks] == [0, 1]
    for one in tracks:
        own = [sample for sample in frames if sample["track"] == one["track"]]
        assert one["frames"] == len(own) == 20
        assert np.array_equal(one["video"], [sample["image"] for sample in own])
        for name in ("frame", "time", "frame_position", "box", "score", "matrix", "landmarks", "landmarks_valid"):
            assert np.array_equal(one[name], [sample[name] for sample in own])
            assert one[name].dtype == np.asarray(own[0][name]).dtype
        assert (one["label"], one["source"]) == (own[0]["label"], own[0]["source"])


def test_a_sample_has_no_gaps(tmp_path: Path) -> None:
    how = write_faces(tmp_path, right=range(0), left=[f for f in range(20) if f not in (7, 8)])
    found = build(tmp_path, sample="track", **how)
    assert [one["frame"].tolist() for one in found] == [list(range(7)), list(range(9, 20))]
    filled = build(tmp_path, "filled", sample="track", fill=3, **how)
    assert [one["frame"].tolist() for one in filled] == [list(range(20))]
    assert np.flatnonzero(filled[0]["interpolated"]).tolist() == [7, 8]


def test_long_tracks_and_videos_are_divided(tmp_path: Path) -> None:
    how = write_faces(tmp_path)
    tracks = build(tmp_path, sample="track", most_seconds=0.32, **how)
    assert sorted(int(one["frames"]) for one in tracks) == [4, 4, 8, 8, 8, 8]
    videos = build(tmp_path, "videos", sample="item", most_seconds=0.6, size=24)
    assert [one["frame"].tolist() for one in videos] == [list(range(15)), list(range(15, 20))]


@pytest.mark.parametrize(("hop", "starts"), [(None, [0, 5, 10, 15]), (0.12, [0, 3, 6, 9, 12, 15]), (0.4, [0, 10])])
def test_segments_are_pieces_of_one_length(tmp_path: Path, hop: float | None, starts: list[int]) -> None:
    write_video(tmp_path / "in" / "v.mp4", frames=20)
    write_video(tmp_path / "in" / "short.mp4", frames=4)
    how = {"sample": "segment", "seconds": 0.2, "size": 24, "label_from": "none", "max_rejects": 1.0}
    found = build(tmp_path, hop=hop, **how)
    assert [one["frame"].tolist() for one in found] == [list(range(start, start + 5)) for start in starts]
    (reject,) = read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
    assert reject["item"] == "short.mp4"
    assert "shorter than 0.2 s" in reject["reason"]


def test_pieces_of_one_frame_last_as_long_as_frames_do(tmp_path: Path) -> None:
    write_video(tmp_path / "in" / "v.mp4", frames=20)
    found = build(tmp_path, sample="segment", seconds=0.2, every=5, size=24, label_from="none")
    assert [one["frame"].tolist() for one in found] == [[0], [5], [10], [15]]


def test_clips_stay_within_overlapping_segments(tmp_path: Path) -> None:
    write_video(tmp_path / "in" / "a.mp4", frames=20)
    write_video(tmp_path / "in" / "b.mp4", frames=20)
    how: dict[str, Any] = {"sample": "segment", "seconds": 0.4, "size": 24, "label_from": "none", "encode": "ffv1"}
    for name, hop, starts in (("half", 0.2, [0, 5, 10]), ("next", 0.4, [0])):
        build(tmp_path, name, hop=hop, **how)
        clips = open_dataset(tmp_path / name).clips(10, stride=10, by=None)
        found = sorted((clip["key"][:8], *clip["frame"].tolist()) for clip in clips)
        starts = starts if name == "half" else [0, 10]
        assert found == [(f"{item:08d}", *range(s, s + 10)) for item in range(2) for s in starts]
    (whole, *_) = open_dataset(tmp_path / "half").clips(None, by=None)
    assert whole["frame"].tolist() == list(range(10))


def test_a_sample_has_the_sound_of_its_whole_span(tmp_path: Path) -> None:
    write_talk(tmp_path / "in" / "v.mp4", fps=30, frames=60)
    how: dict[str, Any] = {"size": 16, "audio": 16000, "label_from": "none"}
    frames = build(tmp_path, "frames", **how)
    (video,) = build(tmp_path, "video", sample="item", **how)
    assert np.array_equal(video["audio"], np.concatenate([one["audio"] for one in frames]))
    assert video["audio_lengths"].tolist() == [len(one["audio"]) for one in frames]
    (even,) = build(tmp_path, "even", sample="item", resample_fps=25, **how)
    assert even["audio"].shape == (640 * int(even["frames"]),)
    assert "audio_lengths" not in even


def test_masks_become_videos_without_loss(tmp_path: Path) -> None:
    write_video(tmp_path / "in" / "v.mp4", frames=6)
    write_video(tmp_path / "masks" / "v.mp4", frames=6, number=3)
    (tmp_path / "t.csv").write_text("path,mask\nin/v.mp4,masks/v.mp4\n")
    options: dict[str, Any] = {"also": "mask", "size": 24, "resize": "exact", "also_resample": "nearest"}
    packer.build(tmp_path / "t.csv", tmp_path / "frames", **options, **QUIET)
    packer.build(tmp_path / "t.csv", tmp_path / "video", sample="item", **options, **QUIET)
    frames = read_samples(tmp_path / "frames")
    (video,) = read_samples(tmp_path / "video")
    assert np.array_equal(video["mask_video"], [one["mask_image"] for one in frames])
    assert video["mask_image_valid"].all()
    codecs = {field.name: field.codec.name for field in Layout(tmp_path / "video").load().schema}
    assert (codecs["video"], codecs["mask_video"]) == ("h264", "ffv1")


def test_a_video_other_than_the_first_may_have_its_own_encoding(tmp_path: Path) -> None:
    for folder in ("in", "masks"):
        write_video(tmp_path / folder / "v.mp4", frames=6)
    (tmp_path / "t.csv").write_text("path,ir\nin/v.mp4,masks/v.mp4\n")
    options: dict[str, Any] = {"also": "ir", "size": 24, "resize": "exact", "also_resample": "area", "fps": 25, **QUIET}
    packer.build(tmp_path / "t.csv", tmp_path / "out", sample="item", encode_field="ir_video=h264:30", **options)
    check_whole(tmp_path / "out")
    schema = Layout(tmp_path / "out").load().schema
    assert schema["ir_video"].codec == NamedConfig(
        "h264", {"quality": 30, "subsampling": "420", "gop": 4, "rate": 25.0}
    )
    assert schema["video"].codec.configuration["quality"] == 21
    (one,) = read_samples(tmp_path / "out")
    assert one["ir_video"].shape == one["video"].shape
    with raises(UsageError, option="encode_field", expected="a field with videos other than video (ir_video)"):
        packer.build(tmp_path / "t.csv", tmp_path / "no", sample="item", encode_field="no_video=ffv1", **options)


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_all_formats_hold_videos_and_conversions_keep_them(tmp_path: Path, format: str) -> None:
    how = write_faces(tmp_path)
    found = build(tmp_path, sample="track", format=format, **how)
    other = "npy" if format != "npy" else "lmdb"
    packer.convert(tmp_path / "out", tmp_path / "other", format=other, **QUIET)
    packer.convert(tmp_path / "other", tmp_path / "back", format=format, **QUIET)
    assert Layout(tmp_path / "back").load().digest == Layout(tmp_path / "out").load().digest
    for one, again in zip(found, read_samples(tmp_path / "other"), strict=True):
        assert np.array_equal(one["video"], again["video"])
        assert np.array_equal(one["landmarks"], again["landmarks"])


def test_a_dataset_of_tracks_grows(tmp_path: Path) -> None:
    how: dict[str, Any] = {"sample": "item", "size": 24, "label_from": "none"}
    write_video(tmp_path / "in" / "a.mp4", frames=9)
    build(tmp_path, **how)
    write_video(tmp_path / "in" / "b.mp4", frames=5, number=1)
    found = build(tmp_path, update=True, **how)
    assert [int(one["frames"]) for one in found] == [9, 5]
    build(tmp_path, "whole", **how)
    packer.merge([tmp_path / "out", tmp_path / "whole"], tmp_path / "merged", **QUIET)
    assert [int(one["frames"]) for one in read_samples(tmp_path / "merged")] == [9, 5, 9, 5]


def test_rejected_tracks_can_be_tried_again(tmp_path: Path) -> None:
    how: dict[str, Any] = {"sample": "item", "size": 24, "label_from": "none", "max_rejects": 1.0}
    write_video(tmp_path / "in" / "a.mp4", frames=9)
    write_video(tmp_path / "good.mp4", frames=5, number=1)
    (tmp_path / "in" / "b.mp4").write_bytes((tmp_path / "good.mp4").read_bytes()[:100])
    assert [int(one["frames"]) for one in build(tmp_path, **how)] == [9]
    (tmp_path / "in" / "b.mp4").write_bytes((tmp_path / "good.mp4").read_bytes())
    words = ("--retry-rejects", "--sample", "item", "--size", "24", "--label-from", "none", "--quiet")
    run_packer("build", tmp_path / "in", tmp_path / "out", *words, process=True)
    generations = check_whole(tmp_path / "out").generations
    assert [(one.kind, one.counts.samples, one.counts.rejected_items) for one in generations] == [
        ("build", 1, 0),
        ("retry", 1, 0),
    ]
    build(tmp_path, "whole", **how)
    found, expected = read_samples(tmp_path / "out"), read_samples(tmp_path / "whole")
    for one, other in zip(found, expected, strict=True):
        assert one["key"] == other["key"]
        assert np.array_equal(one["video"], other["video"])
        assert np.array_equal(one["time"], other["time"])


def test_columns_stay_single_and_intervals_mark_frames(tmp_path: Path) -> None:
    """Also in an update. A column may have the name of a field of videos only where samples are frames."""
    for name in "ab":
        write_video(tmp_path / f"{name}.mp4", frames=10)
    rows = [{"path": f"{name}.mp4", "fake": [[0.08, 0.2]], "weight": 0.5, "frames": 3} for name in "ab"]
    options: dict[str, Any] = {"root": tmp_path, "intervals": "fake", "size": 24, **QUIET}
    with raises(
        UsageError, option="sample", expected="a source without a column 'frames', which the build writes itself"
    ):
        packer.build(rows, tmp_path / "out", sample="item", **options)
    packer.build(rows, tmp_path / "images", **options)
    assert read_samples(tmp_path / "images")[0]["frames"] == 3
    for count in (1, 2):
        update = {"update": True} if count == 2 else {}
        packer.build(rows[:count], tmp_path / "out", sample="item", drop="frames", **options, **update)
        for one in read_samples(tmp_path / "out"):
            assert one["weight"] == 0.5
            assert np.flatnonzero(one["fake"]).tolist() == [2, 3, 4]


def test_an_image_is_a_video_of_one_frame(tmp_path: Path) -> None:
    write_image(tmp_path / "in" / "a.png", scene(1, (24, 24)))
    (found,) = build(tmp_path, sample="item", label_from="none", encode="ffv1")
    assert found["video"].shape == (1, 24, 24, 3)


def test_several_sizes_and_several_faces_are_rejected_by_name(tmp_path: Path) -> None:
    how = write_faces(tmp_path)
    result = run_packer(
        *("build", tmp_path / "in", tmp_path / "out", "--preset", "faces", "--boxes", how["boxes"], "--size", 32),
        *("--min-face", 20, "--sample", "item", "--engine", "inline", "--quiet"),
        expect=None,
    )
    assert "choose one face (--choose)" in result.stderr
    for number, size in enumerate([(24, 24), (24, 30)]):
        write_image(tmp_path / "folder" / "v" / f"{number}.png", scene(number, size))
    arguments = ("build", tmp_path / "folder", tmp_path / "out 2", "--frame-folders", 25, "--sample", "item")
    result = run_packer(*arguments, "--engine", "inline", "--quiet", "--label-from", "none", expect=None)
    assert "frames of one shape in a sample, found 24x24x3 and 30x24x3" in result.stderr
    assert "--resize exact" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--encode", "h264"), "add --sample track, item or segment"),
        (("--sample", "item", "--encode", "png"), "one of av1, ffv1, h264 with sample item"),
        (("--sample", "item", "--encode", "jpeg"), "one of av1, ffv1, h264 with sample item"),
        (("--sample", "frame", "--encode", "av1"), "add --sample track, item or segment"),
        (("--sample", "item", "--encode-field", "a_video=png"), "a_video: expected one of av1, ffv1, h264"),
        (("--sample", "item", "--encode-field", "a_video=h264:70"), "a quality of 0 to 51"),
        (("--sample", "item", "--encode-field", "a_video=ffv1:7"), "a quality only with av1 or h264"),
        (("--sample", "track"), "take --sample item for videos without faces"),
        (("--sample", "segment"), "the length of a piece"),
        (("--sample", "segment", "--seconds", "2", "--hop", "0.12"), "--hop: expected at least 0.125"),
        (("--seconds", "2"), "read only with sample segment"),
        (("--most-seconds", "2"), "read only with sample track or item"),
        (("--gop", "2"), "read only with encode"),
        (("--sample", "item", "--quality", "70"), "0 to 51 with encode h264"),
        (("--sample", "item", "--quality", "95"), "0 to 51 with encode h264"),
        (("--sample", "item", "--encode", "ffv1", "--quality", "7"), "read only with encode"),
        (("--sample", "item", "--subsampling", "422"), "420 or 444"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    (tmp_path / "in").mkdir()
    result = run_packer("build", tmp_path / "in", tmp_path / "out", *options, expect=2)
    assert message in result.stderr


def test_samples_of_a_packed_dataset_are_not_joined(tmp_path: Path) -> None:
    write_image(tmp_path / "in" / "a.png", scene(1, (24, 24)))
    build(tmp_path, label_from="none")
    result = run_packer("build", tmp_path / "out", tmp_path / "again", "--sample", "item", expect=2)
    assert f"convert {tmp_path / 'out'} OUT --sample item" in result.stderr
    run_packer("convert", tmp_path / "out", tmp_path / "videos", "--sample", "item")
    result = run_packer("build", tmp_path / "videos", tmp_path / "again", "--size", "20", expect=2)
    assert f"convert {tmp_path / 'videos'} OUT --sample frame" in result.stderr


def test_clips_of_tracks_are_those_of_frames(tmp_path: Path) -> None:
    how = write_faces(tmp_path, right=range(4, 18))
    build(tmp_path, "frames", encode="png", **how)
    build(tmp_path, "tracks", encode="ffv1", sample="track", **how)
    frames, tracks = (open_dataset(tmp_path / name) for name in ("frames", "tracks"))
    for options in (
        {"length": 4, "stride": 4},
        {"length": 4, "dilation": 3},
        {"length": None, "collate": "pad"},
        {"length": 16, "stride": None, "collate": "mirror"},
        {"length": 5, "dilation": "spread", "start": "middle"},
    ):
        expected, found = ({_place(clip): clip for clip in ds.clips(**options)} for ds in (frames, tracks))
        assert found.keys() == expected.keys()
        for place, clip in found.items():
            assert clip.keys() == expected[place].keys()
            for name, value in clip.items():
                if name != "key":
                    assert np.array_equal(value, expected[place][name]), name


def _place(clip: dict[str, Any]) -> tuple[int, int]:
    return int(clip["track"]), int(clip["frame"][0])


@pytest.mark.parametrize("options", [{}, {"sample": "segment", "seconds": 0.8, "hop": 0.4}])
def test_frames_are_encoded_as_they_come(options: dict[str, Any]) -> None:
    """No image outlives the next one, however long the sample is."""
    alive: list[weakref.ref[Any]] = []
    most = 0

    def frames() -> Iterator[dict[str, Any]]:
        nonlocal most
        report = ItemReport("v")
        for number in range(200):
            image = scene(number % 7, (32, 48))
            alive.append(weakref.ref(image))
            place = {"frame": number, "frame_position": number, "time": number / 25}
            yield {
                ITEM: Item(0, "v", None),
                REPORT: report,
                "source": "v",
                "image": image,
                "mask_image": image,
                **place,
            }
            del image
            most = max(most, sum(one() is not None for one in alive))

    samples = list(make_gathering(Recipe(**{"sample": "item", **options}))(frames()))
    assert [one["frames"] for one in samples] == ([200] if not options else [20] * 19)
    assert most <= 2


def test_samples_are_divided_by_their_encoded_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_video(tmp_path / "in" / "v.mp4", frames=20)
    (whole,) = build(tmp_path, sample="item", size=24, label_from="none", encode="ffv1")
    monkeypatch.setattr(gather, "MOST_BYTES", 6000)
    pieces = build(tmp_path, "divided", sample="item", size=24, label_from="none", encode="ffv1")
    assert len(pieces) > 2
    assert np.array_equal(np.concatenate([one["video"] for one in pieces]), whole["video"])
    assert sum(float(one["seconds"]) for one in pieces) == pytest.approx(float(whole["seconds"]), abs=0.05)
