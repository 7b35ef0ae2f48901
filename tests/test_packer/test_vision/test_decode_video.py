import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skimage import data
from support.fuzz import examples
from support.video_files import MP4_INDEX_FIRST, opencv_frames, write_video

from packer.vision.decode.limits import VideoError
from packer.vision.decode.sampling import Sampling
from packer.vision.decode.video import VideoReader

EVERY_FRAME = Sampling(every=1)
X265 = "bframes=3:log-level=none:pools=1"


def read(path, sampling=EVERY_FRAME, **options):
    with VideoReader(path, sampling, **options) as reader:
        return list(reader), reader


def assert_same(frames, reference):
    for frame in frames:
        np.testing.assert_array_equal(frame.image, reference[frame.index])


CODINGS = [
    # size, codec, suffix, pixels, matrix (1 BT.709, 5 BT.601, 9 BT.2020), full range
    ((160, 120), "libx264", ".mp4", "yuv420p", None, False),
    ((160, 120), "libx264", ".mp4", "yuv420p", 1, False),
    ((158, 118), "libx264", ".mp4", "yuv420p", 5, True),
    ((158, 118), "libx264", ".mp4", "yuv422p", 1, True),
    ((161, 121), "libx264", ".mkv", "yuv444p", 9, False),
    ((158, 118), "libx264", ".mp4", "yuv420p10le", None, False),
    ((160, 120), "libx264", ".mkv", "yuv422p10le", 1, True),
    ((161, 121), "libvpx-vp9", ".webm", "yuv420p", None, False),
    ((160, 121), "ffv1", ".mkv", "yuv420p", None, False),
    ((161, 119), "ffv1", ".mkv", "bgr0", None, False),
    ((160, 120), "ffv1", ".mkv", "gray", None, False),
    ((160, 120), "mjpeg", ".avi", "yuvj420p", None, False),
    ((160, 120), "mpeg4", ".avi", "yuv420p", None, False),
    ((160, 120), "mpeg2video", ".ts", "yuv420p", None, False),
    ((160, 120), "libx264", ".ts", "yuv420p", None, False),
]


@pytest.mark.parametrize(("size", "codec", "suffix", "pixels", "matrix", "full_range"), CODINGS)
def test_the_pixels_are_opencvs(tmp_path, size, codec, suffix, pixels, matrix, full_range):
    path = write_video(
        tmp_path / f"v{suffix}", size=size, codec=codec, pixels=pixels, matrix=matrix, full_range=full_range, frames=6
    )
    frames, reader = read(path)
    reference = opencv_frames(path)
    assert [frame.index for frame in frames] == list(range(len(reference))) == list(range(6))
    assert_same(frames, reference)
    assert reader.damage is None
    assert frames[0].image.flags.c_contiguous


@pytest.mark.parametrize(
    ("codec", "suffix", "options"),
    [
        ("libx264", ".mp4", {"g": "12", "bf": "3", "b-pyramid": "normal"}),
        ("libx264", ".mkv", {"x264-params": "keyint=12:bframes=3:open-gop=1:scenecut=0"}),
        ("libx264", ".ts", {"g": "12", "bf": "3"}),
        ("libx264", ".mp4", {"g": "12", "bf": "0"}),
        ("libx265", ".mp4", {"x265-params": "keyint=12:bframes=3:log-level=none:pools=1"}),
        ("libvpx", ".webm", {"g": "12", "auto-alt-ref": "1", "lag-in-frames": "10"}),
        ("libvpx-vp9", ".webm", {"g": "12", "auto-alt-ref": "1", "lag-in-frames": "10"}),
        ("mpeg2video", ".mpg", {"g": "12", "bf": "2"}),
        ("mpeg4", ".avi", {"g": "12", "bf": "2"}),
        ("wmv2", ".wmv", {"g": "12"}),
    ],
)
def test_skipping_unsampled_frames_changes_neither_indices_nor_pixels(tmp_path, codec, suffix, options):
    path = write_video(tmp_path / f"v{suffix}", codec=codec, options=options)
    reference = opencv_frames(path)
    assert len(reference) == 40
    for sampling, indices in (
        (Sampling(every=7), list(range(0, 40, 7))),
        (Sampling(frames=5), [4, 12, 20, 28, 36]),
        (Sampling(fps=5), list(range(0, 40, 5))),
    ):
        frames, reader = read(path, sampling)
        assert [frame.index for frame in frames] == indices, sampling
        assert_same(frames, reference)
        assert reader.damage is None
        assert reader.frames_read == len(indices)
    frames, _ = read(path, Sampling(keyframes=True))
    assert frames[0].index == 0
    assert len(frames) >= 3
    assert_same(frames, reference)


@pytest.mark.parametrize(
    ("codec", "options"), [("libx264", {"x264-params": "interlaced=1"}), ("mpeg2video", {"flags": "+ildct+ilme"})]
)
def test_interlaced_video_keeps_its_images(tmp_path, codec, options):
    path = write_video(tmp_path / "v.ts", codec=codec, options=options, frames=8)
    frames, _ = read(path)
    portrait = cv2.resize(data.astronaut(), (160, 120), interpolation=cv2.INTER_AREA)
    assert [frame.index for frame in frames] == list(range(8))
    for frame in frames:  # OpenCV 5.0 cannot convert these
        assert np.abs(frame.image.astype(int) - np.roll(portrait, 4 * frame.index, axis=1)).mean() < 9


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".ts"])
@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"x264-params": "keyint=12:min-keyint=12:bframes=3:open-gop=1:scenecut=0"}),
        ("libx265", {"x265-params": f"keyint=12:min-keyint=12:open-gop=1:scenecut=0:{X265}"}),
        ("mpeg2video", {"g": "12", "bf": "2"}),
    ],
)
def test_every_keyframe_of_open_groups_is_found_with_the_pixels_of_a_full_decode(tmp_path, codec, suffix, options):
    path = write_video(tmp_path / f"v{suffix}", codec=codec, options=options, frames=60)
    with av.open(str(path)) as container:
        keys = [index for index, frame in enumerate(container.decode(video=0)) if frame.key_frame]
    assert keys[:5] == [0, 12, 24, 36, 48]
    frames, reader = read(path, Sampling(keyframes=True))
    assert [frame.index for frame in frames] == keys
    assert [frame.position for frame in frames] == list(range(len(keys)))
    assert_same(frames, [frame.image for frame in read(path)[0]])
    assert reader.damage is None


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".ts"])
def test_the_start_of_intra_refresh_is_not_a_keyframe(tmp_path, suffix):
    options = {"x264-params": "keyint=12:intra-refresh=1:bframes=0"}
    path = write_video(tmp_path / f"v{suffix}", options=options, frames=60)
    with av.open(str(path)) as container:
        assert sum(packet.is_keyframe for packet in container.demux(video=0) if packet.size) == 5
    frames, reader = read(path, Sampling(keyframes=True))
    assert [frame.index for frame in frames] == [0]
    assert reader.damage is None


def test_damage_lasts_in_a_video_with_intra_refresh(tmp_path):
    path = write_video(tmp_path / "v.mp4", options={"x264-params": "keyint=12:intra-refresh=1:bframes=0"})
    reference = [frame.image for frame in read(path)[0]]
    content = bytearray(path.read_bytes())
    start, size, _ = whole_packets(path)[15]
    content[start + 8 : start + size] = bytes(255 - b for b in content[start + 8 : start + size])
    path.write_bytes(content)
    frames, reader = read(path)
    assert [frame.index for frame in frames] == list(range(15))
    assert_same(frames, reference)
    assert "damaged" in reader.damage


def test_a_damaged_keyframe_is_left_out_and_counted(tmp_path):
    path = write_video(tmp_path / "v.mp4", options={"x265-params": f"keyint=12:open-gop=1:{X265}"}, codec="libx265")
    whole = read(path, Sampling(keyframes=True))[0]
    assert len(whole) >= 4
    content = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        keys = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.is_keyframe]
    start, size = keys[1]
    content[start : start + size] = b"\xff" * size
    path.write_bytes(content)
    frames, reader = read(path, Sampling(keyframes=True))
    assert [(frame.index, frame.position) for frame in frames] == [
        (frame.index, frame.position) for frame in whole if frame.position != 1
    ]
    assert "1 sampled frame is damaged" in reader.damage


def test_unwanted_frames_are_not_decoded(tmp_path, monkeypatch):
    path = write_video(tmp_path / "v.mp4", frames=60, options={"g": "30", "bf": "3", "b-pyramid": "none"})
    decoded = []
    original = VideoReader.__init__

    def count(self, *args, **kwargs):
        original(self, *args, **kwargs)
        decode = self._decoding._decode

        def counting(wanted, **how):
            for frames, damaged in decode(wanted, **how):
                decoded.extend(frames)
                yield frames, damaged

        self._decoding._decode = counting

    monkeypatch.setattr(VideoReader, "__init__", count)
    read(path)
    assert len(decoded) == 60
    decoded.clear()
    read(path, Sampling(every=20))
    assert len(decoded) < 30
    decoded.clear()
    read(path, Sampling(keyframes=True))
    assert len(decoded) == 2


def test_presentation_times_of_a_variable_rate(tmp_path):
    stamps = np.cumsum([0, 10, 30, 10, 70, 20, 15, 100, 5, 40]).tolist()
    path = write_video(
        tmp_path / "v.mp4", frames=10, stamps=stamps, unit=Fraction(1, 1000), options={"g": "5", "bf": "2"}
    )
    frames, _ = read(path)
    assert [frame.index for frame in frames] == list(range(10))
    np.testing.assert_allclose([frame.time for frame in frames], np.array(stamps) / 1000, atol=1e-6)


def test_times_begin_at_zero_even_if_the_clock_of_the_file_does_not(tmp_path):
    path = write_video(tmp_path / "v.ts", frames=5, stamps=range(100, 105))
    with av.open(str(path)) as container:
        assert container.start_time > 1_000_000  # microseconds: a transport stream's clock starts anywhere
    frames, _ = read(path)
    np.testing.assert_allclose([frame.time for frame in frames], np.arange(5) / 25, atol=1e-6)


def test_times_without_timestamps_are_estimated_from_the_rate(tmp_path):
    path = write_video(tmp_path / "v.avi", codec="mpeg4", frames=6, options={"g": "12", "bf": "2"})
    frames, _ = read(path)
    assert [frame.index for frame in frames] == list(range(6))
    np.testing.assert_allclose(np.diff([frame.time for frame in frames]), 1 / 25, atol=1e-6)


def cut(source, path, frames=7):
    """A copy whose edit list hides the first frames, as of a trimmed phone video."""
    with av.open(str(source)) as whole, av.open(str(path), "w", options={"avoid_negative_ts": "disabled"}) as output:
        stream = whole.streams.video[0]
        copy = output.add_stream_from_template(stream)
        for packet in whole.demux(stream):
            if packet.size:
                packet.pts -= round(frames / 25 / packet.time_base)
                packet.dts -= round(frames / 25 / packet.time_base)
                packet.stream = copy
                output.mux(packet)
    return path


def whole_packets(path):
    with av.open(str(path)) as container:
        return [(packet.pos, packet.size, packet.is_discard) for packet in container.demux(video=0) if packet.size]


@pytest.mark.parametrize(
    ("codec", "suffix", "pixels", "options"),
    [
        ("libx264", ".mp4", "yuv420p", {"g": "40", "bf": "2"}),
        ("libx264", ".mp4", "yuv420p", {"g": "12", "bf": "2"}),
        ("libx265", ".mp4", "yuv420p", {"x265-params": f"keyint=40:{X265}"}),
        ("libx265", ".mov", "yuv420p10le", {"x265-params": f"keyint=12:open-gop=1:{X265}"}),
        ("libx265", ".mov", "yuv420p", {"x265-params": "keyint=40:bframes=0:log-level=none:pools=1"}),
        ("qtrle", ".mov", "rgb24", {"g": "40"}),
        ("svq1", ".mov", "yuv410p", {"g": "40"}),
        ("prores_ks", ".mov", "yuv422p10le", {}),
    ],
)
def test_an_edit_list_hides_frames_and_damages_none(tmp_path, codec, suffix, pixels, options):
    source = write_video(tmp_path / f"v{suffix}", codec=codec, pixels=pixels, options=options)
    path = cut(source, tmp_path / f"trimmed{suffix}")
    whole = [frame.image for frame in read(source)[0]]
    assert len(whole) == 40
    for every in (1, 4):
        frames, reader = read(path, Sampling(every=every))
        assert reader.damage is None
        assert [frame.index for frame in frames] == list(range(0, 33, every))
        for frame in frames:
            np.testing.assert_array_equal(frame.image, whole[frame.index + 7])
        np.testing.assert_allclose([frame.time for frame in frames], np.arange(0, 33, every) / 25, atol=1e-6)
    assert len(opencv_frames(path)) == 33


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"g": "20", "bf": "0"}),
        ("mpeg4", {"g": "20", "bf": "0"}),
        ("libx264", {"x264-params": "keyint=20:bframes=0:interlaced=1"}),  # these frames are counted
    ],
)
@pytest.mark.parametrize("share", [0, 0.5])
def test_damage_of_a_hidden_frame_costs_the_frames_up_to_the_next_keyframe(tmp_path, codec, options, share):
    source = write_video(tmp_path / "v.mov", codec=codec, options=options)
    path = cut(source, tmp_path / "trimmed.mov")
    content = bytearray(path.read_bytes())
    start, size, hidden = whole_packets(path)[3]
    assert hidden
    lost = size - int(share * size)
    content[start + size - lost : start + size] = b"\xff" * lost
    path.write_bytes(content)
    frames, reader = read(path)
    assert [frame.index for frame in frames] == list(range(13, 33))  # from the next keyframe on
    assert_same(frames, [frame.image for frame in read(source)[0]][7:])
    assert "damaged" in reader.damage


@pytest.mark.parametrize(
    ("rotation", "turn"),
    [
        ((0,), lambda image: image),
        ((90,), lambda image: np.rot90(image)),
        ((180,), lambda image: np.rot90(image, 2)),
        ((-90,), lambda image: np.rot90(image, -1)),
        ((0, True), lambda image: image[:, ::-1]),
        ((0, False, True), lambda image: image[::-1]),
    ],
)
def test_the_display_matrix_is_applied(tmp_path, rotation, turn):
    plain = write_video(tmp_path / "plain.mp4", frames=3)
    path = write_video(tmp_path / "turned.mp4", frames=3, rotation=rotation)
    upright, turned = read(plain)[0], read(path)[0]
    for a, b in zip(upright, turned, strict=True):
        np.testing.assert_array_equal(turn(a.image), b.image)
    if len(rotation) == 1:  # OpenCV knows no mirrors
        assert_same(turned, opencv_frames(path))


@pytest.mark.parametrize(
    ("suffix", "share"), [(".mp4", 0.5), (".mp4", 0.8), (".mkv", 0.5), (".ts", 0.6), (".webm", 0.6)]
)
def test_a_file_cut_midway_yields_the_frames_before_the_cut(tmp_path, suffix, share):
    codec = "libvpx-vp9" if suffix == ".webm" else "libx264"
    path = write_video(tmp_path / f"v{suffix}", codec=codec, container=MP4_INDEX_FIRST if suffix == ".mp4" else None)
    reference = opencv_frames(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    frames, reader = read(path)
    assert 5 < len(frames) < 40
    assert [frame.index for frame in frames] == list(range(len(frames)))
    assert_same(frames, reference)
    assert reader.damage is not None


@pytest.mark.parametrize(("suffix", "codec"), [(".mkv", "libx264"), (".mkv", "ffv1"), (".webm", "libvpx-vp9")])
@pytest.mark.parametrize("kept", [18, 24])
def test_frames_missing_at_the_end_of_matroska_are_reported(tmp_path, suffix, codec, kept):
    """Its duration is exact; a cut between two packets shows nowhere else."""
    path = write_video(tmp_path / f"v{suffix}", codec=codec, frames=30, options={})
    with av.open(str(path)) as container:
        positions = [packet.pos for packet in container.demux(video=0) if packet.size]
    path.write_bytes(path.read_bytes()[: positions[kept]])
    frames, reader = read(path)
    assert 0 < len(frames) <= kept
    assert [frame.index for frame in frames] == list(range(len(frames)))
    assert "the file announces 1.20 s and holds" in reader.damage


@pytest.mark.parametrize("rate", [5, 10, 25, 60])
@pytest.mark.parametrize("frames", [1, 2, 13])
@pytest.mark.parametrize(
    ("suffix", "codec"),
    [
        (".mkv", "libx264"),
        (".mkv", "ffv1"),
        (".webm", "libvpx-vp9"),
        (".flv", "libx264"),
        (".avi", "mpeg4"),
        (".ts", "libx264"),
        (".wmv", "wmv2"),
        (".mp4", "libx264"),
    ],
)
def test_a_whole_file_is_never_called_cut_off(tmp_path, suffix, codec, frames, rate):
    path = write_video(
        tmp_path / f"v{suffix}", size=(64, 48), codec=codec, frames=frames, rate=rate, unit=Fraction(1, rate)
    )
    assert read(path)[1].damage is None
    if suffix in (".mkv", ".webm"):
        stamps = np.cumsum([0, *(1, 4, 2, 5, 1, 1, 3, 2, 1, 5, 4, 2)])[:frames].tolist()
        uneven = write_video(
            tmp_path / f"uneven{suffix}",
            size=(64, 48), codec=codec, frames=frames, rate=rate, unit=Fraction(1, rate), stamps=stamps,
        )  # fmt: skip
        assert read(uneven)[1].damage is None


def test_a_cut_file_still_gives_evenly_spread_frames(tmp_path):
    path = write_video(tmp_path / "v.mp4", container=MP4_INDEX_FIRST)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    frames, reader = read(path, Sampling(frames=4))
    assert len(frames) == 4
    assert "announces 40 frames" in reader.damage


def test_damage_in_the_middle_costs_no_more_than_its_group_of_images(tmp_path):
    path = write_video(tmp_path / "v.mp4", frames=60, options={"g": "20", "bf": "2"}, container=MP4_INDEX_FIRST)
    reference = opencv_frames(path)
    with av.open(str(path)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    content = bytearray(path.read_bytes())
    start, size = packets[24]  # in decoding order, so in the second group
    content[start + 8 : start + size] = bytes(255 - b for b in content[start + 8 : start + size])
    path.write_bytes(content)
    frames, reader = read(path)
    indices = [frame.index for frame in frames]
    assert set(range(20)) | set(range(40, 60)) <= set(indices)
    assert len(indices) < 60
    assert_same(frames, reference)
    assert "damaged or missing" in reader.damage


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path):
    video = write_video(tmp_path / "v.mp4", frames=10).read_bytes()
    cut = tmp_path / "index at the end.mp4"
    cut.write_bytes(video[: len(video) // 2])
    text = tmp_path / "text.mp4"
    text.write_text("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nv.mp4\n")
    empty = tmp_path / "empty.mp4"
    empty.touch()
    for path in (cut, text, empty):
        with pytest.raises(VideoError, match="expected a video"):
            VideoReader(path, EVERY_FRAME)
    with pytest.raises(FileNotFoundError):
        VideoReader(tmp_path / "none.mp4", EVERY_FRAME)


def test_a_playlist_named_as_a_video_opens_no_other_file(tmp_path):
    write_video(tmp_path / "v.mp4", frames=5)
    for name, content in {
        "concat.mp4": "ffconcat version 1.0\nfile v.mp4\n",
        "hls.ts": "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:1\n#EXTINF:1.0,\nv.mp4\n#EXT-X-ENDLIST\n",
    }.items():
        path = tmp_path / name
        path.write_text(content)
        with pytest.raises(VideoError):
            VideoReader(path, EVERY_FRAME)


def test_a_file_without_video_is_an_error(tmp_path):
    path = tmp_path / "sound.mp4"
    with av.open(str(path), "w") as output:
        stream = output.add_stream("aac", rate=16000)
        for number in range(5):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
            frame.sample_rate, frame.pts = 16000, 1024 * number
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    with pytest.raises(VideoError, match="found audio"):
        VideoReader(path, EVERY_FRAME)


def test_a_cover_image_is_not_a_video(tmp_path):
    path = tmp_path / "cover.mp4"
    with av.open(str(path), "w") as output:
        sound, cover = output.add_stream("aac", rate=16000), output.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 64, 64, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        picture = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 90, np.uint8), "rgb24")
        picture.pts = 0
        output.mux(cover.encode(picture.reformat(format="yuvj420p")))
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate, frame.pts = 16000, 0
        output.mux(sound.encode(frame))
        output.mux(sound.encode())
        output.mux(cover.encode())
    with pytest.raises(VideoError, match="expected a video stream"):
        VideoReader(path, EVERY_FRAME)


def test_frames_above_the_limit_are_refused(tmp_path):
    path = write_video(tmp_path / "v.mp4", frames=3)
    with pytest.raises(VideoError, match="at most 1000 pixels"):
        VideoReader(path, EVERY_FRAME, max_pixels=1000)


@pytest.mark.parametrize("name", ["with spaces 'and' \"quotes\".mp4", "new\nline.mp4", "ünï-日本.mp4", "50%,a=b:c.mp4"])
def test_any_file_name_can_be_decoded(tmp_path, name):
    source = write_video(tmp_path / "v.mp4", frames=3)
    path = tmp_path / name
    path.write_bytes(source.read_bytes())
    assert len(read(path)[0]) == 3


def test_a_name_that_is_not_utf8(tmp_path):
    source = write_video(tmp_path / "v.mp4", frames=3)
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.mp4")
    os.rename(source, path)  # noqa: PTH104 -- the name is the point
    assert len(read(path)[0]) == 3


def open_files():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_leaving_early_closes_the_file(tmp_path):
    path = write_video(tmp_path / "v.mp4", frames=10)
    before = open_files()
    for _ in range(20):
        with VideoReader(path, EVERY_FRAME) as reader:
            next(iter(reader))
    assert open_files() == before


def test_libav_writes_nothing_to_the_terminal(tmp_path):
    path = write_video(tmp_path / "v.mp4", container=MP4_INDEX_FIRST)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 3 : len(whole) // 3 + 40] = bytes(40)
    path.write_bytes(whole[: int(len(whole) * 0.7)])
    script = (
        "import sys; from packer.vision.decode.video import *; from packer.vision.decode.sampling import Sampling; "
        "r = VideoReader(sys.argv[1], Sampling(every=1)); n = len(list(r)); assert n and r.damage"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_index_that_asks_for_too_much_memory_is_damage_of_the_file(tmp_path, monkeypatch):
    path = write_video(tmp_path / "v.mp4", size=(48, 32), frames=8, container=MP4_INDEX_FIRST)
    whole = bytearray(path.read_bytes())
    count = whole.index(b"stts") + 8
    whole[count : count + 4] = (2**28).to_bytes(4, "big")
    path.write_bytes(whole)
    with pytest.raises(VideoError, match="does not open: its index asks for more memory than any needs"):
        read(path)
    monkeypatch.setattr("packer.vision.decode.container._has_memory", lambda: False)
    with pytest.raises(MemoryError):  # of the machine, perhaps
        read(path)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    paths = [
        write_video(folder / "v.mp4", size=(48, 32), frames=8, container=MP4_INDEX_FIRST),
        write_video(folder / "v.mkv", size=(48, 32), frames=8),
        write_video(folder / "v.avi", size=(48, 32), frames=8, codec="mpeg4"),
        write_video(folder / "v.webm", size=(48, 32), frames=8, codec="libvpx-vp9"),
    ]
    return [(path.suffix, path.read_bytes()) for path in paths]


@examples(150)
@given(drawn=st.data())
def test_flipped_bits_and_cuts_never_give_another_error(small, tmp_path, drawn):
    suffix, content = drawn.draw(st.sampled_from(small))
    broken = bytearray(content)
    for _ in range(drawn.draw(st.integers(1, 8))):
        broken[drawn.draw(st.integers(0, len(broken) - 1))] ^= 1 << drawn.draw(st.integers(0, 7))
    broken = broken[: drawn.draw(st.integers(0, len(broken)) | st.just(len(broken)))]
    path = tmp_path / f"broken{suffix}"
    path.write_bytes(broken)
    sampling = drawn.draw(st.sampled_from([EVERY_FRAME, Sampling(frames=3), Sampling(keyframes=True)]))
    try:
        frames, reader = read(path, sampling, max_pixels=1_000_000)
    except VideoError:
        return
    assert frames
    assert [frame.index for frame in frames] == sorted({frame.index for frame in frames})
    assert reader.frames_read == len(frames)
    assert all(np.isfinite(frame.time) for frame in frames)
