"""Small videos for the tests, made from scikit-image's portrait."""

from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
from skimage import data

VOP = b"\x00\x00\x01\xb6"  # start code of an image in MPEG-4 Part 2
USER_DATA = b"\x00\x00\x01\xb2"
NOT_CODED = VOP + bytes([0b01_0_1_0000, 0b0_1_0_01111])  # with a time of 5 bits, as at 25 frames per second
MP4_INDEX_FIRST = {"movflags": "faststart"}
_GROUPS = {name: {"g": "12", "bf": "2"} for name in ("libx264", "mpeg4", "mpeg2video")} | {"libvpx-vp9": {"g": "12"}}


def write_video(
    path: Path,
    *,
    size=(160, 120),
    frames=40,
    codec="libx264",
    options=None,
    pixels="yuv420p",
    matrix=None,
    primaries=None,
    transfer=None,
    full_range=False,
    container=None,
    stamps=None,
    unit=Fraction(1, 25),
    rate=25,
    rotation=None,
    muxer=None,
    picture=None,
):
    """A portrait that moves by a few pixels a frame, or `image` of its number.

    `stamps` are presentation times in `unit` seconds.
    """
    width, height = size
    portrait = cv2.resize(data.astronaut(), (width, height), interpolation=cv2.INTER_AREA)
    with av.open(str(path), "w", format=muxer, options=container or {}) as output:
        stream = output.add_stream(codec, rate=rate, options=_GROUPS.get(codec, {}) if options is None else options)
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        stream.codec_context.time_base = unit
        if matrix is not None:
            stream.codec_context.colorspace = matrix
        if primaries is not None:
            stream.codec_context.color_primaries = primaries
        if transfer is not None:
            stream.codec_context.color_trc = transfer
        if full_range:
            stream.codec_context.color_range = 2
        if rotation is not None:
            stream.set_display_rotation(*rotation)
        for number in range(frames):
            shown = np.roll(portrait, 4 * number, axis=1) if picture is None else picture(number)
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(shown), "rgb24").reformat(format=pixels)
            frame.pts = number if stamps is None else stamps[number]
            frame.time_base = unit
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return path


def write_numbered(path: Path, *, frames=30, first=0, options=None, **more):
    """A video whose frames show their numbers, from `first` on, as `number_shown` reads them."""
    codec = more.get("codec", "libx264")
    plain = {"g": "12", "bf": "2"} | (
        {"crf": "12", "sc_threshold": "0", "b-pyramid": "none"} if "x264" in codec else {}
    )
    plain |= {} if "x26" in codec else {"qscale": "2"}
    options = {**plain, **(options or {})}
    return write_video(
        path, size=(128, 64), frames=frames, options=options, picture=lambda n: stripes(first + n), **more
    )


def stripes(number):
    """The eight bits of a number as dark and bright stripes, (64, 128, 3)."""
    bits = number >> np.arange(8) & 1
    return np.broadcast_to(np.repeat(40 + 170 * bits, 16)[None, :, None], (64, 128, 3)).astype(np.uint8)


def number_shown(image):
    """The number whose stripes an image shows."""
    columns = image[16:48, :, 0].reshape(32, 8, 16)[:, :, 4:12].mean(axis=(0, 2))
    return int(((columns > 125) << np.arange(8)).sum())


def pack_bitstream(path: Path, target: Path):
    """Rewrite MPEG-4 with B-frames as DivX and XviD pack it: the first B-frame shares a packet with the frame before.

    An image that is not coded stands in the place from which it was taken.
    """
    with av.open(str(path)) as source, av.open(str(target), "w") as output:
        stream = source.streams.video[0]
        packets = [(bytes(packet), packet.is_keyframe) for packet in source.demux(stream) if packet.size]
        copy = output.add_stream("mpeg4", rate=25)
        copy.width, copy.height, copy.pix_fmt = stream.width, stream.height, "yuv420p"
        header, key = packets[0]
        at = header.index(VOP)
        packets[0] = header[: header.index(USER_DATA)] + USER_DATA + b"DivX503b1393p" + header[at:], key
        packed, at = [], 0
        while at < len(packets):
            content, key = packets[at]
            at += 1
            group = at
            while group < len(packets) and is_b_frame(packets[group][0]):
                group += 1
            if group == at:
                packed.append((content, key))
                continue
            packed += [(content + packets[at][0], key), *packets[at + 1 : group], (NOT_CODED, False)]
            at = group
        for number, (content, key) in enumerate(packed):
            packet = av.Packet(content)
            packet.stream, packet.time_base, packet.is_keyframe = copy, Fraction(1, 25), key
            packet.pts = packet.dts = number
            output.mux(packet)
    return target


def is_b_frame(packet):
    """Whether a packet of MPEG-4 Part 2 holds a B-frame."""
    return packet[packet.index(VOP) + 4] >> 6 == 2


def opencv_frames(path: Path):
    """Every frame as OpenCV reads it, RGB."""
    capture = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
    frames = []
    while True:
        found, frame = capture.read()
        if not found:
            return frames
        frames.append(frame[..., ::-1])
