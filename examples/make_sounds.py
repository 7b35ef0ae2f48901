"""Make short MP3 files of two kinds of sound, in a folder per kind.

    python examples/make_sounds.py FOLDER

The tones of a bell begin suddenly and fade; those of a flute swell, and tremble a little. Pitch, loudness and background
noise differ from file to file.
"""

import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

FILES = 12
"""Number of files of each kind."""

RATE = 44100
NOTE_S = 0.5
"""Length of a note in seconds."""


def make(folder: Path) -> None:
    """Write the files of both kinds."""
    for kind, note in (("bell", bell), ("flute", flute)):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for number in range(FILES):
            rng = np.random.default_rng([number, len(kind)])
            notes = [note(rng.uniform(300, 900), rng) for _ in range(int(rng.integers(5, 9)))]
            sound = np.concatenate(notes) * rng.uniform(0.3, 0.8)
            write(folder / kind / f"{number:02d}.mp3", sound + 0.02 * rng.standard_normal(len(sound)))


def bell(pitch_hz: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return a note with overtones that are no multiples of its pitch, and fade."""
    time_s = np.arange(round(NOTE_S * RATE)) / RATE
    overtones = [np.exp(-6 * ratio * time_s) * np.sin(2 * np.pi * ratio * pitch_hz * time_s) for ratio in (1, 2.4, 4.1)]
    return np.sum(overtones, axis=0) / 3


def flute(pitch_hz: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return a note of nearly one frequency that swells."""
    time_s = np.arange(round(NOTE_S * RATE)) / RATE
    trembling = 2 * np.pi * pitch_hz * time_s + 0.6 * np.sin(2 * np.pi * rng.uniform(4, 7) * time_s)
    return np.sin(np.pi * time_s / NOTE_S) * (np.sin(trembling) + 0.2 * np.sin(2 * trembling)) / 1.2


def write(path: Path, sound: NDArray[np.float64]) -> None:
    """Write one MP3 file."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libmp3lame", rate=RATE, layout="mono")
        whole = av.AudioFrame.from_ndarray(sound.clip(-1, 1).astype(np.float32)[None], format="fltp", layout="mono")
        whole.sample_rate, whole.time_base, whole.pts = RATE, Fraction(1, RATE), 0
        container.mux(stream.encode(whole))
        container.mux(stream.encode())


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    make(Path(sys.argv[1]))
