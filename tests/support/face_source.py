"""Images and videos with faces, and without, made from scikit-image's photographs."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import av
import cv2
import numpy as np

from support.media import Picture, photograph, write_image

FACE = (170, 50, 280, 185)
"""Left, top, right, bottom of a box that holds the astronaut's face, in pixels of the photograph."""
SECOND = 0.7
"""Scale of the second face of `pair`."""


def pair() -> Picture:
    """The portrait, and beside it, smaller, the portrait again: (512, 870, 3)."""
    whole = photograph("astronaut")
    side = int(SECOND * 512)
    canvas = np.zeros((512, 512 + side, 3), np.uint8)
    canvas[:, :512] = whole
    canvas[:side, 512:] = cv2.resize(whole, (side, side), interpolation=cv2.INTER_AREA)
    return canvas


def views(count: int, *, size: tuple[int, int] = (320, 240), faceless: Iterable[int] = ()) -> Iterator[Picture]:
    """Views of the portrait that move around the face; views whose numbers are in `faceless` show a cup of coffee."""
    width, height = size
    centre = ((FACE[0] + FACE[2]) / 2, (FACE[1] + FACE[3]) / 2)
    without = set(faceless)
    for number, phase in enumerate(np.linspace(0, 2 * np.pi, count, endpoint=False)):
        if number in without:
            yield np.ascontiguousarray(cv2.resize(photograph("coffee"), size, interpolation=cv2.INTER_AREA))
            continue
        matrix = cv2.getRotationMatrix2D(centre, 6 * np.sin(phase), 1.0 + 0.2 * np.cos(phase))
        matrix[:, 2] += (width / 2 + 30 * np.sin(phase) - centre[0], height / 2 + 15 * np.cos(phase) - centre[1])
        yield cv2.warpAffine(photograph("astronaut"), matrix, size, flags=cv2.INTER_AREA)


def write_frames(
    path: Path,
    frames: Iterable[Picture],
    *,
    codec: str = "libx264",
    rate: int = 25,
    container: Mapping[str, str] | None = None,
) -> Path:
    """Write frames of one size as a video, with B-frames. `container` may be `FAST_START`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", options=dict(container or {})) as output:
        stream = output.add_stream(codec, rate=rate, options={"crf": "16", "g": "12", "bf": "2"})
        stream.pix_fmt = "yuv420p"
        for number, picture in enumerate(frames):
            if not number:
                stream.height, stream.width = picture.shape[:2]
            output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        output.mux(stream.encode())
    return path


FACELESS_FRAMES = (8, 9, 10, 11)


def write_faces(root: Path) -> Path:
    """Two images with faces, one without, and a video of 20 frames whose frames 8 to 11 show no face."""
    write_image(root / "astronaut.png", photograph("astronaut"))
    write_image(root / "coffee.png", photograph("coffee"))
    write_image(root / "pair.png", pair())
    write_frames(root / "clip.mp4", views(20, faceless=FACELESS_FRAMES))
    return root
