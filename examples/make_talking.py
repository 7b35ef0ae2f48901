"""Make videos of a face that says one of two words, with sound, in a folder per word.

    python examples/make_talking.py FOLDER

Nobody speaks: the mouth of the portrait of `make_data.py` is opened once or three times while a tone is heard, as loud as
the mouth is open. The words differ in both the mouth and the sound. The videos have 30 frames per second.
"""

import sys
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import skimage.data
from make_data import FACE
from numpy.typing import NDArray

WORDS = {"once": (1, 220), "thrice": (3, 330)}
"""How often the mouth opens, and the pitch of the tone in Hz."""

VIDEOS = 4
FRAMES = 48
FRAME_RATE = 30
SOUND_RATE = 44100
SIZE = (320, 240)
MOUTH = (222, 147)
"""Centre of the mouth in the portrait, in pixels."""


def make(folder: Path) -> None:
    """Write the videos of both words."""
    for word, (times, pitch_hz) in WORDS.items():
        (folder / word).mkdir(parents=True, exist_ok=True)
        for number in range(VIDEOS):
            rng = np.random.default_rng([number, times])
            write(folder / word / f"{number:02d}.mp4", times, pitch_hz * rng.uniform(0.95, 1.05), rng)


def write(path: Path, times: int, pitch_hz: float, rng: np.random.Generator) -> None:
    """Write one video, H.264 with AAC."""
    start, turn, phase = rng.uniform(0.1, 0.3), rng.uniform(-6, 6), rng.uniform(0, 2 * np.pi)

    def opening(time_s: NDArray[np.float64]) -> NDArray[np.float64]:
        spoken = np.clip((time_s - start) / 1.0, 0, 1)
        return np.sin(np.pi * times * spoken) ** 2

    seconds = np.arange(FRAMES * SOUND_RATE // FRAME_RATE) / SOUND_RATE
    sound = (0.5 * opening(seconds) * np.sin(2 * np.pi * pitch_hz * seconds)).astype(np.float32)
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=FRAME_RATE, options={"crf": "20"})
        video.width, video.height, video.pix_fmt = *SIZE, "yuv420p"
        audio = container.add_stream("aac", rate=SOUND_RATE, layout="mono")
        for number in range(FRAMES):
            open_by = float(opening(np.array(number / FRAME_RATE)))
            image = view(open_by, turn, phase + number / 12)
            container.mux(video.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        whole = av.AudioFrame.from_ndarray(sound[None], format="fltp", layout="mono")
        whole.sample_rate, whole.time_base, whole.pts = SOUND_RATE, Fraction(1, SOUND_RATE), 0
        container.mux(audio.encode(whole))
        container.mux(audio.encode())
        container.mux(video.encode())


def view(open_by: float, turn: float, phase: float) -> NDArray[np.uint8]:
    """Draw the portrait with its mouth open by 0 to 1, and move it a little."""
    image = skimage.data.astronaut()
    cv2.ellipse(image, MOUTH, (14, round(1 + 11 * open_by)), 0, 0, 360, (60, 20, 20), -1, cv2.LINE_AA)
    width, height = SIZE
    centre = ((FACE[0] + FACE[2]) / 2, (FACE[1] + FACE[3]) / 2)
    matrix = cv2.getRotationMatrix2D(centre, turn + 2 * np.sin(phase), 1.1)
    matrix[:, 2] += (width / 2 + 10 * np.sin(phase) - centre[0], height / 2 + 6 * np.cos(phase) - centre[1])
    return cv2.warpAffine(image, matrix, SIZE, flags=cv2.INTER_AREA, borderMode=cv2.BORDER_REFLECT)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    make(Path(sys.argv[1]))
