"""Damaged videos decode to the same frames and reports, whatever the process did before."""

import gc
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import av
import av.logging
import numpy as np
import pytest
from support.command import file_of, read_jsonl, run_packer
from support.errors import raises
from support.fuzz import thirds
from support.histories import Decoded, decode_apart
from support.media import scene
from support.packed import fingerprints, read_samples

from packer.vision.decode.decoder_log import decoder_errors
from packer.vision.decode.limits import VideoError
from packer.vision.decode.sampling import Sampling
from packer.vision.decode.video import VideoReader

SIZE = (96, 80)
FRAMES = 12
# Every decoder that this build of libav can also encode for, in a container that is read. Name, suffix, pixels.
CODECS = [
    ("asv1", ".avi", "yuv420p"),
    ("cinepak", ".avi", "rgb24"),
    ("dnxhd", ".mov", "yuv422p"),
    ("exr", ".mov", "gbrpf32le"),
    ("ffv1", ".mkv", "yuv420p"),
    ("ffv1", ".mkv", "bgr0"),
    ("ffvhuff", ".avi", "yuv420p"),
    ("flashsv", ".avi", "bgr24"),
    ("flv", ".flv", "yuv420p"),
    ("gif", ".mov", "rgb8"),
    ("h261", ".avi", "yuv420p"),
    ("h263p", ".avi", "yuv420p"),
    ("huffyuv", ".avi", "rgb24"),
    ("jpeg2000", ".mkv", "yuv420p"),
    ("jpegls", ".avi", "rgb24"),
    ("libsvtav1", ".mkv", "yuv420p"),
    ("libvpx", ".webm", "yuv420p"),
    ("libvpx-vp9", ".webm", "yuv420p"),
    ("libx264", ".mp4", "yuv420p"),
    ("libx264", ".ts", "yuv420p"),
    ("libx265", ".mp4", "yuv420p"),
    ("ljpeg", ".avi", "yuvj420p"),
    ("magicyuv", ".avi", "gbrp"),
    ("magicyuv", ".avi", "yuv420p"),
    ("mjpeg", ".avi", "yuvj420p"),
    ("mpeg1video", ".mpg", "yuv420p"),
    ("mpeg2video", ".ts", "yuv420p"),
    ("mpeg4", ".avi", "yuv420p"),
    ("msmpeg4", ".avi", "yuv420p"),
    ("msvideo1", ".avi", "rgb555le"),
    ("png", ".mov", "rgb24"),
    ("prores_ks", ".mov", "yuv422p10le"),
    ("qtrle", ".mov", "rgb24"),
    ("rawvideo", ".avi", "bgr24"),
    ("rpza", ".mov", "rgb555le"),
    ("snow", ".avi", "yuv420p"),
    ("speedhq", ".avi", "yuv420p"),
    ("svq1", ".mov", "yuv410p"),
    ("utvideo", ".avi", "gbrp"),
    ("utvideo", ".avi", "yuv420p"),
    ("wmv2", ".wmv", "yuv420p"),
    ("zlib", ".avi", "bgr24"),
    ("zmbv", ".avi", "bgr0"),
]
SIZES = {"dnxhd": (256, 128), "h261": (176, 144)}  # the least that they take
OPTIONS = {
    "ffv1": {"level": "3", "slices": "4", "g": "6"},
    "dnxhd": {"profile": "dnxhr_lb"},
    "libsvtav1": {"preset": "12", "svtav1-params": "keyint=6"},
    "libx265": {"x265-params": "keyint=6:log-level=none:pools=1"},
}


def write(path: Path, codec: str, pixels: str, *, noise: bool = False) -> Path:
    """A photograph that moves, or noise of the same size."""
    width, height = SIZES.get(codec, SIZE)
    still, random_pixels = scene(0, (width, height)), np.random.default_rng(5)
    options = {"g": "6", "strict": "-2", "threads": "1", **OPTIONS.get(codec, {})}
    with av.open(str(path), "w") as output:
        stream = output.add_stream(codec, rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        for number in range(FRAMES):
            shown = np.roll(still, 3 * number, axis=1)
            if noise:
                shown = random_pixels.integers(0, 256, still.shape, dtype=np.uint8)
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(shown), "rgb24").reformat(format=pixels)
            frame.pts, frame.time_base = number, Fraction(1, 25)
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return path


def packets(path: Path) -> list[tuple[int, int]]:
    """Place and size of every packet of the video, as far as the container says."""
    with av.open(str(path)) as container:
        found = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
        return [(start, size) for start, size in found if start is not None]


def damage(path: Path, target: Path, seed: int) -> Path:
    """A copy of which some packets lose their rest, or a piece, or a few bits."""
    draw, content, places = random.Random(seed), bytearray(path.read_bytes()), packets(path)
    for start, size in draw.sample(places, 2):
        begin = start + size // 4 + draw.randrange(max(1, size // 2))
        count = min(start + size, len(content)) - begin
        if count < 1:
            continue
        if seed % 4 == 0:
            content[begin : begin + count] = bytes(count)
        elif seed % 4 == 1:
            content[begin : begin + count] = b"\xff" * count
        elif seed % 4 == 2:
            count = min(count, 30)
            content[begin : begin + count] = draw.randbytes(count)
        else:
            for _ in range(4):
                content[begin + draw.randrange(count)] ^= 1 << draw.randrange(8)
    target.write_bytes(content)
    return target


def half_lost(path: Path, target: Path, number: int) -> Path:
    """A copy of which the second half of one packet is lost."""
    content, (start, size) = bytearray(path.read_bytes()), packets(path)[number]
    content[start + size // 2 : start + size] = b"\xff" * (size - size // 2)
    target.write_bytes(content)
    return target


def read(path: Path) -> tuple[dict[int, "np.ndarray"], str | None]:
    with VideoReader(path, Sampling(every=1)) as reader:
        return {frame.index: frame.image for frame in reader}, reader.damage


@pytest.fixture(scope="module", params=thirds(range(3)))
def decoded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Decoded, Decoded, Decoded, list[str]]:
    """Whole and damaged videos of every third codec: in a row, after noise, and in reverse in memory full of other bytes."""
    folder = tmp_path_factory.mktemp("histories")
    files, before, whole = [], {}, []
    for codec, suffix, pixels in CODECS[request.param :: 3]:
        name = f"{codec}-{pixels}{suffix}"
        video = write(folder / name, codec, pixels)
        noise = write(folder / f"noise-{name}", codec, pixels, noise=True)
        whole.append(name)
        files += [video, *(damage(video, folder / f"{seed}-{name}", seed) for seed in range(8))]
        before |= dict.fromkeys(files[-9:], noise)
    return (
        decode_apart(files),
        decode_apart(files, before, collect_every=1, MALLOC_PERTURB_="85"),
        decode_apart(files[::-1], collect_every=3, MALLOC_PERTURB_="170"),
        whole,
    )


def test_damaged_videos_decode_the_same_regardless_of_earlier_files(
    decoded: tuple[Decoded, Decoded, Decoded, list[str]],
) -> None:
    *histories, whole = decoded
    for name in whole:
        first = {file: found for file, found in histories[0].items() if file.endswith(f"-{name}") or file == name}
        assert len(first) == 9
        assert [index for index, _ in first[name][0]] == list(range(FRAMES)), name
        assert first[name][1] is None, name
        for other in histories[1:]:
            assert {file: other[file] for file in first} == first


@pytest.mark.parametrize(
    ("codec", "suffix", "pixels"),
    [
        ("cinepak", ".avi", "rgb24"),
        ("ffv1", ".mkv", "yuv420p"),
        ("flashsv", ".avi", "bgr24"),
        ("h261", ".avi", "yuv420p"),
        ("mjpeg", ".avi", "yuvj420p"),
        ("msmpeg4", ".avi", "yuv420p"),
        ("prores_ks", ".mov", "yuv422p10le"),
    ],
)
def test_a_frame_that_is_half_written_is_left_out_and_reported(
    tmp_path: Path, codec: str, suffix: str, pixels: str
) -> None:
    video = write(tmp_path / f"whole{suffix}", codec, pixels)
    reference, none = read(video)
    assert none is None
    frames, reported = read(half_lost(video, tmp_path / f"damaged{suffix}", 6))
    assert 6 not in frames
    assert reported is not None
    assert set(range(6)) <= set(frames)
    for index in range(6):
        np.testing.assert_array_equal(frames[index], reference[index])


def logged(path: Path) -> set[int]:
    """Frames that are handed out although the decoder logs an error in them. The file's frames have timestamps."""
    found, step = set(), Fraction(1, 25)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        for packet in container.demux(stream):
            with decoder_errors() as errors, suppress(av.error.FFmpegError):
                frames = stream.codec_context.decode(packet)
                found |= {round(frame.pts * frame.time_base / step) for frame in frames if errors}
            if not packet.size:
                return found
    return found


@pytest.mark.parametrize(
    ("codec", "suffix", "pixels"),
    thirds(
        [
            ("cinepak", ".avi", "rgb24"),
            ("ffv1", ".mkv", "bgr0"),
            ("ffv1", ".mkv", "yuv420p"),
            ("flashsv", ".avi", "bgr24"),
            ("flv", ".flv", "yuv420p"),
            ("gif", ".mov", "rgb8"),
            ("h261", ".avi", "yuv420p"),
            ("h263p", ".avi", "yuv420p"),
            ("msmpeg4", ".avi", "yuv420p"),
            ("msvideo1", ".avi", "rgb555le"),
            ("qtrle", ".mov", "rgb24"),
            ("snow", ".avi", "yuv420p"),
            ("wmv2", ".wmv", "yuv420p"),
            ("zmbv", ".avi", "bgr0"),
        ]
    ),
)
def test_a_frame_in_which_a_decoder_only_logs_an_error_is_left_out_and_reported(
    tmp_path: Path, codec: str, suffix: str, pixels: str
) -> None:
    """Such decoders leave the older frame, or zeros, in the part that is lost."""
    video = write(tmp_path / f"whole{suffix}", codec, pixels)
    assert not logged(video)
    assert read(video)[1] is None
    tried = 0
    for seed in range(16):
        damaged = damage(video, tmp_path / f"{seed}{suffix}", seed)
        if bad := logged(damaged):
            tried += 1
            try:
                frames, reported = read(damaged)
            except VideoError as error:
                frames, reported = {}, str(error)
            assert reported is not None
            assert not bad & set(frames)
    assert tried


def test_errors_logged_in_other_threads_damage_nothing_and_the_log_is_left_as_it_was(
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = av.logging.get_level(), av.logging.get_skip_repeated()
    with decoder_errors() as errors, ThreadPoolExecutor(1) as other:
        other.submit(av.logging.log, av.logging.ERROR, "h264", "of another thread").result()
        assert errors == []
        av.logging.log(av.logging.WARNING, "ffv1", "of this thread")
        assert errors == []
        for _ in range(2):
            av.logging.log(av.logging.ERROR, "ffv1", "of this thread")
        assert len(errors) == 2
    assert (av.logging.get_level(), av.logging.get_skip_repeated()) == before
    assert capfd.readouterr() == ("", "")


def test_no_frame_of_the_decoder_waits_for_a_collection_of_garbage(tmp_path: Path) -> None:
    """Its memory would come back to the decoder at a time that all else in the process decides."""
    video = write(tmp_path / "v.mp4", "libx264", "yuv420p")
    gc.collect()
    gc.disable()
    try:
        read(video)
        left = [thing for thing in gc.get_objects() if type(thing) is av.VideoFrame and thing.width == SIZE[0]]
    finally:
        gc.enable()
    assert not left


def test_copies_of_a_damaged_video_are_packed_alike_by_any_number_of_workers(tmp_path: Path) -> None:
    source, whole = tmp_path / "source", tmp_path / "whole"
    source.mkdir()
    whole.mkdir()
    for codec, suffix, pixels in (
        ("libx265", ".mp4", "yuv420p"),
        ("mjpeg", ".avi", "yuvj420p"),
        ("libvpx", ".webm", "yuv420p"),
        ("magicyuv", ".avi", "gbrp"),
    ):
        video = write(whole / f"{codec}{suffix}", codec, pixels)
        for seed in (0, 1):
            for copy in range(3):
                damage(video, source / f"{copy}-{seed}{video.name}", seed)
    built = []
    how = ("--encode", "raw", "--size", 64, "--max-rejects", "100%", "--quiet")
    for name, workers in (("out1", ()), ("out3", ("--workers", 3))):
        run_packer("build", source, tmp_path / name, *how, *workers)
        built.append(fingerprints(tmp_path / name))
    assert built[0] == built[1]
    frames: dict[str, dict[str, list[tuple[int, bytes]]]] = {}
    for sample in read_samples(tmp_path / "out3"):
        copy, _, name = sample["source"].partition("-")
        frames.setdefault(name, {}).setdefault(copy, []).append((int(sample["frame"]), sample["image"].tobytes()))
    reasons: dict[str, dict[str, str]] = {}
    for line in read_jsonl(file_of(tmp_path / "out3", "rejects.jsonl")):
        copy, _, name = line["item"].partition("-")
        reasons.setdefault(name, {})[copy] = line["reason"]
    assert reasons
    for copies in [*frames.values(), *reasons.values()]:
        assert len(copies) == 3
        assert all(found == copies["0"] for found in copies.values())


def test_an_empty_video_is_called_empty(tmp_path: Path) -> None:
    (tmp_path / "v.mp4").touch()
    with raises(VideoError, expected="a video", found="an empty file"):
        VideoReader(tmp_path / "v.mp4", Sampling(every=1))


def test_a_codec_whose_decoder_shows_memory_that_it_never_wrote_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VideoError, match=r"found CineForm \(cfhd\): convert the file"):
        VideoReader(write(tmp_path / "a.avi", "cfhd", "yuv422p10le"), Sampling(every=1))
