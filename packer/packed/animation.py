"""An animated preview of a track: its images one after another, above the waveform of its sound."""

import io
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from packer.packed.browse.tracks import Sound
from readers.drawing.sheet import MAX_SHEET_PIXELS
from shardspec.errors import UsageError

_BACKGROUND, _WAVE, _PLAYED = (24, 24, 24), (120, 120, 120), (240, 240, 240)
_WAVE_HEIGHT = 48
_QUALITY = 85


def animate(images: Iterable[npt.NDArray[np.uint8]], cell: int, pauses_ms: list[int], sound: Sound | None) -> bytes:
    """Return an animated WebP that repeats without end.

    Parameters
    ----------
    images : iterable of ndarray, (H, W, 3), uint8, RGB
        One for each pause, at most `cell` pixels high and wide.
    cell : int
        Side of the square that each image is centred in, in pixels.
    pauses_ms : list of int
        How long each image is shown, in milliseconds.
    sound : Sound or None
        Drawn below the images. The part that was played is brighter.

    Raises
    ------
    UsageError
        If all images together would have more than 200 megapixels. Pillow holds all of them.
    """
    most = MAX_SHEET_PIXELS // (cell * cell)
    if len(pauses_ms) > most:
        raise UsageError(
            expected=f"a track of at most {most} samples, {cell} pixels wide",
            found=len(pauses_ms),
            hint="ask for smaller images (cell)",
        )
    ends = np.cumsum(pauses_ms) / sum(pauses_ms)
    frames = _frames(images, cell, [round(end * cell) for end in ends], sound)
    file = io.BytesIO()
    next(frames).save(
        file, "WEBP", save_all=True, append_images=frames, duration=pauses_ms, loop=0, quality=_QUALITY, method=4
    )
    return file.getvalue()


def _frames(
    images: Iterable[npt.NDArray[np.uint8]], cell: int, played: list[int], sound: Sound | None
) -> Iterator[Image.Image]:
    peaks = None if sound is None else sound.peaks(cell) / 2**15 * (_WAVE_HEIGHT / 2)
    for image, until in zip(images, played, strict=True):
        height, width = image.shape[:2]
        frame = Image.new("RGB", (cell, cell if peaks is None else cell + _WAVE_HEIGHT), _BACKGROUND)
        frame.paste(Image.fromarray(image), ((cell - width) // 2, (cell - height) // 2))
        if peaks is not None:
            pen, middle = ImageDraw.Draw(frame), cell + _WAVE_HEIGHT / 2
            for x, (low, high) in enumerate(peaks.tolist()):
                pen.line([(x, middle - high), (x, middle - low)], fill=_PLAYED if x < until else _WAVE)
        yield frame
