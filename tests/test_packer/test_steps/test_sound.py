"""``--audio``: the sound of the frames of videos."""

import json
import random
import tarfile
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from support.builds import QUIET
from support.command import file_of, read_jsonl
from support.errors import raises
from support.media import photograph, write_image
from support.packed import check_whole, fingerprints, read_samples
from support.sound import CLICK_S, straight, write_talk

import packer
from packer.packed.browse.dataset import BrowsedDataset
from packer.packed.browse.tracks import sound_of, track_rows
from shardspec.errors import UsageError
from shardspec.formats import FORMATS
from shardspec.layout import Layout

RATE = 16000
EXACT = {"movie_timescale": "48000"}
"""Options of MP4 and MOV, which round the beginning of a stream to milliseconds by default."""


def build(source: Any, out: Path, **options: Any) -> list[dict[str, Any]]:
    packer.build(source, out, **{"audio": RATE, "encode": "png", "max_rejects": 1.0, **QUIET, **options})
    check_whole(out)
    return read_samples(out)


def joined(samples: Sequence[dict[str, Any]]) -> Any:
    return np.concatenate([sample["audio"] for sample in samples])


def lengths(samples: Sequence[dict[str, Any]]) -> list[int]:
    return [len(sample["audio"]) for sample in samples]


def valid(samples: Sequence[dict[str, Any]]) -> list[bool]:
    return [bool(sample["audio_valid"]) for sample in samples]


def test_sound_of_two_rates_is_not_merged(tmp_path: Path) -> None:
    write_talk(tmp_path / "in" / "v.mp4")
    for rate in (8000, 16000):
        build(tmp_path / "in", tmp_path / str(rate), audio=rate)
    with raises(UsageError, place=str(tmp_path / "16000")):
        packer.merge([tmp_path / "8000", tmp_path / "16000"], tmp_path / "both", progress=False)


@pytest.mark.parametrize(
    ("name", "codec", "rate", "offset"),
    [
        ("v.mp4", "aac", 48000, 0),
        ("v.mp4", "aac", 44100, 0),
        ("v.mp4", "aac", 48000, 0.5),
        ("v.mp4", "libmp3lame", 44100, 0),
        ("v.mkv", "libmp3lame", 48000, 0.25),
        ("v.mkv", "libopus", 48000, 0),
        ("v.webm", "libopus", 48000, 0),
        ("v.mov", "pcm_s16le", 44100, 0.1),
        ("v.avi", "pcm_s16le", 48000, 0),
        ("v.ts", "aac", 48000, 0.2),
    ],
)
def test_a_click_is_found_at_its_sample(tmp_path: Path, name: str, codec: str, rate: int, offset: float) -> None:
    options = EXACT if name[-3:] in ("mp4", "mov") else None
    path = write_talk(tmp_path / "in" / name, codec=codec, rate=rate, offset=offset, options=options)
    samples = build(tmp_path / "in", tmp_path / "out")
    found = joined(samples)
    assert lengths(samples) == [640] * 50
    assert found.dtype == np.int16
    assert np.abs(found.astype(np.int64)).argmax() == (CLICK_S + offset) * RATE
    assert read_jsonl(file_of(tmp_path / "out", "rejects.jsonl")) == []
    # Before the sound begins there is none; an encoder may begin a little earlier.
    first = valid(samples).index(True)
    assert offset * 25 - 3 <= first <= offset * 25 + 1
    assert all(valid(samples)[first:])
    if name != "v.ts":  # it begins with another time than 0
        whole, start = straight(path, RATE)
        at = round(start * RATE)
        assert np.array_equal(found[at:], whole[: len(found) - at])


@pytest.mark.parametrize(("fps", "rate"), [(30, RATE), (24, 44100), (Fraction(30000, 1001), RATE)])
@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_intervals_at_a_constant_rate_are_rounded_once(
    tmp_path: Path, fps: Fraction | int, rate: int, suffix: str
) -> None:
    write_talk(tmp_path / "in" / f"v{suffix}", fps=fps)
    samples = build(tmp_path / "in", tmp_path / "out", audio=rate)
    edges = [int(Fraction(i * rate) / fps + Fraction(1, 2)) for i in range(51)]
    assert lengths(samples) == np.diff(edges).tolist()
    assert np.abs(joined(samples).astype(np.int64)).argmax() == CLICK_S * rate
    assert Layout(tmp_path / "out").load().schema["audio"].shape == (None,)


@pytest.mark.parametrize("sampling", [{}, {"every": 7}, {"fps": 10.0}, {"resample_fps": 25.0}])
@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_a_variable_rate(tmp_path: Path, sampling: dict[str, Any], suffix: str) -> None:
    """Each interval lasts until the next sampled frame, and what they hold is the sound without a gap."""
    stamps = np.cumsum([0, *np.random.default_rng(1).integers(10, 70, 39)]).tolist()
    path = write_talk(
        tmp_path / "in" / f"v{suffix}", frames=40, stamps=stamps, codec="pcm_s16le"[: 9 * (suffix == ".mkv")] or "aac"
    )
    samples = build(tmp_path / "in", tmp_path / "out", **sampling)
    found = joined(samples)
    if "resample_fps" not in sampling:
        edges = [int(16 * stamps[int(sample["frame"])] + 0.5) for sample in samples]
        assert lengths(samples)[:-1] == np.diff(edges).tolist()
    else:
        assert set(lengths(samples)) == {640}
        assert len(samples) == -(-len(found) // 640)
    assert np.abs(found.astype(np.int64)).argmax() == CLICK_S * RATE
    whole, _ = straight(path, RATE)
    count = min(len(whole), len(found))
    assert np.array_equal(found[:count], whole[:count])
    assert len(found) >= 16 * stamps[-1]


@pytest.mark.parametrize("options", [{}, {"audio": None, "resample_fps": 25.0}])
def test_a_video_whose_frames_are_weeks_apart_is_rejected(tmp_path: Path, options: dict[str, Any]) -> None:
    write_talk(tmp_path / "in/far.mkv", codec="pcm_s16le", frames=3, stamps=[0, 40, 2 * 10**9])
    write_talk(tmp_path / "in/good.mkv", codec="pcm_s16le", frames=3)
    assert len(build(tmp_path / "in", tmp_path / "out", **options)) == 3
    (line,) = read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
    assert (line["kind"], line["item"]) == ("item", "far.mkv")


def test_stereo_becomes_mono(tmp_path: Path) -> None:
    seconds = np.arange(2 * 44100) / 44100
    wave = np.stack([0.5 * np.sin(2 * np.pi * 440 * seconds), np.zeros_like(seconds)])
    write_talk(tmp_path / "in" / "v.mov", codec="pcm_s16le", rate=44100, wave=wave)
    found = joined(build(tmp_path / "in", tmp_path / "out"))
    expected = 0.25 * 32767 * np.sin(2 * np.pi * 440 * np.arange(2 * RATE) / RATE)
    assert np.abs(found - expected)[100:-100].max() < 40


def test_a_gap_is_filled_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "in" / "v.mkv"
    write_talk(path, codec="pcm_s16le", hole=(0.25, 0.5))
    samples = build(tmp_path / "in", tmp_path / "out")
    found = joined(samples)
    assert np.abs(found.astype(np.int64)).argmax() == CLICK_S * RATE
    assert len(found) == 2 * RATE
    assert not found[4200:7900].any()
    assert found[:4000].any()
    assert [n for n, known in enumerate(valid(samples)) if not known] == [*range(6, 13)]
    (line,) = read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
    assert line["kind"] == "damage"
    assert line["reason"] == "sound: 1 gap of 0.250 s filled with zeros, the first 0.250 s after the first frame"


def shift_sound(source: Path, target: Path, by: float, jitter: float = 0.0, after: float = 0.5) -> Path:
    """A copy whose sound is later after a time, in seconds, and whose timestamps are inexact."""
    draw = random.Random(0)
    with av.open(str(source)) as whole, av.open(str(target), "w") as output:
        copies = {stream.index: output.add_stream_from_template(stream) for stream in whole.streams}
        for packet in whole.demux():
            if packet.size:
                if packet.stream.type == "audio" and packet.pts > 0:
                    late = (by if packet.pts * packet.time_base >= after else 0) + draw.uniform(-jitter, jitter)
                    packet.pts = packet.dts = packet.pts + round(late / packet.time_base)
                packet.stream = copies[packet.stream.index]
                output.mux(packet)
    return target


@pytest.mark.parametrize("by", [0.003, 0.008, -0.008])
@pytest.mark.parametrize(("suffix", "codec"), [(".mp4", "aac"), (".mkv", "aac"), (".mkv", "pcm_s16le")])
def test_a_shift_of_less_than_a_frame_of_sound_is_followed(tmp_path: Path, suffix: str, codec: str, by: float) -> None:
    source = write_talk(tmp_path / f"v{suffix}", codec=codec)
    (tmp_path / "in").mkdir()
    shift_sound(source, tmp_path / "in" / f"v{suffix}", by)
    found = joined(build(tmp_path / "in", tmp_path / "out"))
    assert abs(np.abs(found.astype(np.int64)).argmax() - (CLICK_S + by) * RATE) <= RATE // 1000
    assert ("1 gap of" in str(read_jsonl(file_of(tmp_path / "out", "rejects.jsonl")))) == (by > 0)


def test_a_small_shift_soon_after_a_jump_is_followed(tmp_path: Path) -> None:
    source = write_talk(tmp_path / "v.mkv", codec="pcm_s16le")
    (tmp_path / "in").mkdir()
    jumped = shift_sound(source, tmp_path / "jumped.mkv", 0.3, after=0.75)
    shift_sound(jumped, tmp_path / "in" / "v.mkv", 0.008, after=0.85 + 0.3)
    found = joined(build(tmp_path / "in", tmp_path / "out"))
    assert abs(np.abs(found.astype(np.int64)).argmax() - (CLICK_S + 0.308) * RATE) <= RATE // 1000


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_inexact_timestamps_do_not_cut_the_sound(tmp_path: Path, suffix: str) -> None:
    source = write_talk(tmp_path / f"v{suffix}")
    (tmp_path / "in").mkdir()
    shift_sound(source, tmp_path / "in" / f"v{suffix}", 0, jitter=0.006)
    found = joined(build(tmp_path / "in", tmp_path / "out"))
    assert np.abs(found.astype(np.int64)).argmax() == CLICK_S * RATE
    assert read_jsonl(file_of(tmp_path / "out", "rejects.jsonl")) == []


@pytest.mark.parametrize("options", [{"movflags": "frag_keyframe+empty_moov"}, {"use_editlist": "0"}])
def test_sound_that_begins_before_the_video_is_not_damage(tmp_path: Path, options: dict[str, str]) -> None:
    path = write_talk(tmp_path / "in" / "v.mp4", options=options)
    with av.open(str(path)) as container:
        begin = next(container.decode(video=0)).time
    assert begin is not None
    assert begin > 0
    samples = build(tmp_path / "in", tmp_path / "out", resample_fps=25.0)
    assert read_jsonl(file_of(tmp_path / "out", "rejects.jsonl")) == []
    assert all(valid(samples)[:48])


def test_damaged_sound_is_reported_and_the_same_each_time(tmp_path: Path) -> None:
    path = write_talk(tmp_path / "in" / "v.mp4")
    whole = joined(build(tmp_path / "in", tmp_path / "whole"))
    with av.open(str(path)) as container:
        packets = [(p.pos, p.size) for p in container.demux(audio=0) if p.size]
    content, noise = bytearray(path.read_bytes()), np.random.default_rng(0)
    for position, size in packets[20:26]:
        assert position is not None
        content[position : position + size] = noise.bytes(size)
    path.write_bytes(content)
    samples = build(tmp_path / "in", tmp_path / "out")
    found = joined(samples)
    assert len(found) == len(whole)
    assert np.array_equal(found[: 18 * 341], whole[: 18 * 341])
    # The noise that AAC's decoder makes depends on what it has decoded before.
    assert np.abs(found.astype(np.int64)).argmax() == CLICK_S * RATE
    assert not all(valid(samples))
    (line,) = read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
    assert line["kind"] == "damage"
    assert "did not decode" in line["reason"]
    assert [int(sample["frame"]) for sample in samples] == [*range(50)]
    build(tmp_path / "in", tmp_path / "again")
    assert fingerprints(tmp_path / "again") == fingerprints(tmp_path / "out")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Videos with and without sound, and a folder of frames."""
    root = tmp_path_factory.mktemp("sound")
    write_talk(root / "a.mp4")
    write_talk(root / "b.mkv", codec="libopus", fps=30)
    write_talk(root / "mute.mp4", codec=None)
    for number in range(3):
        write_image(root / "frames" / f"{number}.png", photograph("coffee"))
    return root


HOW = {"size": 48, "resize": "exact", "frame_folders": 25.0, "resample_fps": 25.0}


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_every_format_stores_sound(mixed: Path, tmp_path: Path, format: str) -> None:
    samples = build(mixed, tmp_path / "out", format=format, **HOW)
    field = Layout(tmp_path / "out").load().schema["audio"]
    assert (field.dtype, field.shape) == ("<i2", (640,))
    assert Layout(tmp_path / "out").load().generations[0].recipe["audio"] == RATE
    by_source: dict[str, list[dict[str, Any]]] = {}
    for sample in samples:
        by_source.setdefault(str(sample["source"]), []).append(sample)
    assert {name: len(found) for name, found in by_source.items()} == {
        "a.mp4": 50, "b.mkv": 42, "mute.mp4": 50, "frames": 3
    }  # fmt: skip
    for name, found in by_source.items():
        assert set(lengths(found)) == {640}
        assert set(valid(found)[:40]) == {name in ("a.mp4", "b.mkv")}
        assert joined(found).any() == (name in ("a.mp4", "b.mkv"))
    assert np.abs(joined(by_source["b.mkv"]).astype(np.int64)).argmax() == CLICK_S * RATE


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_items_without_sound_are_rejected_on_request(mixed: Path, tmp_path: Path) -> None:
    samples = build(mixed, tmp_path / "out", require_audio=True, **HOW)
    assert {str(sample["source"]) for sample in samples} == {"a.mp4", "b.mkv"}
    rejects = {line["item"]: line["reason"] for line in read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))}
    expected = "expected sound, which --require-audio asks for, found "
    assert rejects == {
        "frames": f"{expected}a folder of frames",
        "mute.mp4": f"{expected}a video without a stream of sound",
    }


@pytest.mark.parametrize("rate", [None, 25.0])
def test_an_image_has_no_sound(tmp_path: Path, rate: float | None) -> None:
    write_image(tmp_path / "in" / "a.png", photograph("chelsea"))
    write_talk(tmp_path / "in" / "b.mp4", frames=2)
    samples = build(tmp_path / "in", tmp_path / "out", resample_fps=rate)
    assert valid(samples) == [False, True, True]
    assert lengths(samples) == [0 if rate is None else 640, 640, 640]
    build(tmp_path / "in", tmp_path / "rejects", require_audio=True)
    (reject,) = read_jsonl(file_of(tmp_path / "rejects", "rejects.jsonl"))
    assert reject["reason"] == "expected sound, which --require-audio asks for, found an image"


def test_the_schema_does_not_depend_on_what_comes_first(tmp_path: Path) -> None:
    """A dataset of videos at 25 frames per second takes one at 30 later."""
    write_talk(tmp_path / "in" / "a.mp4")
    build(tmp_path / "in", tmp_path / "out", format="npy")
    before = Layout(tmp_path / "out").load().schema
    write_talk(tmp_path / "in" / "b.mp4", fps=30)
    samples = build(tmp_path / "in", tmp_path / "out", format="npy", update=True)
    assert len(samples) == 100
    assert Layout(tmp_path / "out").load().schema == before
    assert before["audio"].shape == (None,)


def test_every_face_keeps_the_sound_of_its_frame(tmp_path: Path) -> None:
    path = write_talk(tmp_path / "in" / "v.mp4", frames=10)
    rows = [
        {"path": path.name, "frame": n, "x0": x, "y0": 2, "x1": x + 24, "y1": 40} for n in range(10) for x in (2, 34)
    ]
    (tmp_path / "boxes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    faces = {"preset": "faces", "size": 32, "min_face": 20, "boxes": str(tmp_path / "boxes.jsonl")}
    samples = build(tmp_path / "in", tmp_path / "out", **faces)
    assert len(samples) == 20
    frames = build(tmp_path / "in", tmp_path / "frames")
    for track in (0, 1):
        of_track = [sample for sample in samples if int(sample["track"]) == track]
        assert np.array_equal(joined(of_track), joined(frames))


def test_videos_in_an_archive(tmp_path: Path) -> None:
    path = write_talk(tmp_path / "in" / "v.mp4")
    with tarfile.open(tmp_path / "videos.tar", "w") as archive:
        archive.add(path, "v.mp4")
    alone, packed = build(tmp_path / "in", tmp_path / "alone"), build(tmp_path / "videos.tar", tmp_path / "out")
    assert np.array_equal(joined(alone), joined(packed))
    assert all(valid(packed))


def test_calls_that_are_refused(tmp_path: Path) -> None:
    path = write_talk(tmp_path / "in" / "v.mp4", frames=3)
    with raises(
        UsageError,
        option="audio",
        expected="frames that follow one another: every, fps or resample_fps",
        found="frames",
    ):
        build(tmp_path / "in", tmp_path / "out", frames=4)
    with raises(UsageError, option="audio", found="one", hint="leave it out with `drop`, or rename it"):
        build([{"path": str(path), "audio": "v.wav"}], tmp_path / "out", root=str(tmp_path))
    build(tmp_path / "in", tmp_path / "out")
    with raises(UsageError, option="audio"):
        build(tmp_path / "out", tmp_path / "again", audio=8000)


@pytest.mark.parametrize("sampling", [{}, {"resample_fps": 50.0}])
def test_the_sound_of_a_track_has_no_gaps(tmp_path: Path, sampling: dict[str, Any]) -> None:
    write_talk(tmp_path / "in" / "v.mkv", fps=30)
    samples = build(tmp_path / "in", tmp_path / "out", **sampling)
    dataset = BrowsedDataset(tmp_path / "out")
    sound = sound_of(dataset, track_rows(dataset, 3))
    assert sound is not None
    assert sound.rate == RATE
    assert np.array_equal(sound.samples, joined(samples))


@pytest.mark.parametrize("recipe", [{"audio": 10**10}, {"resample_fps": "25"}])
def test_a_manifest_with_an_impossible_rate_is_survived(tmp_path: Path, recipe: dict[str, Any]) -> None:
    write_talk(tmp_path / "in" / "v.mkv")
    build(tmp_path / "in", tmp_path / "out")
    path = Layout(tmp_path / "out").manifest
    document = json.loads(path.read_text())
    document["generations"][0]["recipe"] |= recipe
    del document["sha256"]
    path.write_text(json.dumps(document))
    found = sound_of(BrowsedDataset(tmp_path / "out"), [0, 40])
    assert found is None or len(found.samples) == 41 * 640
