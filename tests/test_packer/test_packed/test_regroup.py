"""``convert --sample``: frames of a packed dataset become tracks or videos, and these become frames."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builds import QUIET
from support.command import file_of, read_jsonl, run_packer
from support.media import FAST_START, scene, write_image, write_video
from support.packed import check_whole, fingerprints, read_samples
from support.sound import write_talk

import packer
from readers import open_dataset
from shardspec.errors import TooManyRejectsError
from shardspec.layout import Layout

LEFT = {"x0": 5, "y0": 5, "x1": 35, "y1": 40}
RIGHT = {"x0": 60, "y0": 5, "x1": 90, "y1": 40}


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Faces of two videos, with masks and columns, a gap in one track, and a damaged video."""
    root = tmp_path_factory.mktemp("frames")
    rows = []
    for number, name in enumerate("ab"):
        write_video(root / "real" / f"{name}.mp4", frames=20, container=FAST_START, number=number)
        write_video(root / "masks" / f"{name}.mp4", frames=20, container=FAST_START, number=5 + number)
        rows.append(
            {"path": f"real/{name}.mp4", "mask": f"masks/{name}.mp4", "person": f"p{name}", "weight": number / 2}
        )
    (root / "real" / "c.mp4").write_bytes(b"no video")
    rows.append({"path": "real/c.mp4", "mask": "masks/a.mp4", "person": "pc", "weight": 7.0})
    (root / "t.jsonl").write_text("".join(json.dumps(row | {"label": row["person"] == "pb"}) + "\n" for row in rows))
    boxes = [("a", LEFT, range(20)), ("a", RIGHT, range(4, 18)), ("b", LEFT, [*range(6), *range(9, 20)])]
    lines = [{"path": f"real/{name}.mp4", "frame": f, **box} for name, box, found in boxes for f in found]
    (root / "boxes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root


def build(root: Path, out: Path, **options: Any) -> list[dict[str, Any]]:
    how = {"preset": "faces", "size": 32, "min_face": 20, "boxes": root / "boxes.jsonl", "also": "mask", **options}
    packer.build(root / "t.jsonl", out, max_rejects=1.0, fill=1, **QUIET, **how)
    check_whole(out)
    return read_samples(out)


def convert(source: Path, out: Path, sample: str, **options: Any) -> list[dict[str, Any]]:
    packer.convert(source, out, sample=sample, **QUIET, **options)
    check_whole(out)
    return read_samples(out)


def assert_equal(found: list[dict[str, Any]], expected: list[dict[str, Any]], left_out: tuple[str, ...] = ()) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() - {*left_out} == other.keys() - {*left_out}
        for name in one.keys() - {*left_out}:
            assert np.array_equal(one[name], other[name]), name
            assert np.asarray(one[name]).dtype == np.asarray(other[name]).dtype, name


def test_tracks_of_frames_are_those_of_a_build_and_become_the_frames_again(frames: Path, tmp_path: Path) -> None:
    build(frames, tmp_path / "frames", encode="png")
    direct = build(frames, tmp_path / "direct", encode="ffv1", sample="track")
    tracks = convert(tmp_path / "frames", tmp_path / "tracks", "track", encode="ffv1")
    assert [int(one["frames"]) for one in tracks] == [14, 20, 6, 11]
    assert_equal(tracks, direct, left_out=("frame_key",))
    assert isinstance(tracks[0]["person"], str)
    assert tracks[0]["weight"].shape == ()
    convert(tmp_path / "tracks", tmp_path / "back", "frame", encode="png")
    before, after = (fingerprints(tmp_path / name) for name in ("frames", "back"))
    del before["manifest.json"], after["manifest.json"]
    assert after == before  # shards, index, items and rejects
    assert Layout(tmp_path / "back").load().schema == Layout(tmp_path / "frames").load().schema
    from_direct = convert(tmp_path / "direct", tmp_path / "of direct", "frame", encode="png")
    assert_equal(from_direct, read_samples(tmp_path / "frames"))


def test_reports_stay_and_items_count_the_new_samples(frames: Path, tmp_path: Path) -> None:
    build(frames, tmp_path / "frames")
    convert(tmp_path / "frames", tmp_path / "tracks", "track")
    for name in ("items.jsonl", "rejects.jsonl"):
        old, new = (read_jsonl(file_of(tmp_path / root, name)) for root in ("frames", "tracks"))
        assert [{**line, "samples": 0} for line in new] == [{**line, "samples": 0} for line in old]
    assert [line["samples"] for line in read_jsonl(file_of(tmp_path / "tracks", "items.jsonl"))] == [2, 2, 0]
    manifest = Layout(tmp_path / "tracks").load()
    (generation,) = manifest.generations
    assert generation.recipe["sample"] == "track"
    assert generation.recipe["inputs"][0]["digest"] == Layout(tmp_path / "frames").load().digest


def test_reports_of_items_that_were_samples_come_back(frames: Path, tmp_path: Path) -> None:
    build(frames, tmp_path / "faces")
    packer.build(tmp_path / "faces", tmp_path / "frames", size=24, also_resample="area", **QUIET)
    convert(tmp_path / "frames", tmp_path / "tracks", "track")
    tracks = read_jsonl(file_of(tmp_path / "tracks", "items.jsonl"))
    assert [sum(int(line["samples"]) for line in tracks if line["item"].startswith(f"{n:08d}")) for n in (0, 1)] == [
        2,
        2,
    ]
    convert(tmp_path / "tracks", tmp_path / "back", "frame")
    for name in ("items.jsonl", "rejects.jsonl"):
        old, new = (file_of(tmp_path / root, name).read_bytes() for root in ("frames", "back"))
        assert new == old


def test_lossy_encodings_keep_everything_but_the_pixels(frames: Path, tmp_path: Path) -> None:
    before = build(frames, tmp_path / "frames")
    convert(tmp_path / "frames", tmp_path / "tracks", "track", quality=10)
    after = convert(tmp_path / "tracks", tmp_path / "back", "frame")
    assert_equal(after, before, left_out=("image",))
    for one, other in zip(after, before, strict=True):
        assert np.abs(one["image"].astype(int) - other["image"]).mean() < 8


def test_clips_of_converted_tracks_are_those_of_the_frames(frames: Path, tmp_path: Path) -> None:
    build(frames, tmp_path / "frames", encode="png")
    convert(tmp_path / "frames", tmp_path / "tracks", "track", encode="ffv1", format="npy")
    one, other = (open_dataset(tmp_path / name).clips(5, dilation=2) for name in ("frames", "tracks"))
    key = lambda clip: (clip["source"], int(clip["track"]), int(clip["frame"][0]))  # noqa: E731
    expected, found = ({key(clip): clip for clip in clips} for clips in (one, other))
    assert found.keys() == expected.keys()
    for place, clip in found.items():
        assert_equal([clip], [expected[place]])


def test_the_order_of_rows_workers_and_merges_do_not_matter(frames: Path, tmp_path: Path) -> None:
    build(frames, tmp_path / "frames", encode="png")
    build(frames, tmp_path / "mixed", encode="png", shuffle=3)
    expected = convert(tmp_path / "frames", tmp_path / "tracks", "track", encode="ffv1")
    assert_equal(convert(tmp_path / "mixed", tmp_path / "of mixed", "track", encode="ffv1"), expected)
    words = ("--sample", "track", "--encode", "ffv1", "--workers", 3, "--quiet")
    run_packer("convert", tmp_path / "frames", tmp_path / "by workers", *words, process=True)
    digests = {Layout(tmp_path / name).load().digest for name in ("tracks", "by workers")}
    assert len(digests) == 1
    again = run_packer("convert", tmp_path / "frames", tmp_path / "by workers", *words)
    assert "finished already" in again.stdout
    packer.merge([tmp_path / "frames", tmp_path / "mixed"], tmp_path / "merged", **QUIET)
    both = convert(tmp_path / "merged", tmp_path / "of merged", "track", encode="ffv1")
    assert_equal(both[4:], expected, left_out=("key", "frame_key"))
    assert [key[:8] for key in (one["key"] for one in both)] == [f"0000000{item}" for item in (0, 0, 1, 1, 3, 3, 4, 4)]


def test_frames_that_were_left_out_divide_tracks(frames: Path, tmp_path: Path) -> None:
    build(frames, tmp_path / "frames")
    packer.copy(tmp_path / "frames", tmp_path / "part", where="frame != 10 and frame < 15", progress=False)
    tracks = convert(tmp_path / "part", tmp_path / "tracks", "track", most_seconds=0.16)
    found = [(one["source"][-5], int(one["track"]), one["frame"].tolist()) for one in tracks]
    assert ("a", 0, [0, 1, 2, 3]) in found
    assert ("a", 0, [8, 9]) in found
    assert ("a", 0, [11, 12, 13, 14]) in found
    assert sum(map(len, (numbers for *_, numbers in found))) == len(read_samples(tmp_path / "part"))


@pytest.mark.parametrize("options", [{"fps": 25}, {"resample_fps": 20}])
def test_sound_and_intervals_go_there_and_back(tmp_path: Path, options: dict[str, Any]) -> None:
    write_talk(tmp_path / "v.mp4", fps=30, frames=60)
    rows = [{"path": "v.mp4", "fake": [[0.5, 1.0]], "text": "a b"}]
    how: dict[str, Any] = {"root": tmp_path, "size": 16, "audio": 16000, "intervals": "fake", **options, **QUIET}
    packer.build(rows, tmp_path / "frames", encode="png", **how)
    packer.build(rows, tmp_path / "direct", encode="ffv1", sample="item", **how)
    found = convert(tmp_path / "frames", tmp_path / "videos", "item", encode="ffv1")
    assert_equal(found, read_samples(tmp_path / "direct"), left_out=("frame_key",))
    back = convert(tmp_path / "videos", tmp_path / "back", "frame", encode="png")
    assert_equal(back, read_samples(tmp_path / "frames"))
    codecs = [Layout(tmp_path / name).load().schema["video"].codec for name in ("videos", "direct")]
    assert codecs[0] == codecs[1]


def add_words(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A text, an object and a list of each frame."""
    for sample in samples:
        number = int(sample["frame"])
        yield {**sample, "word": f"w{number}", "facts": {"n": number}, "list": [number, "x"]}


def test_texts_and_objects_of_frames_stay_with_their_frames(tmp_path: Path) -> None:
    write_video(tmp_path / "in" / "v.mp4", frames=8)
    how: dict[str, Any] = {"steps": ["decode", add_words], "label_from": "none", **QUIET}
    packer.build(tmp_path / "in", tmp_path / "frames", encode="png", **how)
    packer.build(tmp_path / "in", tmp_path / "direct", encode="ffv1", sample="item", **how)
    (direct,) = read_samples(tmp_path / "direct")
    assert direct["word"] == [f"w{number}" for number in range(8)]
    assert direct["facts"][3] == {"n": 3}
    ds = open_dataset(tmp_path / "direct")
    (clip, *_) = ds.clips(4, by=None)
    assert clip["word"] == ["w0", "w1", "w2", "w3"]
    assert clip["list"][2] == [2, "x"]
    found = convert(tmp_path / "frames", tmp_path / "videos", "item", encode="ffv1")
    assert_equal(found, [direct], left_out=("frame_key",))
    assert_equal(
        convert(tmp_path / "videos", tmp_path / "back", "frame", encode="png"), read_samples(tmp_path / "frames")
    )


def add_bytes(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for sample in samples:
        yield {**sample, "blob": b"x"}


def test_bytes_of_frames_are_refused(tmp_path: Path) -> None:
    write_video(tmp_path / "in" / "v.mp4", frames=3)
    with pytest.raises(TooManyRejectsError, match="numbers, texts or arrays in the field 'blob'"):
        packer.build(tmp_path / "in", tmp_path / "out", steps=["decode", add_bytes], sample="item", **QUIET)


def test_what_cannot_be_converted_is_one_line(tmp_path: Path) -> None:
    for number, size in enumerate([(24, 24), (24, 30)]):
        write_image(tmp_path / "sizes" / "v" / f"{number}.png", scene(number, size))
        write_image(tmp_path / "images" / f"{number}.png", scene(number, (24, 24)))
    packer.build(tmp_path / "sizes", tmp_path / "several", frame_folders=25, label_from="none", **QUIET)
    packer.build(tmp_path / "images", tmp_path / "stills", label_from="none", **QUIET)
    writer = packer.Writer(tmp_path / "written", progress=False)
    with writer:
        writer.write(image=scene(1, (24, 24)))
    out = tmp_path / "out"
    for arguments, status, message in (
        ((tmp_path / "several", out, "--sample", "item"), 1, "frames of one shape in a sample"),
        ((tmp_path / "stills", out, "--sample", "track"), 2, "--sample item is for videos without faces"),
        ((tmp_path / "stills", out, "--sample", "frame"), 2, "a dataset of tracks or videos"),
        ((tmp_path / "written", out, "--sample", "item"), 2, "frame_position"),
        ((tmp_path / "stills", out, "--sample", "item", "--encode", "png"), 2, "av1, ffv1, h264"),
        ((tmp_path / "stills", out, "--format", "npy", "--gop", "2"), 2, "read only with"),
        ((tmp_path / "stills", out), 2, "--format"),
    ):
        result = run_packer("convert", *arguments, "--quiet", expect=status)
        assert message in result.stderr, result.stderr
        assert len(result.stderr.splitlines()) == 1, result.stderr


def test_segments_that_overlap_have_no_frames(tmp_path: Path) -> None:
    write_video(tmp_path / "in" / "v.mp4", frames=20)
    how: dict[str, Any] = {"sample": "segment", "seconds": 0.4, "hop": 0.2, "size": 24, "label_from": "none"}
    packer.build(tmp_path / "in", tmp_path / "pieces", **how, **QUIET)
    result = run_packer("convert", tmp_path / "pieces", tmp_path / "out", "--sample", "frame", "--quiet", expect=1)
    assert "samples that overlap" in result.stderr
