"""Small videos for the tests, made from scikit-image's portrait."""

from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
from skimage import data

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
    full_range=False,
    container=None,
    stamps=None,
    unit=Fraction(1, 25),
    rate=25,
    rotation=None,
):
    """A portrait that moves by a few pixels a frame. `stamps` are presentation times in `unit` seconds."""
    width, height = size
    portrait = cv2.resize(data.astronaut(), (width, height), interpolation=cv2.INTER_AREA)
    with av.open(str(path), "w", options=container or {}) as output:
        stream = output.add_stream(codec, rate=rate, options=_GROUPS.get(codec, {}) if options is None else options)
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        stream.codec_context.time_base = unit
        if matrix is not None:
            stream.codec_context.colorspace = matrix
        if full_range:
            stream.codec_context.color_range = 2
        if rotation is not None:
            stream.set_display_rotation(*rotation)
        for number in range(frames):
            shifted = np.ascontiguousarray(np.roll(portrait, 4 * number, axis=1))
            frame = av.VideoFrame.from_ndarray(shifted, "rgb24").reformat(format=pixels)
            frame.pts = number if stamps is None else stamps[number]
            frame.time_base = unit
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return path


def opencv_frames(path: Path):
    """Every frame as OpenCV reads it, RGB."""
    capture = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
    frames = []
    while True:
        found, frame = capture.read()
        if not found:
            return frames
        frames.append(frame[..., ::-1])
