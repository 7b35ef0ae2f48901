"""Real images and videos, made from scikit-image's photographs."""

import struct
import zlib
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image
from skimage import data

Picture = npt.NDArray[np.uint8]

FAST_START = {"movflags": "faststart"}
"""Options of the mp4 container that put the index first; by default it is at the end."""

_GROUPS: Mapping[str, Mapping[str, str]] = {
    "libx264": {"g": "12", "bf": "2"},
    "libvpx-vp9": {"g": "12", "deadline": "realtime", "cpu-used": "8"},
    "mpeg2video": {"g": "12", "bf": "2"},
    "mpeg4": {"g": "12", "bf": "2"},
}
CODECS = tuple(_GROUPS)
"""Codecs that every build of PyAV has, for one container each: mp4, webm, mpg, avi."""


@cache
def photograph(name: str) -> Picture:
    """A read-only RGB photo of scikit-image: ``astronaut`` (with a face), ``chelsea``, ``coffee``, ``rocket``."""
    picture: Picture = np.ascontiguousarray(getattr(data, name)())
    picture.setflags(write=False)
    return picture


def scene(number: int, size: tuple[int, int]) -> Picture:
    """One of many different real images, (height, width, 3); `size` is (width, height)."""
    whole = photograph(("astronaut", "chelsea", "coffee", "rocket")[number % 4])
    shifted = np.roll(whole, 17 * number, axis=1)
    return np.ascontiguousarray(cv2.resize(shifted, size, interpolation=cv2.INTER_AREA))


def write_image(path: Path, picture: Picture, **options: Any) -> Path:
    """Write an image in the format of its suffix; `options` go to Pillow's ``save``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(path, **options)
    return path


def write_video(
    path: Path,
    *,
    size: tuple[int, int] = (96, 72),
    frames: int = 24,
    codec: str = "libx264",
    rate: int = 25,
    container: Mapping[str, str] | None = None,
    number: int = 0,
) -> Path:
    """A photograph that moves by a few pixels a frame. `container` may be `FAST_START`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    still = scene(number, size)
    with av.open(str(path), "w", options=dict(container or {})) as output:
        stream = output.add_stream(codec, rate=rate, options=dict(_GROUPS[codec]))
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        for index in range(frames):
            moved = np.ascontiguousarray(np.roll(still, 3 * index, axis=1))
            frame = av.VideoFrame.from_ndarray(moved, "rgb24").reformat(format="yuv420p")
            frame.pts, frame.time_base = index, Fraction(1, rate)
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return path


def cut_file(path: Path, share: float) -> Path:
    """Cut a file off after a share of its bytes."""
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    return path


def write_png_bomb(path: Path, side: int = 30000) -> Path:
    """A valid grey PNG of side x side zeros, in one bit per pixel: a few kilobytes on disk, gigabytes as RGB."""
    row = bytes(1 + -(-side // 8))
    squeeze = zlib.compressobj(9)
    pixels = b"".join([*(squeeze.compress(row) for _ in range(side)), squeeze.flush()])
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    return path
