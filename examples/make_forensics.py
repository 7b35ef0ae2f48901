"""Make a small tree in the layout of FaceForensics++: talking faces, and two forgeries of each.

    python examples/make_forensics.py FOLDER

All videos show the talking portrait of `make_talking.py`, in changing light. `Deepfakes` blurs the face, and `FaceSwap`
gives it other colours. They are so crude that a small network learns to see them in a minute.
"""

import json
import sys
from pathlib import Path

import cv2
import numpy as np
from make_data import write_video
from make_talking import SIZE, view
from numpy.typing import NDArray

PAIRS = {
    "train": [("000", "003"), ("011", "805"), ("024", "073"), ("033", "097"), ("071", "054")],
    "val": [("720", "672")],
    "test": [("953", "974"), ("939", "115")],
}
METHODS = ("Deepfakes", "FaceSwap")
FRAMES = 12
CENTRE, AXES = (160, 122), (46, 62)
"""The ellipse of the face in a frame, in pixels."""


def make(root: Path) -> None:
    """Write the official lists, the originals, and for each pair the forgery of either face by both methods."""
    (root / "splits").mkdir(parents=True, exist_ok=True)
    for split, pairs in PAIRS.items():
        (root / "splits" / f"{split}.json").write_text(json.dumps(pairs))
        for target, donor in (names for pair in pairs for names in (pair, pair[::-1])):
            frames = film(target)
            write(root / f"original_sequences/youtube/c23/videos/{target}.mp4", [image for image, _ in frames])
            for method in METHODS:
                path = root / f"manipulated_sequences/{method}/c23/videos/{target}_{donor}.mp4"
                write(path, [forge(image, method, phase) for image, phase in frames])


def film(target: str) -> list[tuple[NDArray[np.uint8], float]]:
    """Draw the frames of a person, each with the phase of its movement."""
    rng = np.random.default_rng(int(target))
    light, turn, start = rng.uniform(0.7, 1.1), rng.uniform(-8, 8), rng.uniform(0, 2 * np.pi)
    phases = [start + number / 6 for number in range(FRAMES)]
    images = [view(float(np.sin(2 * phase) ** 2), turn, phase) * light for phase in phases]
    return [(np.clip(image, 0, 255).astype(np.uint8), phase) for image, phase in zip(images, phases, strict=True)]


def write(path: Path, images: list[NDArray[np.uint8]]) -> None:
    """Write a video of high quality, in a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_video(path, images, SIZE, crf=18)


def forge(image: NDArray[np.uint8], method: str, phase: float) -> NDArray[np.uint8]:
    """Blend a forged face into an image."""
    face = cv2.GaussianBlur(image, (0, 0), 3) if method == "Deepfakes" else image[:, :, [0, 2, 1]]
    centre = (round(CENTRE[0] + 10 * np.sin(phase)), round(CENTRE[1] + 6 * np.cos(phase)))
    mask = cv2.ellipse(np.zeros(image.shape[:2], np.float32), centre, AXES, 0, 0, 360, 1, -1)
    mask = cv2.GaussianBlur(mask, (0, 0), 4)[:, :, None]
    return np.round(mask * face + (1 - mask) * image).astype(np.uint8)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    make(Path(sys.argv[1]))
