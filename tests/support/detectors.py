"""Detectors as users write them, for ``--detector support.detectors:NAME``."""

import os
from typing import Any

import numpy as np
import pytest

from packer import Detector

WEIGHTS = "TEST_DETECTOR_WEIGHTS"
"""Environment variable with the digest of weights that `Declaring` declares."""


class Wrapped:
    """MTCNN, whose faces come smallest first, in lists."""

    def __init__(self, device: str) -> None:
        self._detector = Detector.dataset(40, device=device)

    def detect(self, frames: Any) -> Any:
        assert isinstance(frames, list)
        return [tuple(array[::-1].tolist() for array in faces) for faces in self._detector.detect(frames)]


class Declaring:
    """Finds nothing."""

    version = "3.1"

    def __init__(self, device: str) -> None:
        self.weights = {"name": "none", "sha256": os.environ.get(WEIGHTS, ""), "license": "MIT"}

    def detect(self, frames: Any) -> Any:
        return [([], [], [])] * len(frames)


class NotANumber(Declaring):
    """Finds a face with an unknown edge in any frame that is not black."""

    def detect(self, frames: Any) -> Any:
        face = ([[10, 10, np.nan, 60]], [1], np.zeros((1, 5, 2)))
        return [face if frame.any() else ([], [], []) for frame in frames]


class Failing(Declaring):
    """Fails on any frame that is not black."""

    def detect(self, frames: Any) -> Any:
        if any(frame.any() for frame in frames):
            raise ZeroDivisionError("no light")
        return super().detect(frames)


class FailingAtOnce(Declaring):
    """Fails on every frame."""

    def detect(self, frames: Any) -> Any:
        raise ZeroDivisionError("never")


class Blinking(Declaring):
    """Finds a face in the middle of every fifth frame that it gets, from the fifth on."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._frames = 0

    def detect(self, frames: Any) -> Any:
        found = []
        for frame in frames:
            self._frames += 1
            height, width = frame.shape[:2]
            centre = np.array([width / 2 + self._frames, height / 2])
            points = centre + 60 * np.array([[-0.2, -0.2], [0.2, -0.2], [0, 0], [-0.15, 0.2], [0.15, 0.2]])
            face = ([[*(centre - 30), *(centre + 30)]], [1.0], [points])
            found.append(face if self._frames % 5 == 0 else ([], [], []))
        return found


class Unable:
    """Cannot be made."""

    def __init__(self, device: str) -> None:
        raise OSError(f"no weights for {device}")


class Counting(Wrapped):
    """Counts the frames that it has seen, in this process."""

    seen = 0

    def detect(self, frames: Any) -> Any:
        Counting.seen += len(frames)
        return super().detect(frames)


def count_searched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of frames of the calls of the default detector, as they come."""
    searched: list[int] = []
    detect = Detector.detect

    def count(self: Detector, frames: Any) -> Any:
        searched.append(len(frames))
        return detect(self, frames)

    monkeypatch.setattr(Detector, "detect", count)
    return searched
