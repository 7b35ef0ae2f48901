"""Make a small dataset for experiments: images and a video of one face, original and altered, in a folder per class.

    python examples/make_data.py FOLDER

The source is the public-domain portrait of the astronaut Eileen Collins (NASA) in scikit-image. `real` has images and a
video that pan and zoom over the portrait; `altered` has the same with the face blurred, like a crude forgery.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import av
import cv2
import numpy as np
import skimage.data
from numpy.typing import NDArray

IMAGES = 16
VIDEO_FRAMES = 60
VIDEO_SIZE = (640, 480)
FACE = (170, 60, 280, 190)
"""Left, top, right, bottom of the face in the portrait, in pixels."""


def make(folder: Path) -> None:
    """Write both classes below `folder`."""
    portrait = skimage.data.astronaut()
    for label, picture in (("real", portrait), ("altered", alter(portrait))):
        target = folder / label
        target.mkdir(parents=True, exist_ok=True)
        for number, view in enumerate(views(picture, IMAGES, (800, 600))):
            cv2.imwrite(str(target / f"image-{number:02d}.jpg"), view[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, 92])
        write_video(target / "video.mp4", views(picture, VIDEO_FRAMES, VIDEO_SIZE), VIDEO_SIZE)


def alter(portrait: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Blur the face of the portrait."""
    left, top, right, bottom = FACE
    altered = portrait.copy()
    altered[top:bottom, left:right] = cv2.GaussianBlur(portrait[top:bottom, left:right], (0, 0), 2.0)
    return altered


def views(picture: NDArray[np.uint8], count: int, size: tuple[int, int]) -> Iterator[NDArray[np.uint8]]:
    """Yield views of an image, (height, width, 3) RGB, that pan, zoom and tilt a little around the face."""
    width, height = size
    centre = ((FACE[0] + FACE[2]) / 2, (FACE[1] + FACE[3]) / 2)
    for phase in np.linspace(0, 2 * np.pi, count, endpoint=False):
        matrix = cv2.getRotationMatrix2D(centre, 10 * np.sin(phase), 1.6 + 0.5 * np.cos(2 * phase))
        matrix[:, 2] += (width / 2 + 80 * np.sin(phase) - centre[0], height / 2 + 40 * np.cos(phase) - centre[1])
        yield cv2.warpAffine(picture, matrix, size, flags=cv2.INTER_AREA, borderMode=cv2.BORDER_REFLECT)


def write_video(path: Path, frames: Iterable[NDArray[np.uint8]], size: tuple[int, int], crf: int = 20) -> None:
    """Write frames of a width and height as H.264, 25 frames per second."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"crf": str(crf)})
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    make(Path(sys.argv[1]))
