"""Frames are numbered as they are shown, whatever the container says of their times, and nothing is called missing."""

import io
import math
import re
import struct
from fractions import Fraction
from itertools import pairwise

import av
import numpy as np
import pytest
from PIL import Image
from support.video_files import NOT_CODED, number_shown, pack_bitstream, stripes, write_numbered

from packer.vision.decode.sampling import Sampling
from packer.vision.decode.video import VideoReader


def read(path, **sampling):
    """The number that each frame shows with its index, and the damage."""
    with VideoReader(path, Sampling(**(sampling or {"every": 1}))) as reader:
        return [(number_shown(frame.image), frame.index) for frame in reader], reader.damage


def assert_numbered(path, count=30):
    """Every way of sampling takes the frames that it names."""
    wanted = {
        "every": (7, range(0, count, 7)),
        "frames": (5, [(2 * i + 1) * count // 10 for i in range(5)]),
        "at": ((2, 3, 9), (2, 3, 9)),
        "fps": (5, range(0, count, 5)),
    }
    assert read(path) == ([(n, n) for n in range(count)], None)
    for option, (value, indices) in wanted.items():
        assert read(path, **{option: value}) == ([(n, n) for n in indices], None), option
    keyframes, damage = read(path, keyframes=True)
    assert keyframes
    assert all(number == index for number, index in keyframes)
    assert damage is None
    for rate in (20, 40):
        ticks = [Fraction(n, rate) for n in range(math.ceil(count * rate / 25))]
        nearest = [min(range(count), key=lambda n: abs(Fraction(n, 25) - at)) for at in ticks]
        assert read(path, resample_fps=rate) == ([(n, n) for n in nearest], None)
    with VideoReader(path, Sampling(resample_fps=40)) as reader:
        assert [(frame.position, frame.span) for frame in reader] == [
            (n, (n / 40, (n + 1) / 40)) for n in range(len(ticks))
        ]
    with VideoReader(path, Sampling(every=7)) as reader:
        spans = [frame.span for frame in reader]
    edges = [*range(0, count, 7), count]
    assert np.allclose(spans, [*pairwise(edges)] / np.float64(25), atol=1e-9)


@pytest.mark.parametrize(
    ("suffix", "codec", "options", "muxer"),
    [
        (".avi", "libx264", {"bf": "0"}, None),
        (".avi", "libx264", {"bf": "1"}, None),
        (".avi", "libx264", {"bf": "2"}, None),
        (".avi", "libx264", {"bf": "3", "b-pyramid": "normal"}, None),
        (".asf", "libx264", {}, None),
        (".flv", "libx264", {}, None),
        (".avi", "mpeg4", {}, None),
        (".avi", "mpeg2video", {}, None),
        (".mpg", "mpeg1video", {}, "mpeg1video"),
        (".mpg", "mpeg2video", {}, "mpeg2video"),
    ],
)
def test_frames_in_a_container_without_presentation_times(tmp_path, suffix, codec, options, muxer):
    assert_numbered(write_numbered(tmp_path / f"v{suffix}", codec=codec, options=options, muxer=muxer))


def test_frames_of_an_mp4_without_composition_times(tmp_path):
    path = write_numbered(tmp_path / "v.mp4")
    path.write_bytes(path.read_bytes().replace(b"ctts", b"free").replace(b"elst", b"free"))
    assert_numbered(path)


@pytest.mark.parametrize("b_frames", [1, 2])
def test_frames_of_a_packed_bitstream(tmp_path, b_frames):
    plain = write_numbered(tmp_path / "v.avi", codec="mpeg4", options={"bf": str(b_frames), "b_strategy": "0"})
    assert_numbered(pack_bitstream(plain, tmp_path / "packed.avi"))


def test_mpeg4_images_that_are_not_coded_are_not_frames(tmp_path):
    plain, path = write_numbered(tmp_path / "v.avi", codec="mpeg4", options={"bf": "0"}), tmp_path / "dropped.avi"
    with av.open(str(plain)) as source, av.open(str(path), "w") as output:
        copy = output.add_stream_from_template(source.streams.video[0])
        contents = [(bytes(packet), packet.is_keyframe) for packet in source.demux(video=0) if packet.size]
        for dropped in (20, 8, 7):
            contents.insert(dropped, (NOT_CODED, False))
        for number, (content, key) in enumerate(contents):
            packet = av.Packet(content)
            packet.stream, packet.time_base, packet.is_keyframe = copy, Fraction(1, 25), key
            packet.pts = packet.dts = number
            output.mux(packet)
    assert read(path) == ([(n, n) for n in range(30)], None)
    assert read(path, frames=5) == ([(n, n) for n in (3, 9, 15, 21, 27)], None)
    with VideoReader(path, Sampling(every=1)) as reader:
        times = [frame.time for frame in reader]
    np.testing.assert_allclose(times[5:9], np.array([5, 6, 8, 10]) / 25, atol=1e-6)


def test_damage_among_counted_frames_costs_no_more_than_its_group(tmp_path):
    path = write_numbered(tmp_path / "v.avi", frames=60)
    with av.open(str(path)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    content = bytearray(path.read_bytes())
    start, size = packets[27]  # in the third group of twelve
    content[start + 4 : start + size] = bytes(255 - b for b in content[start + 4 : start + size])
    path.write_bytes(content)
    for sampling in ({"every": 1}, {"every": 2}):
        frames, damage = read(path, **sampling)
        assert all(number == index for number, index in frames)
        assert {index for _, index in frames} >= {*range(0, 20, 2), *range(36, 60, 2)}
        assert len(frames) < len(range(0, 60, sampling["every"]))
        assert "damaged" in damage


def joined(tmp_path, first, second):
    paths = [
        write_numbered(tmp_path / "1.ts", frames=20, **first),
        write_numbered(tmp_path / "2.ts", frames=20, first=100, **second),
    ]
    path = tmp_path / "joined.ts"
    path.write_bytes(b"".join(part.read_bytes() for part in paths))
    return path


@pytest.mark.parametrize("codec", ["libx264", "mpeg2video"])
@pytest.mark.parametrize(
    ("first", "second"),
    [(range(20), range(20)), (range(20), range(20, 40)), (range(100, 120), range(20))],
    ids=["again", "on", "back"],
)
def test_joined_transport_streams_lose_no_frame(tmp_path, codec, first, second):
    path = joined(tmp_path, {"codec": codec, "stamps": first}, {"codec": codec, "stamps": second})
    numbers = [*range(20), *range(100, 120)]
    assert read(path) == ([(number, index) for index, number in enumerate(numbers)], None)
    assert read(path, every=13) == ([(0, 0), (13, 13), (106, 26), (119, 39)], None)


def test_packets_that_a_transport_stream_lost_are_noticed(tmp_path):
    path = write_numbered(tmp_path / "v.ts")
    whole = path.read_bytes()
    with av.open(str(path)) as container:
        places = [packet.pos for packet in container.demux(video=0) if packet.size]
    for lost in places[8:20]:  # around the keyframe that is the 12th
        path.write_bytes(whole[:lost] + whole[lost + 188 :])
        frames, damage = read(path)
        assert damage is not None
        assert [number for number, _ in frames] == sorted({number for number, _ in frames})


def timestamps(content):
    """Places of the presentation timestamps of the video in an MPEG program stream (ISO/IEC 13818-1, 2.4.3.6)."""
    starts = [found.start() for found in re.finditer(b"\x00\x00\x01\xe0", content)]
    return [start + 9 for start in starts if content[start + 7] & 0x80]


def add_ticks(content, at, ticks):
    """Make a timestamp of 33 bits, with marker bits between them, later by ticks of 1/90000 s."""
    a, b, c = content[at], *struct.unpack_from(">HH", content, at + 1)
    stamp = ((a >> 1 & 7) << 30 | b >> 1 << 15 | c >> 1) + ticks
    content[at] = a & 0xF1 | (stamp >> 30 & 7) << 1
    struct.pack_into(">HH", content, at + 1, (stamp >> 15 << 1 | 1) & 0xFFFF, (stamp << 1 | 1) & 0xFFFF)


@pytest.mark.parametrize("late", [-0.2, -0.04, 0.04, 0.08, 0.2, 10.0, 10.001])
def test_one_wrong_timestamp_of_a_program_stream_costs_no_frame_and_ends_with_it(tmp_path, late):
    path = write_numbered(tmp_path / "v.mpg", codec="mpeg2video", frames=60, muxer="vob")
    whole = path.read_bytes()
    places = timestamps(whole)
    for number in range(3, len(places) - 3, 4):
        content = bytearray(whole)
        add_ticks(content, places[number], round(late * 90000))
        path.write_bytes(content)
        with VideoReader(path, Sampling(every=1)) as reader:
            frames = [(number_shown(frame.image), frame.index, frame.time) for frame in reader]
            assert reader.damage is None
        assert [(shown, index) for shown, index, _ in frames] == [(n, n) for n in range(60)]
        off = np.array([time for *_, time in frames]) - np.arange(60) / 25
        wrong = np.flatnonzero(np.abs(off) > 1e-3)
        assert len(wrong) <= 3
        assert np.abs(off).max() < 0.041
        assert not len(wrong) or wrong[-1] - wrong[0] < 3


def test_an_edit_list_that_leaves_out_frames_is_not_damage(tmp_path):
    path = write_numbered(tmp_path / "v.mp4", frames=60, options={"g": "30"})
    whole = bytearray(path.read_bytes())
    edits, movie, media = (whole.index(name) for name in (b"elst", b"mvhd", b"mdhd"))
    movie_rate, media_rate = (struct.unpack_from(">I", whole, at + 16)[0] for at in (movie, media))
    start = struct.unpack_from(">I", whole, edits + 16)[0]
    struct.pack_into(">II", whole, edits + 12, 10 * movie_rate // 25, start + 45 * media_rate // 25)
    path.write_bytes(whole)
    assert read(path) == ([(45 + n, n) for n in range(10)], None)


def append_empty_chunks(content, count):
    """Add empty chunks to an AVI's frames and their entries to its index, and count them in its headers."""
    content = bytearray(content)
    index = content.index(b"idx1")
    size = struct.unpack_from("<I", content, index + 4)[0]
    content[index + 8 + size : index + 8 + size] = struct.pack("<4sIII", b"00dc", 0, 0, 0) * count
    struct.pack_into("<I", content, index + 4, size + 16 * count)
    content[index:index] = struct.pack("<4sI", b"00dc", 0) * count
    frames = {content.index(b"movi") - 4: 8, 4: 24, content.index(b"avih") + 24: 1, content.index(b"strh") + 40: 1}
    for at, each in frames.items():
        struct.pack_into("<I", content, at, struct.unpack_from("<I", content, at)[0] + each * count)
    return bytes(content)


def test_empty_chunks_of_an_avi_are_dropped_frames_not_damage(tmp_path):
    stamps = [0, 1, 2, 5, 6, 7, 10, 11, 15, 16]
    path = write_numbered(tmp_path / "v.avi", codec="mpeg4", frames=10, options={"bf": "0", "g": "4"}, stamps=stamps)
    whole = append_empty_chunks(path.read_bytes(), 3)
    path.write_bytes(whole)
    with av.open(str(path)) as container:
        assert container.streams.video[0].frames == 20
        places = [packet.pos for packet in container.demux(video=0) if packet.size]
    assert read(path) == ([(n, n) for n in range(10)], None)
    with VideoReader(path, Sampling(every=1)) as reader:
        np.testing.assert_allclose([frame.time for frame in reader], np.array(stamps) / 25, atol=1e-6)
    path.write_bytes(whole[: places[6]])
    assert "the file announces 20 frames and holds 6" in read(path)[1]


@pytest.mark.parametrize("rate", [Fraction(30), Fraction(24000, 1001), Fraction(60)])
@pytest.mark.parametrize(
    ("suffix", "codec"),
    [
        (".mkv", "libx264"),
        (".webm", "libvpx-vp9"),
        (".flv", "libx264"),
        (".ts", "libx264"),
        (".mpg", "mpeg2video"),
        (".wmv", "wmv2"),
        (".avi", "libx264"),
    ],
)
def test_fps_at_the_rate_of_the_video_or_half_of_it(tmp_path, suffix, codec, rate):
    options = {"wmv2": {"bf": "0"}, "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8"}}.get(codec)
    path = write_numbered(tmp_path / f"v{suffix}", codec=codec, frames=40, rate=rate, unit=1 / rate, options=options)
    for parts in (1, 2):
        for asked in (float(rate) / parts, round(float(rate) / parts, 2), round(float(rate)) / parts):
            assert read(path, fps=asked) == ([(n, n) for n in range(0, 40, parts)], None)


@pytest.mark.parametrize("suffix", [".avi", ".mov", ".mkv"])
def test_motion_jpeg_whose_frames_hold_exif(tmp_path, suffix):
    path = tmp_path / f"v{suffix}"
    exif = Image.Exif()
    exif[0x010F], exif[0x0112] = "maker", 3  # turned by 180 degrees
    with av.open(str(path), "w") as output:
        stream = output.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 128, 64, "yuvj420p"
        for number in range(5):
            data = io.BytesIO()
            Image.fromarray(stripes(number)[:, ::-1]).save(data, "JPEG", quality=92, exif=exif)
            packet = av.Packet(data.getvalue())
            packet.stream, packet.time_base, packet.is_keyframe = stream, Fraction(1, 25), True
            packet.pts = packet.dts = number
            output.mux(packet)
    assert read(path) == ([(n, n) for n in range(5)], None)
