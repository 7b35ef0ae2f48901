"""Codecs of videos: what they encode comes back, by number, and damage is a `CodecError`."""

import gc
import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import av
import cv2
import numpy as np
import pytest
from skimage import data as photographs
from support.errors import raises

from shardspec.codecs import CODECS, codec_for, video_types
from shardspec.errors import CodecError
from shardspec.schema import Field, NamedConfig

VIDEOS = tuple(video_types())


def video_field(codec: str, shape: tuple[int | None, ...] = (None, None, None, 3), **configuration: Any) -> Field:
    """A field of encoded videos."""
    return Field("video", "bytes", "|u1", shape, NamedConfig(codec, configuration))


def moving(frames: int = 12, height: int = 64, width: int = 72) -> np.ndarray:
    """A window that moves over a photograph, (T, H, W, 3)."""
    photograph = photographs.astronaut()
    return np.stack([photograph[40 + i : 40 + i + height, 180 + i : 180 + i + width] for i in range(frames)])


def noise_of(found: np.ndarray, expected: np.ndarray) -> float:
    """Root of the mean square difference, in levels."""
    return float(np.sqrt(np.mean((found.astype(float) - expected) ** 2)))


@pytest.mark.parametrize("name", VIDEOS)
def test_videos_round_trip(name: str) -> None:
    codec, video = codec_for(video_field(name)), moving()
    encoded = bytes(codec.encode(video))
    decoded = codec.decode(encoded)
    assert decoded.shape == video.shape
    assert noise_of(decoded, video) == 0 if name == "ffv1" else 0 < noise_of(decoded, video) < 6
    out = np.zeros_like(video)
    assert codec.decode(memoryview(encoded), out) is out
    assert np.array_equal(out, decoded)
    assert len(encoded) < video.nbytes


@pytest.mark.parametrize("name", VIDEOS)
def test_equal_videos_give_equal_bytes_in_any_thread(name: str) -> None:
    codec, video = codec_for(video_field(name)), moving()
    with ThreadPoolExecutor(3) as pool:
        found = set(map(bytes, pool.map(codec.encode, [video] * 6)))
    assert len(found) == 1


@pytest.mark.parametrize("name", VIDEOS)
def test_frames_are_decoded_by_number(name: str) -> None:
    codec, video = codec_for(video_field(name)), moving(30)
    encoded = codec.encode(video)
    whole = codec.decode(encoded)
    for numbers in ([0], [29], [13, 14, 15], [20, 3, 3, 29], list(range(30))[::-1], []):
        assert np.array_equal(codec.decode_frames(encoded, numbers), whole[numbers])
    out = np.zeros((6, *video.shape[1:]), np.uint8)
    codec.decode_frames(encoded, [5, 9], out, [4, 1])
    assert np.array_equal(out[[4, 1]], whole[[5, 9]])
    assert not out[[0, 2, 3, 5]].any()
    with raises(CodecError, expected="frames 0 to 29", found="3 to 30"):
        codec.decode_frames(encoded, [3, 30])


@pytest.mark.parametrize("name", VIDEOS)
def test_other_libraries_open_a_value_and_find_its_key_frames(name: str, tmp_path: Any) -> None:
    gop = 1 if name == "ffv1" else 5
    codec, video = codec_for(video_field(name, gop=gop, rate=25)), moving(17)
    encoded = bytes(codec.encode(video))
    with av.open(io.BytesIO(encoded)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        assert container.streams.video[0].average_rate == 25
    assert noise_of(np.stack(frames), codec.decode(encoded)) < 1.5  # other rounding of colours
    with av.open(io.BytesIO(encoded)) as container:
        keys = [n for n, packet in enumerate(container.demux(video=0)) if packet.size and packet.is_keyframe]
    assert keys == list(range(0, 17, gop))
    path = tmp_path / f"value{CODECS[name].video.suffix}"
    path.write_bytes(encoded)
    if name != "av1":  # OpenCV's wheel has no software decoder of it
        capture = cv2.VideoCapture(str(path))
        assert sum(capture.read()[0] for _ in range(17)) == 17


@pytest.mark.parametrize("name", VIDEOS)
def test_no_version_of_a_library_is_in_the_bytes(name: str) -> None:
    encoded = bytes(codec_for(video_field(name)).encode(moving()))
    for text in (b"x264 - core", b"Lavc6", b"Lavf6"):
        assert text not in encoded


@pytest.mark.parametrize("name", VIDEOS)
def test_damage_is_an_error_and_spoils_no_later_video(name: str) -> None:
    codec = codec_for(video_field(name))
    encoded = bytes(codec.encode(moving()))
    whole, rng = codec.decode(encoded), np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(encoded)
        damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
        with pytest.raises(CodecError, match="field 'video'"):
            codec.decode(bytes(damaged))
    for size in (0, 1, 40, len(encoded) // 2, len(encoded) - 1):
        with pytest.raises(CodecError, match="field 'video'"):
            codec.decode(encoded[:size])
    for junk in (b"junk" * 100, bytes(300), encoded + b"more"):
        with pytest.raises(CodecError, match="field 'video'"):
            codec.decode(junk)
    assert np.array_equal(codec.decode(encoded), whole)


@pytest.mark.parametrize("name", VIDEOS)
def test_a_frame_may_last_hours(name: str) -> None:
    codec = codec_for(video_field(name, rate=1e-5))
    assert codec.decode(codec.encode(moving(3))).shape == (3, 64, 72, 3)


@pytest.mark.parametrize("name", VIDEOS)
def test_what_is_no_video_of_the_field_is_refused(name: str) -> None:
    codec = codec_for(video_field(name, (None, 64, 72, 3)))
    for value in (moving()[0], moving()[:0], moving().astype(np.float32), moving(height=66), "text", None):
        with pytest.raises(CodecError, match="field 'video'"):
            codec.encode(value)
    other = codec_for(video_field(name)).encode(moving(height=80))
    with raises(CodecError, found="one of 72 x 80 pixels"):
        codec.decode(other)
    with raises(CodecError, place="field 'video'"):
        codec.decode(codec.encode(moving()), np.empty((3, 64, 72, 3), np.uint8))


@pytest.mark.parametrize("name", VIDEOS)
def test_one_frame_is_a_video(name: str) -> None:
    codec = codec_for(video_field(name))
    assert codec.shape(codec.encode(moving(1))) == (1, 64, 72, 3)


@pytest.mark.parametrize("name", VIDEOS)
def test_a_writer_that_is_abandoned_prints_nothing(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    writer = codec_for(video_field(name)).writer()
    writer.add(moving(1)[0])
    del writer
    gc.collect()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", VIDEOS)
def test_sides_may_be_odd(name: str) -> None:
    codec, video = codec_for(video_field(name)), moving(height=63, width=71)
    assert noise_of(codec.decode(codec.encode(video)), video) < 8


def test_options_change_size_and_loss() -> None:
    video = moving(16)

    def encode(**configuration: Any) -> tuple[int, float]:
        codec = codec_for(video_field("h264", **configuration))
        encoded = codec.encode(video)
        return len(encoded), noise_of(codec.decode(encoded), video)

    fine, coarse = encode(quality=10), encode(quality=30)
    assert fine[0] > coarse[0]
    assert fine[1] < coarse[1]
    assert encode(gop=1)[0] > encode(gop=16)[0]
    assert encode(quality=10, subsampling="444")[1] < fine[1]


def test_a_field_of_videos_must_be_one() -> None:
    with pytest.raises(ValueError, match=r"shape \(T, H, W, 3\) for codec h264"):
        video_field("h264", (None, None, 3))
