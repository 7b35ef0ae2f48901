"""Functions for tests of ``packer compute``."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from shardspec.errors import DatasetError

CALLS = "MEASURED_CALLS"
"""Environment variable: a file to which `noted` appends a line for each batch."""


GATE = "MEASURED_GATE"
"""Environment variable: the file that `held` waits for."""


def brightest(image: Any) -> dict[str, Any]:
    """A number and an array of each sample."""
    flat = image.float().flatten(2)
    return {"brightest": flat.amax((1, 2)), "channels": flat.mean(2).half()}


def noted(image: Any, *, factor: float = 1.0) -> dict[str, Any]:
    """Note each call, and stop for good at a call, if the environment says so."""
    path = Path(os.environ[CALLS])
    with path.open("a") as file:
        file.write(f"{len(image)}\n")
    if len(path.read_text().splitlines()) == int(os.environ.get("MEASURED_STOP", -1)):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"noted": image.float().mean((1, 2, 3)) * factor}


def words(key: Any, frame: Any) -> dict[str, Any]:
    """Text, arrays of varying length and missing values of every kind."""
    frames = frame.tolist()
    return {
        "caption": [None if n % 3 == 0 else f"ü {name}" for name, n in zip(key, frames, strict=True)],
        "boxes": [np.full((n // 10 % 3 + 1, 4), n, np.float32) for n in frames],
        "age": np.ma.MaskedArray(np.array(frames, np.int16), [n % 20 == 0 for n in frames]),
    }


class Embedder:
    """A class that is made once in each worker."""

    version = "7"

    def __init__(self, *, device: str = "cpu", size: int = 4) -> None:
        self._device, self._size = device, size

    def __call__(self, image: Any) -> dict[str, Any]:
        """Return an embedding of each sample."""
        assert str(image.device) == self._device
        return {"embedding": image.float().flatten(1)[:, : self._size]}


def more_later(frame: Any) -> dict[str, Any]:
    """Return one column for the first batch, and two for the others."""
    return {"x": frame} if int(frame.min()) == 0 else {"x": frame, "y": frame}


def kills_itself(frame: Any) -> dict[str, Any]:
    """Kill the process at frame 30."""
    if 30 in frame.tolist():
        os.kill(os.getpid(), signal.SIGKILL)
    return {"x": frame}


def held(image: Any, frame: Any) -> dict[str, Any]:
    """Note each frame, and wait from frame 120 on until the file ``MEASURED_GATE`` exists."""
    with Path(os.environ[CALLS]).open("a") as file:
        file.writelines(f"{one}\n" for one in frame.tolist())
    while int(frame.max()) >= 120 and not Path(os.environ[GATE]).exists():
        time.sleep(0.05)
    return {"noted": image.float().mean((1, 2, 3))}


class OfSource:
    """One value for each source, from its two latest frames."""

    version = "1"
    per = ("source",)

    def __init__(self, *, frames: int = 2) -> None:
        self.frames = frames

    @staticmethod
    def rank(frame: Any) -> Any:
        """Later frames are better."""
        return np.asarray(frame)

    def __call__(self, frame: Any) -> dict[str, Any]:
        """Return the frame's number."""
        return {"mean_frame": frame.float()}


def prints(image: Any) -> dict[str, Any]:
    """Print, as functions of others do."""
    print("a line of the function")
    return {"printed": [1] * len(image)}


def too_few(image: Any) -> dict[str, Any]:
    """Return a value too few."""
    return {"x": [1.0] * (len(image) - 1)}


def changes_type(frame: Any) -> dict[str, Any]:
    """Return another type from the hundredth frame on."""
    return {"x": np.zeros(len(frame), np.float32 if frame[0] < 100 else np.float64)}


def returns_nan(frame: Any) -> dict[str, Any]:
    """Return NaN for frame 30."""
    return {"x": np.where(frame.numpy() == 30, np.nan, 0.0)}


def raises_at_one(frame: Any) -> dict[str, Any]:
    """Fail at frame 30."""
    if 30 in frame.tolist():
        raise ValueError("no such\nthing")
    return {"x": frame}


class SpoiltError(DatasetError):
    """An error that `shardspec` does not know."""


class Spoilt:
    """Cannot be made."""

    def __init__(self) -> None:
        raise SpoiltError("no such thing")

    def __call__(self, frame: Any) -> dict[str, Any]:
        """Return the frame's number."""
        return {"x": frame}


def no_dict(frame: Any) -> Any:
    """Return an array instead of a dict."""
    return frame


def image_again(frame: Any) -> dict[str, Any]:
    """Return a column that the dataset has."""
    return {"frame": frame}


def unknown_field(image: Any, mask: Any) -> dict[str, Any]:
    """Take a field that the dataset lacks."""
    return {"x": mask}
